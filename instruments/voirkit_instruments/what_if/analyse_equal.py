"""Whether two runs came to the same results: losses, the files that torch.save wrote, what was printed.

A change is held against the first plain run, and so is every other plain run: where these differ by themselves nothing can be told. Of what
the first plain run saved a copy is kept, since all runs write to the same paths; files are loaded, by a process of its own
(``what_if_contents``), where their bytes differ. Runs do not delete what earlier ones wrote, so a file that was not written anew counts as
missing.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from voirkit_instruments.what_if.record_runs import Ran

    Stamp = tuple[int, int, int] | None

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
        self._first: Ran | None = None
        self._copies: dict[str, str] = {}  # path -> copy
        self._stamps: dict[str, Stamp] = {}
        self._found: dict[str, list[tuple[bool, bool | None, str]]] = {}  # what -> (changed?, equal, why) of each run
        self._why_none = ""

    def first(self, ran: Ran) -> None:
        """Keep what the first plain run came to."""
        self._first = ran
        self._found = {"losses": [], "checkpoints": [], "output": []}
        paths = _settled(final_paths(ran.told.get("files") or ()))
        total = sum(os.path.getsize(path) for path in paths)
        if not paths:
            self._why_none = "torch.save has left no file"
        elif total > min(MOST_COPIED, shutil.disk_usage(self._folder).free // 2):
            self._why_none = f"{total / 1e9:.3g} GB of files are too much to keep a copy of"
        else:
            for at, path in enumerate(paths):
                self._copies[path] = shutil.copyfile(path, os.path.join(self._folder, f"saved-{at}"))
        self._stamps = {path: _stamp(path) for path in self._copies}

    def add(self, ran: Ran, changed: bool) -> None:
        """Compare another run, right after it."""
        assert self._first is not None
        found = {
            "losses": same_losses(self._first.told.get("losses") or {}, ran.told.get("losses") or {}, self._exact),
            "checkpoints": self._same_files(ran),
            "output": (filecmp.cmp(self._first.out, ran.out, shallow=False), ""),
        }
        for what, (equal, why) in found.items():
            self._found[what].append((changed, equal, why))
        os.unlink(ran.out)

    def _same_files(self, ran: Ran) -> tuple[bool | None, str]:
        if not self._copies:
            return None, self._why_none
        written = dict(zip(self._copies, _paired(self._copies, _settled(final_paths(ran.told.get("files") or ()))), strict=True))
        for own, path in written.items():
            before, now = self._stamps.get(path), _stamp(path)
            if now is None or now == before:
                return False, f"{own} was not written"
        self._stamps.update({path: _stamp(path) for path in written.values()})
        unlike = [(self._copies[own], path) for own, path in written.items() if not filecmp.cmp(self._copies[own], path, shallow=False)]
        return compared(unlike, self._exact) if unlike else (True, "")

    def told(self) -> dict[str, Any]:
        """``losses``, ``checkpoints``, ``output``: True, False, or None where it can not be told; ``because`` says why, a line each."""
        found: dict[str, Any] = {}
        reasons = []
        for what, runs in self._found.items():
            plain, changed = ([(equal, why) for of, equal, why in runs if of is which] for which in (False, True))
            odd = next((why or "as they are" for equal, why in plain if equal is False), None)
            if odd is not None:
                found[what] = None
                reasons.append(f"{what}: plain runs differ from each other already ({odd})." if why_counts(what) else "")
                continue
            answers = [equal for equal, _ in changed]
            found[what] = False if False in answers else None if None in answers or not answers else True
            why = next((why for equal, why in changed if equal is found[what] and why), "")
            if why:
                reasons.append(f"{what}: {why}.")
        found["because"] = "\n".join(reason for reason in reasons if reason)
        return found


def why_counts(what: str) -> bool:
    """Whether it is worth a word that plain runs differ in it: most scripts print times."""
    return what != "output"


def same_losses(one: Mapping[str, Any], other: Mapping[str, Any], exact: bool) -> tuple[bool | None, str]:
    """Whether two runs had the same losses, and what is to be said of it."""
    if not one.get("n") and not other.get("n"):
        return None, "nothing went backward"
    if one.get("n") != other.get("n"):
        return False, f"{one.get('n', 0):,} of the one, {other.get('n', 0):,} of the other"
    pairs = list(zip(one["kept"], other["kept"], strict=True))
    unlike = [(at, a, b) for at, (a, b) in enumerate(pairs) if a != b]
    if not unlike:
        return True, ""
    at, a, b = unlike[0]
    if any(a is None or b is None for _, a, b in unlike):
        return False, f"the first that differs is number {at}: {a} and {b}"
    most = max(abs(a - b) / max(abs(a), abs(b)) for _, a, b in unlike)
    said = f"the first that differs is number {at}: {a:.9g} and {b:.9g}; the most by {most:.2g} of itself"
    return (True, f"{said}, which is rounding") if not exact and most <= NEAR else (False, said)


def final_paths(files: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the files are that a run has saved: as they were named, or what they were renamed to in the same folder."""
    found: dict[str, None] = {}
    for saved in files:
        path = saved["path"]
        if not os.path.isfile(path):
            path = _renamed(os.path.dirname(path), tuple(saved["file"] or ()))
        if path is not None:
            found[path] = None
    return list(found)


def _settled(paths: list[str]) -> list[str]:
    """The same paths, the files on the disk: else the next run would wait for what this one has written."""
    for path in paths:
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    return paths


def _renamed(folder: str, file: tuple[int, ...]) -> str | None:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False) and (entry.stat().st_dev, entry.inode()) == file:
                return entry.path if _is_saved(entry.path) else None
    return None


def _is_saved(path: str) -> bool:
    """Whether a file begins as what torch.save writes: the number of one that was removed goes to whatever is written next."""
    with open(path, "rb") as file:
        return file.read(2) in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def _paired(own: Sequence[str] | Mapping[str, str], others: Sequence[str]) -> list[str]:
    """The paths of another run that stand for those of the first: the same ones; by their order if they have names of their own."""
    new = [path for path in others if path not in own]
    if len(others) == len(own) and new:
        return list(others)
    return list(own)


def _stamp(path: str) -> Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def compared(pairs: Sequence[tuple[str, str]], exact: bool) -> tuple[bool | None, str]:
    """Whether pairs of files hold the same, by a process that loads them."""
    import json
    import subprocess
    import sys

    words = [word for pair in pairs for word in pair]
    ended = subprocess.run(
        [sys.executable, "-m", "voirkit_instruments.what_if.analyse_contents", *([] if exact else ["--near", str(NEAR)]), *words],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    try:
        found = json.loads(ended.stdout.splitlines()[-1])
        return found["equal"], str(found["because"])
    except (IndexError, KeyError, TypeError, ValueError):
        return None, "they could not be loaded: " + (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
