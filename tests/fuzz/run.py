"""Gives readers very many inputs that are nearly right, and reports how many, how many distinct outcomes, and each defect: ``make fuzz``.

    python tests/fuzz/run.py TARGET ... [--inputs N] [--seconds T] [--seed S] [--engine mutations|atheris]

A defect is an exception that is not one of voirkit's errors, more than a second of processor time, or a gigabyte of memory. Its input is
printed, and the exit code is 1. ``mutations`` changes seeds and what had an outcome of its own; ``atheris`` is led by what of voirkit's
code an input reaches, and has to be installed (pip install atheris).
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parent.parent)

LONGEST_S, MOST_BYTES, LARGEST = 1.0, 1 << 30, 1 << 16
_DEFECTS = 20  # distinct ones, after which a run ends
Edit = tuple[int, int, int, bytes]  # which of the below, where, how much, a word


def edited(data: bytes, edits: Sequence[Edit]) -> bytes:
    """The data after edits; places and sizes count from its beginning, again and again."""
    for what, place, size, word in edits:
        at = place % (len(data) + 1)
        end = min(at + 1 + size % 64, len(data))
        if what == 0:
            data = data[:at] + word + data[at:]
        elif what == 1:
            data = data[:at] + word + data[end:]
        elif what == 2:
            data = data[:at] + data[end:]
        elif what == 3:
            data = data[:at] + data[at:end] * 2 + data[end:]
        elif what == 4:
            data = data[:at] + bytes([size % 256]) + data[at + 1 :]
        elif what == 5:
            data = data[:at]
        elif what == 6:  # numbers
            data = (
                data[:at]
                + (b"0", b"-1", b"9" * 30, b"1e400", b"4294967295", b"-9223372036854775808")[
                    size % 6
                ]
                + data[at + 1 :]
            )
        else:  # much of the same: what takes more time than there is of it shows
            part = (word or data[at:end] or b"x") * (LARGEST // max(len(word or data[at:end]), 1))
            data = (data[:at] + part + data[at:])[:LARGEST]
    return data


def some_edits(chance: random.Random, words: Sequence[bytes]) -> list[Edit]:
    """One to six edits, rarely one that makes much of the same."""
    most = 7 if chance.random() < 0.003 else 6
    return [
        (
            most if most == 7 and not i else chance.randrange(7),
            chance.randrange(1 << 30),
            chance.randrange(1 << 16),
            chance.choice(words),
        )
        for i in range(chance.randint(1, 6))
    ]


def edited_tree(data: bytes, chance: random.Random) -> bytes:
    """A JSON document with one to four of its values replaced, taken out or put elsewhere; the data, if it is none."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return data
    values: list[object] = [
        None,
        True,
        0,
        -1,
        1e308,
        -0.5,
        2**70,
        "",
        "x",
        "\x1b]52;c;eA==\x07",
        [],
        {},
        [[]],
        {"": None},
        [None],
        "9" * 400,
    ]
    for _ in range(chance.randint(1, 4)):
        parent: Any = None
        key: Any = None
        at = document
        while isinstance(at, (dict, list)) and at and (parent is None or chance.random() < 0.85):
            parent, key = (
                at,
                chance.choice([*at]) if isinstance(at, dict) else chance.randrange(len(at)),
            )
            at = parent[key]
        if parent is None:
            break
        what = chance.randrange(6)
        if what == 0:
            del parent[key]
        elif what == 1 and isinstance(parent, dict):
            parent[chance.choice(["share", "n", "parts", "x\x1b[2J", "total_s", "median"])] = (
                parent.pop(key)
            )
        elif what == 2:
            parent[key] = float(chance.choice(["nan", "inf", "-inf"]))
        elif what == 3:
            other = (
                chance.choice([*document.values()])
                if isinstance(document, dict) and document
                else at
            )
            parent[key] = json.loads(json.dumps(other))
        else:
            parent[key] = copy.deepcopy(chance.choice(values))
    return json.dumps(document).encode()


class Fuzzing:
    """What has been found.

    Attributes:
        defects: By what and where: the shortest input.
    """

    def __init__(self, name: str, folder: Path) -> None:
        from fuzz.targets import TARGETS, outcome

        self._read, self.target, self._folder = outcome, TARGETS[name], folder
        self.outcomes: Counter[str] = Counter()
        self.defects: dict[str, bytes] = {}
        self.slowest_s = 0.0

    def run(self, data: bytes) -> bool:
        """Read an input; whether its outcome is new."""
        began = time.process_time()
        try:
            found = self._read(self.target, data, self._folder)
        except Exception as exc:
            last = traceback.extract_tb(exc.__traceback__)[-1]
            self._note(
                f"{type(exc).__name__} at {os.path.basename(last.filename)}:{last.lineno}: {str(exc)[:100]!r}"[
                    :160
                ],
                data,
            )
            return False
        took = time.process_time() - began
        self.slowest_s = max(self.slowest_s, took)
        if took > LONGEST_S:
            self._note(f"more than {LONGEST_S} s", data)
        self.outcomes[found] += 1
        return self.outcomes[found] == 1

    def _note(self, what: str, data: bytes) -> None:
        if what not in self.defects or len(data) < len(self.defects[what]):
            self.defects[what] = data


def by_mutations(fuzzing: Fuzzing, inputs: int, seed: int, seconds: float = float("inf")) -> None:
    chance, corpus = random.Random(seed), list(fuzzing.target.seeds)
    until = time.monotonic() + seconds
    for data in corpus:
        fuzzing.run(data)
    for _ in range(inputs - len(corpus)):
        data = chance.choice(corpus)
        if data.startswith(b"{") and chance.random() < 0.9:
            data = edited_tree(data, chance)
        else:
            data = edited(data, some_edits(chance, fuzzing.target.words))
        if fuzzing.run(data) and len(corpus) < 300 and len(data) < 8192:
            corpus.append(data)
        if len(fuzzing.defects) >= _DEFECTS or time.monotonic() > until:
            break


def by_atheris(name: str, folder: Path, inputs: int, seed: int) -> Fuzzing:
    import atheris

    with atheris.instrument_imports(include=["voirkit", "voirkit_instruments"]):
        fuzzing = Fuzzing(name, folder)
        fuzzing.run(
            fuzzing.target.seeds[0]
        )  # what is imported is there, and changed by then, which takes long
        fuzzing.defects.clear()
        fuzzing.slowest_s = 0.0
    corpus = folder / "corpus"
    corpus.mkdir()
    for i, data in enumerate(fuzzing.target.seeds):
        (corpus / str(i)).write_bytes(data)
    dictionary = folder / "dictionary"
    quoted = ["".join(rf"\x{byte:02x}" for byte in word) for word in fuzzing.target.words]
    dictionary.write_text("".join(f'"{word}"\n' for word in quoted))
    count = 0

    def one_input(data: bytes) -> None:
        nonlocal count
        count += 1
        fuzzing.run(data)
        if count >= inputs or len(fuzzing.defects) >= _DEFECTS:
            _report(name, fuzzing, time.perf_counter() - began)
            sys.stdout.flush()
            os._exit(
                bool(fuzzing.defects)
            )  # libFuzzer has no other end in which python still says something

    began = time.perf_counter()
    words = [
        "fuzz",
        str(corpus),
        f"-seed={seed}",
        "-max_len=4096",
        f"-dict={dictionary}",
        "-verbosity=0",
        "-rss_limit_mb=0",
        "-print_final_stats=0",
    ]
    atheris.Setup(words, one_input)
    atheris.Fuzz()
    return fuzzing


def _report(name: str, fuzzing: Fuzzing, seconds: float) -> None:
    n = sum(fuzzing.outcomes.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{name}: {n:,} inputs, {len(fuzzing.outcomes):,} distinct outcomes, {seconds:.0f} s; the slowest took {fuzzing.slowest_s:.3f} s, "
          f"peak {peak} MiB; {len(fuzzing.defects)} defects", flush=True)  # fmt: skip
    for what, data in fuzzing.defects.items():
        print(
            f"  {what}\n    {data[:2000]!r}{f' and so on, {len(data)} bytes' if len(data) > 2000 else ''}"
        )


def main() -> int:
    from fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument(
        "--inputs", type=int, default=1_000_000, help="for each target (default: 1,000,000)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=float("inf"),
        help="the most for each target (default: no bound)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=["mutations", "atheris"], default="mutations")
    options = parser.parse_args()
    failed = False
    for name in options.targets or TARGETS:
        inputs = options.inputs // 100 if name == "report" else options.inputs  # 14 ms each
        # Files in memory, where there is such a folder.
        with tempfile.TemporaryDirectory(
            prefix="voirkit-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None
        ) as folder:
            if options.engine == "atheris":
                by_atheris(name, Path(folder), inputs, options.seed)
                continue
            began = time.perf_counter()
            fuzzing = Fuzzing(name, Path(folder))
            fuzzing.run(fuzzing.target.seeds[0])  # what is imported is there
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + MOST_BYTES, resource.RLIM_INFINITY))
            by_mutations(fuzzing, inputs, options.seed, options.seconds)
            _report(name, fuzzing, time.perf_counter() - began)
            failed |= bool(fuzzing.defects)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
