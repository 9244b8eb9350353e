"""Whether two runs had the same results: losses, the files that torch.save wrote, what was printed.

A change is held against the first plain run, and so is every other plain run: where these differ by themselves nothing can be concluded. Of
what the first plain run saved a copy is kept, since all runs write to the same paths. Runs do not delete what earlier ones wrote, so a file
that was not written again counts as missing.

Files with the same bytes, or the same records, are the same, which needs no unpickling; others are loaded with ``weights_only`` and
compared value by value, by this module as a program of its own::

    python -m voirkit_instruments.what_if.analyse_results NEAR A B [A B ...]

It prints one line of JSON: ``equal`` (true, false; null if it cannot be known) and ``because``.
"""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from voirkit.units import size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit_instruments.what_if.record import RunResult

    Stamp = tuple[int, int, int] | None
    Equality = tuple[bool | None, str]  # whether, None if it cannot be known; and why

NEAR = 0.01  # relative: how far results may be from each other where a change computes in another order
MOST_COPIED = 4 * 10**9  # bytes of files that are kept for comparing


class Results:
    """The results of the first plain run, and how others compare with them.

    Args:
        folder: For copies; nothing else may write there.
        exact: Whether results must be bit-equal, or within ``NEAR``.
    """

    def __init__(self, folder: str, exact: bool) -> None:
        self._folder, self._exact = folder, exact
        self._first: RunResult | None = None
        self._copies: dict[str, str] = {}  # path -> copy
        self._stamps: dict[str, Stamp] = {}
        self._equal: dict[str, list[tuple[bool, bool | None, str]]] = {"losses": [], "checkpoints": [], "output": []}
        self._why_none = ""

    def add_first(self, result: RunResult) -> None:
        self._first = result
        paths = _flush(final_paths(result.facts.get("files") or ()))
        total = sum(os.path.getsize(path) for path in paths)
        if not paths:
            self._why_none = "torch.save has left no file"
        elif total > min(MOST_COPIED, shutil.disk_usage(self._folder).free // 2):
            self._why_none = f"{size(total)} of files are too much to keep a copy of"
        else:
            for i, path in enumerate(paths):
                self._copies[path] = shutil.copyfile(path, os.path.join(self._folder, f"saved-{i}"))
        self._stamps = {path: _stamp(path) for path in self._copies}

    def add(self, result: RunResult, changed: bool) -> None:
        """Compare another run, right after it."""
        assert self._first is not None
        losses = same_losses(self._first.facts.get("losses") or {}, result.facts.get("losses") or {}, self._exact)
        self._equal["losses"].append((changed, *losses))
        self._equal["checkpoints"].append((changed, *self._same_files(result)))
        self._equal["output"].append((changed, filecmp.cmp(self._first.out, result.out, shallow=False), ""))
        os.unlink(result.out)

    def _same_files(self, result: RunResult) -> Equality:
        if not self._copies:
            return None, self._why_none
        paths = _flush(final_paths(result.facts.get("files") or ()))
        if len(paths) != len(self._copies) or set(paths) <= self._copies.keys():
            paths = list(self._copies)  # else they have names of their own, and stand for the first run's by their order
        for own, path in zip(self._copies, paths, strict=True):
            if (now := _stamp(path)) is None or now == self._stamps.get(path):
                return False, f"{own} was not written"
        self._stamps.update({path: _stamp(path) for path in paths})
        pairs = zip(self._copies.values(), paths, strict=True)
        different = [pair for pair in pairs if not filecmp.cmp(*pair, shallow=False)]
        return compare_in_process(different, 0.0 if self._exact else NEAR) if different else (True, "")

    def compared(self) -> dict[str, Any]:
        """``losses``, ``checkpoints``, ``output``: True, False, or None where it cannot be known; ``because`` says why, a line each."""
        outcome: dict[str, Any] = {}
        reasons = []
        for what, runs in self._equal.items():
            different = next((why or "as they are" for changed, equal, why in runs if not changed and equal is False), None)
            if different is not None:
                outcome[what] = None
                if what != "output":  # most scripts print times
                    reasons.append(f"{what}: plain runs differ from each other already ({different}).")
                continue
            answers = [(equal, why) for changed, equal, why in runs if changed]
            equals = [equal for equal, _ in answers]
            outcome[what] = False if False in equals else None if None in equals or not equals else True
            why = next((why for equal, why in answers if equal is outcome[what] and why), "")
            if why:
                reasons.append(f"{what}: {why}.")
        return {**outcome, "because": "\n".join(reasons)}


def same_losses(one: Mapping[str, Any], other: Mapping[str, Any], exact: bool) -> Equality:
    """Whether two runs had the same losses, and why."""
    if not one.get("n") and not other.get("n"):
        return None, "nothing went backward"
    if one.get("n") != other.get("n"):
        return False, f"{one.get('n', 0):,} of the one, {other.get('n', 0):,} of the other"
    different = [(i, a, b) for i, (a, b) in enumerate(zip(one["kept"], other["kept"], strict=True)) if a != b]
    if not different:
        return True, ""
    i, a, b = different[0]
    if any(a is None or b is None for _, a, b in different):
        return False, f"the first that differs is number {i}: {a} and {b}"
    most = max(abs(a - b) / max(abs(a), abs(b)) for _, a, b in different)
    why = f"the first that differs is number {i}: {a:.9g} and {b:.9g}; the most by {most:.2g} of itself"
    return (True, f"{why}, which is rounding") if not exact and most <= NEAR else (False, why)


def final_paths(files: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the files are that a run has saved: as they were named, or what they were renamed to in the same folder."""
    paths = []
    for saved in files:
        path = saved["path"]
        if not os.path.isfile(path):
            path = _renamed(os.path.dirname(path), tuple(saved["file"] or ()))
        if path is not None:
            paths.append(path)
    return list(dict.fromkeys(paths))


def _renamed(folder: str, file: tuple[int, ...]) -> str | None:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False) and (entry.stat().st_dev, entry.inode()) == file:
                with open(entry.path, "rb") as found:  # the number of a file that was removed goes to whatever is written next
                    return entry.path if found.read(2) in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05") else None
    return None


def _flush(paths: list[str]) -> list[str]:
    """The same paths, the files on the disk: else the next run would wait for what this one has written."""
    for path in paths:
        with suppress(OSError), open(path, "rb") as file:
            os.fsync(file.fileno())
    return paths


def _stamp(path: str) -> Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def compare_in_process(pairs: Sequence[tuple[str, str]], near: float) -> Equality:
    """Whether pairs of files hold the same, by a process that loads them."""
    paths = [path for pair in pairs for path in pair]
    ended = subprocess.run(
        [sys.executable, "-m", "voirkit_instruments.what_if.analyse_results", str(near), *paths],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    try:
        answer = json.loads(ended.stdout.splitlines()[-1])
        return answer["equal"], str(answer["because"])
    except (IndexError, KeyError, TypeError, ValueError):
        return None, "they could not be loaded: " + (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]


def main(words: Sequence[str]) -> int:
    """Compare pairs of files; returns the exit code, 0."""
    near, paths = float(words[0]), words[1:]
    equal: bool | None = True
    because = ""
    for one, other in zip(paths[::2], paths[1::2], strict=True):
        answer, why = same_contents(one, other, near)
        if answer is not True:
            equal, because = answer, f"{other}: {why}"
            break
        because = because or why
    print(json.dumps({"equal": equal, "because": because}))
    return 0


def same_contents(one: str, other: str, near: float) -> Equality:
    import torch

    if _same_records(torch, one, other):
        return True, ""
    try:
        first, second = (torch.load(path, map_location="cpu", weights_only=True) for path in (one, other))
    except Exception as exc:
        return None, f"cannot be loaded with weights_only ({type(exc).__name__}), and its bytes differ"
    most = 0.0
    for where, apart in differences(torch, first, second, "it"):
        if apart is None or apart > near:
            return False, f"{where} differs" + ("" if apart is None else f" by {apart:.2g} of itself")
        most = max(most, apart)
    return True, f"they differ by {most:.2g} of themselves, which is rounding" if most else ""


def _same_records(torch: Any, one: str, other: str) -> bool:
    """Whether two files of torch's format hold the same pickle and the same storages, byte for byte."""
    try:
        readers = [torch._C.PyTorchFileReader(path) for path in (one, other)]
        names = [sorted(name for name in reader.get_all_records() if not name.startswith(".data/")) for reader in readers]
        return names[0] == names[1] and all(readers[0].get_record(name) == readers[1].get_record(name) for name in names[0])
    except Exception:  # the format from before torch 1.6, or another torch
        return False


def differences(torch: Any, one: Any, other: Any, where: str) -> Iterator[tuple[str, float | None]]:
    """What differs: where, and by what part of itself (of a tensor by its norm); None if that cannot be said."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            yield where, None
        elif not _same_values(torch, one, other):
            yield where, _relative_distance(one, other)
    elif isinstance(one, Mapping) and isinstance(other, Mapping):
        if list(one) != list(other):
            yield where, None
            return
        for key in one:
            yield from differences(torch, one[key], other[key], f"{where}[{key!r}]")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from differences(torch, a, b, f"{where}[{i}]")
    elif type(one) is float and type(other) is float:
        if one != other and (one == one or other == other):
            yield where, abs(one - other) / max(abs(one), abs(other))
    else:
        try:
            equal = type(one) is type(other) and bool(one == other)
        except Exception:  # an array, or an object that does not compare
            equal = False
        if not equal:
            yield where, None


def _same_values(torch: Any, one: Any, other: Any) -> bool:
    """Whether two tensors hold the same; nan is the same as nan."""
    return torch.equal(one, other) or (one.is_floating_point() and bool(((one == other) | (one.isnan() & other.isnan())).all()))


def _relative_distance(one: Any, other: Any) -> float | None:
    if not (one.is_floating_point() and bool(one.isfinite().all()) and bool(other.isfinite().all())):
        return None
    whole = float(one.double().norm())
    return float((one.double() - other.double()).norm()) / whole if whole else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
