"""Compares the results of runs: losses, the files that torch.save wrote, and the printed output.

Every run is compared with the first plain run (a run without the change). If plain runs already
differ from each other, nothing can be concluded. The files of the first plain run are copied, since
all runs write to the same paths. Runs do not delete the files of earlier runs, so a file that was
not written again counts as missing.

Files with the same bytes or the same records are equal, which needs no unpickling. Other files are
loaded with ``weights_only`` and compared value by value, by this module in a process of its own::

    python -m voirkit_instruments.what_if.analyse_results NEAR A B [A B ...]

It prints one line of JSON: ``equal`` (true, false; null if unknown) and ``because``.
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
from math import isfinite

from voirkit.units import size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit_instruments.what_if.record import RunResult

    Stamp = tuple[int, int, int] | None
    Equality = tuple[bool | None, str]  # (True if equal, None if unknown; reason)

# relative difference up to which results count as equal if a change computes in another order
NEAR = 0.01
MOST_COPIED = 4 * 10**9  # limit in bytes of the files that are copied for comparing


class Results:
    """The results of the first plain run, and their comparisons with those of other runs.

    Args:
        folder: A folder for copies; nothing else may write there.
        exact: True if results must be bit-equal; otherwise within ``NEAR``.
    """

    def __init__(self, folder: str, exact: bool) -> None:
        self._folder = folder
        self._exact = exact
        self._first: RunResult | None = None
        self._copies: dict[str, str] = {}  # path of a file of the first run -> path of its copy
        self._stamps: dict[str, Stamp] = {}
        # by kind of result, for each later run: (change, or empty; True if equal to the first run,
        # None if unknown; reason)
        self._comparisons: dict[str, list[tuple[str, bool | None, str]]] = {
            "losses": [],
            "checkpoints": [],
            "output": [],
        }
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
                copy = os.path.join(self._folder, f"saved-{i}")
                self._copies[path] = shutil.copyfile(path, copy)
        self._stamps = {path: _stamp(path) for path in self._copies}

    def add(self, result: RunResult, setting: str = "") -> None:
        """Compare another run; call it before the next run begins. ``setting`` is the run's change,
        empty for a plain run."""
        assert self._first is not None
        first_losses = self._first.facts.get("losses") or {}
        losses = result.facts.get("losses") or {}
        losses_equal, why = same_losses(first_losses, losses, self._exact)
        self._comparisons["losses"].append((setting, losses_equal, why))
        files_equal, why = self._same_files(result)
        self._comparisons["checkpoints"].append((setting, files_equal, why))
        output_equal = filecmp.cmp(self._first.out, result.out, shallow=False)
        self._comparisons["output"].append((setting, output_equal, ""))
        os.unlink(result.out)

    def _same_files(self, result: RunResult) -> Equality:
        if not self._copies:
            return None, self._why_none
        paths = _flush(final_paths(result.facts.get("files") or ()))
        if len(paths) != len(self._copies) or set(paths) <= self._copies.keys():
            # Look for the files at the first run's paths. Otherwise the run has written as many
            # files under names of its own, which are paired with the first run's files by order.
            paths = list(self._copies)
        for first_path, path in zip(self._copies, paths, strict=True):
            stamp = _stamp(path)
            if stamp is None or stamp == self._stamps.get(path):
                return False, f"{first_path} was not written"
        self._stamps.update({path: _stamp(path) for path in paths})
        pairs = zip(self._copies.values(), paths, strict=True)
        different = [pair for pair in pairs if not filecmp.cmp(*pair, shallow=False)]
        if not different:
            return True, ""
        return compare_in_process(different, 0.0 if self._exact else NEAR)

    def compared(self, setting: str) -> dict[str, Any]:
        """Return whether ``losses``, ``checkpoints`` and ``output`` of the runs with a change equal
        the first plain run's: True, False, or None if unknown. ``because`` has the reasons, one per
        line."""
        outcome: dict[str, Any] = {}
        reasons = []
        for kind, comparisons in self._comparisons.items():
            plain = [(equal, why) for change, equal, why in comparisons if not change]
            of_changed = [(equal, why) for change, equal, why in comparisons if change == setting]
            differences = [why or "as they are" for equal, why in plain if equal is False]
            if differences:
                outcome[kind] = None
                if kind != "output":  # most scripts print times, so output usually differs
                    reasons.append(
                        f"{kind}: plain runs differ from each other already ({differences[0]})."
                    )
                continue
            outcome[kind] = _all_equal([equal for equal, _ in of_changed])
            for equal, why in of_changed:
                if equal is outcome[kind] and why:
                    reasons.append(f"{kind}: {why}.")
                    break
        return {**outcome, "because": "\n".join(reasons)}


def _all_equal(answers: Sequence[bool | None]) -> bool | None:
    """Return False if any answer is False; otherwise None if any is None or there are none."""
    if False in answers:
        return False
    if None in answers or not answers:
        return None
    return True


def same_losses(first: Mapping[str, Any], second: Mapping[str, Any], exact: bool) -> Equality:
    """Compare the losses of two runs."""
    if not first.get("n") and not second.get("n"):
        return None, "nothing went backward"
    if first.get("n") != second.get("n"):
        return False, f"{first.get('n', 0):,} of the one, {second.get('n', 0):,} of the other"
    pairs = zip(first["kept"], second["kept"], strict=True)
    different = [(i, a, b) for i, (a, b) in enumerate(pairs) if not _same_number(a, b)]
    if not different:
        return True, ""
    i, a, b = different[0]
    distances = [_distance(a, b) for _, a, b in different]
    numbers = [distance for distance in distances if distance is not None]
    if len(numbers) < len(distances):
        return False, f"the first that differs is number {i}: {a} and {b}"
    most = max(numbers)
    why = (
        f"the first that differs is number {i}: {a:.9g} and {b:.9g}; the most by {most:.2g} of"
        " itself"
    )
    if not exact and most <= NEAR:
        return True, f"{why}, which is rounding"
    return False, why


def final_paths(files: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the current paths of the files that a run has saved: the saved path, or the new path
    of a file that was renamed in its folder."""
    paths = []
    for saved in files:
        path = saved["path"]
        if not os.path.isfile(path):
            path = _renamed(os.path.dirname(path), tuple(saved["file"] or ()))
        if path is not None:
            paths.append(path)
    return list(dict.fromkeys(paths))


# The first bytes of torch's files: a zip archive, or a pickle of protocol 2 to 5.
_MAGICS = (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def _renamed(folder: str, identity: tuple[int, ...]) -> str | None:
    """Return the path of the file with this device and inode in a folder; None if there is none or
    it is not a torch file."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_file(follow_symlinks=False):
                continue
            if (entry.stat().st_dev, entry.inode()) == identity:
                # The first bytes are checked too, because the inode number of a removed file is
                # reused by the next new file.
                with open(entry.path, "rb") as file:
                    magic = file.read(2)
                return entry.path if magic in _MAGICS else None
    return None


def _flush(paths: list[str]) -> list[str]:
    """Write the files' cached data to the disk, and return the same paths. Otherwise the next run
    would wait for the data that this run has written."""
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
    """Compare pairs of files in another process, which loads them."""
    paths = [path for pair in pairs for path in pair]
    process = subprocess.run(
        [sys.executable, "-m", "voirkit_instruments.what_if.analyse_results", str(near), *paths],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    try:
        answer = json.loads(process.stdout.splitlines()[-1])
        return answer["equal"], str(answer["because"])
    except (IndexError, KeyError, TypeError, ValueError):
        lines = process.stderr.strip().splitlines()
        why = lines[-1] if lines else f"exit code {process.returncode}"
        return None, f"they could not be loaded: {why}"


def main(words: Sequence[str]) -> int:
    """Compare pairs of files; returns the exit code, 0."""
    near = float(words[0])
    paths = words[1:]
    equal: bool | None = True
    because = ""
    for first, second in zip(paths[::2], paths[1::2], strict=True):
        answer, why = same_contents(first, second, near)
        if answer is not True and (equal is True or answer is False):
            equal = answer
            because = f"{second}: {why}"
        if equal is False:
            break
        because = because or why
    print(json.dumps({"equal": equal, "because": because}))
    return 0


def same_contents(first: str, second: str, near: float) -> Equality:
    import torch

    if _same_records(torch, first, second):
        return True, ""
    try:
        first_contents = torch.load(first, map_location="cpu", weights_only=True)
        second_contents = torch.load(second, map_location="cpu", weights_only=True)
    except Exception as exc:  # any kind of file: torch documents no exceptions for it
        return (
            None,
            f"cannot be loaded with weights_only ({type(exc).__name__}), and its bytes differ",
        )
    most = 0.0
    for where, distance in differences(torch, first_contents, second_contents, "it"):
        if distance is None:
            return False, f"{where} differs"
        if distance > near:
            return False, f"{where} differs by {distance:.2g} of itself"
        most = max(most, distance)
    return True, f"they differ by {most:.2g} of themselves, which is rounding" if most else ""


def _same_records(torch: Any, first: str, second: str) -> bool:
    """True if two files of torch's format hold the same pickle and the same storages, byte for
    byte."""
    try:
        first_reader = torch._C.PyTorchFileReader(first)
        second_reader = torch._C.PyTorchFileReader(second)
        names = _record_names(first_reader)
        if names != _record_names(second_reader):
            return False
        return all(
            first_reader.get_record(name) == second_reader.get_record(name) for name in names
        )
    except Exception:  # the file format from before torch 1.6, or an unknown torch version
        return False


def _record_names(reader: Any) -> list[str]:
    return sorted(name for name in reader.get_all_records() if not name.startswith(".data/"))


def differences(
    torch: Any, first: Any, second: Any, where: str
) -> Iterator[tuple[str, float | None]]:
    """Yield (place, relative difference) for each value that differs between two contents. For
    tensors it is the norm of the difference over the norm of the first tensor. It is None if no
    number applies, as for different shapes or types."""
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        if first.shape != second.shape or first.dtype != second.dtype:
            yield where, None
        elif not _same_values(torch, first, second):
            yield where, _relative_distance(first, second)
    elif isinstance(first, Mapping) and isinstance(second, Mapping):
        if list(first) != list(second):
            yield where, None
            return
        for key in first:
            yield from differences(torch, first[key], second[key], f"{where}[{key!r}]")
    elif _are_alike_sequences(first, second):
        for i, (a, b) in enumerate(zip(first, second, strict=True)):
            yield from differences(torch, a, b, f"{where}[{i}]")
    elif type(first) is float and type(second) is float:
        if not _same_number(first, second):
            yield where, _distance(first, second)
    elif not _is_equal(first, second):
        yield where, None


def _same_number(first: float | None, second: float | None) -> bool:
    """True if two numbers are equal, or both NaN, or both None."""
    both_nan = first != first and second != second
    return first == second or both_nan


def _distance(first: float | None, second: float | None) -> float | None:
    """Return the relative difference of two numbers that differ; None if one is not finite."""
    if first is None or second is None or not isfinite(first) or not isfinite(second):
        return None
    return abs(first - second) / max(abs(first), abs(second))


def _are_alike_sequences(first: Any, second: Any) -> bool:
    if not isinstance(first, list | tuple) or not isinstance(second, list | tuple):
        return False
    return len(first) == len(second)


def _is_equal(first: Any, second: Any) -> bool:
    try:
        return type(first) is type(second) and bool(first == second)
    except Exception:  # an array, or an object that raises when it is compared
        return False


def _same_values(torch: Any, first: Any, second: Any) -> bool:
    """True if two tensors have equal values; NaN equals NaN."""
    if torch.equal(first, second):
        return True
    if not first.is_floating_point():
        return False
    both_nan = first.isnan() & second.isnan()
    return bool(((first == second) | both_nan).all())


def _relative_distance(first: Any, second: Any) -> float | None:
    if not first.is_floating_point():
        return None
    if not bool(first.isfinite().all()) or not bool(second.isfinite().all()):
        return None
    norm = float(first.double().norm())
    return float((first.double() - second.double()).norm()) / norm if norm else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
