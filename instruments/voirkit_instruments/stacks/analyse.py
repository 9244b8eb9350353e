"""What the summary says of stacks, and the files for other tools; also of runs that were killed."""

from __future__ import annotations

import json
import linecache
import os
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from voirkit.runs.alive import has_settled
from voirkit.runs.directory import read_json, write_json
from voirkit.runs.ranks import rank_and_world_size
from voirkit.runs.tables.parquet import quoted
from voirkit_instruments.stacks import FLAME_FOLDER
from voirkit_instruments.stacks import analyse_chrome as chrome
from voirkit_instruments.stacks import analyse_figures as figures
from voirkit_instruments.stacks import analyse_sampled as sampled
from voirkit_instruments.stacks.analyse_frames import Frame, Stacks, place
from voirkit_instruments.stacks.analyse_join import Joined
from voirkit_instruments.stacks.analyse_spans import Recorded

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank
    from voirkit.runs.opened import Run

SCHEMA = 1
_ERRORS = re.compile(r"Errors: (\d+)")
_NEVER = 1 << 62
_LONGEST = 80  # characters of a line of source
COUNTS = ".counts.json"


def flame_of(run: Run) -> dict[str, Any] | None:
    """What the summary says of stacks, ``flame/`` brought up to date; None if none were taken."""
    counts = counts_of(run)
    if not counts:
        return None
    if rank_and_world_size()[0] == 0:  # it writes what there is one of
        try:
            figures.write(os.path.join(run.path, FLAME_FOLDER), counts)
        except OSError as exc:
            run.warnings.append(f"{FLAME_FOLDER} can not be written to ({exc.strerror}).")
    return figures.figures(counts)


def counts_of(run: Run) -> list[dict[str, Any]]:
    """What was counted of each rank's stacks."""
    folder = os.path.join(run.path, FLAME_FOLDER)
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    found = []
    for stem in [name.removesuffix(".json") for name in names if name.endswith(".json") and not name.endswith((COUNTS, "speedscope.json"))]:
        counts = read_json(os.path.join(folder, f"{stem}{COUNTS}"), SCHEMA) or _count(run, folder, stem)
        if counts is not None:
            found.append(counts)
    return found


def _count(run: Run, folder: str, stem: str) -> dict[str, Any] | None:
    """Count what was taken, and keep the counts."""
    taken = read_json(os.path.join(folder, f"{stem}.json"), SCHEMA)
    if taken is None or "tool" not in taken or not has_settled(taken, "taker_pid"):
        return None
    try:
        document = _document(run, folder, stem, taken)
    except (OSError, ValueError, LookupError, TypeError) as exc:
        run.warnings.append(f"--flame: what {taken.get('tool')} wrote can not be counted ({type(exc).__name__}: {exc}).")
        return None
    try:
        write_json(os.path.join(folder, f"{stem}{COUNTS}"), document)
        for name in os.listdir(folder):
            if name.startswith(f"{stem}.") and name.endswith((".spy", ".sampled")):
                os.remove(os.path.join(folder, name))
    except OSError:
        pass  # who opens the run next counts again
    return document


def _document(run: Run, folder: str, stem: str, taken: Mapping[str, Any]) -> dict[str, Any]:
    stacks, period_ns = Stacks(), round(1e9 / taken["rate_hz"])
    within_ns = taken.get("attached_ns") or 0, taken.get("ended_ns") or _NEVER
    recorded = Recorded(run, taken["rank"], taken["host"])
    joined = Joined(recorded, stacks, period_ns, taken["pid"], _workers(run, taken), within_ns)
    notes = _notes(os.path.join(folder, f"{stem}.chunks"))
    if taken["tool"] == "sampler":
        with open(os.path.join(folder, f"{stem}.sampled"), encoding="utf-8", errors="replace") as lines:
            joined.add_samples(taken["pid"], sampled.samples(lines, stacks))
    for note in notes:
        if note["file"] is not None:
            _add(joined, os.path.join(folder, note["file"]), note, bool(taken["by_clock"]), stacks)
    known = {key: taken.get(key) for key in ("tool", "version", "rate_hz", "gil", "native", "rank", "host", "cut", "by_clock")}
    processes = [(pid, kind, n) for pid, kinds in joined.processes.items() for kind, n in kinds.items()]
    return {
        "schema": SCHEMA,
        **known,
        "lost": _gaps(notes, period_ns) + (taken.get("late") or 0) + joined.late,
        "own": joined.own,
        "clock": figures.clock(joined.clocks),
        "cost": figures.cost(taken, notes),
        "frames": [list(frame) for frame in stacks.frames],
        "stacks": [list(stack) for stack in stacks.stacks],
        "text": {place(frame.file, frame.line): text for frame in stacks.frames if (text := _source(frame))},
        "rows": [[*row, n] for row, n in sorted(joined.counts.items())],
        "processes": [{"pid": pid, "rank": taken["rank"], "kind": kind, "samples": n} for pid, kind, n in processes],
    }


def _source(frame: Frame) -> str:
    """The text of a frame's line, as it is now: the program may be changed before anybody looks at the report."""
    return linecache.getline(frame.file, frame.line).strip()[:_LONGEST] if frame.line else ""


def _add(joined: Joined, path: str, note: Mapping[str, Any], by_clock: bool, stacks: Stacks) -> None:
    """Add what one file holds."""
    if by_clock:
        seen = {int(tid): at for tid, at in note["seen"].items()}
        threads = chrome.threads(path, stacks)
        joined.add_chunk(note["pid"], threads, note["began_ns"], note["ready_ns"] or note["began_ns"], note["until_ns"], seen)
        return
    with open(path, encoding="utf-8", errors="replace") as lines:
        joined.add_counted(note["pid"], sampled.counted(lines, stacks))


def _gaps(notes: Sequence[Mapping[str, Any]], period_ns: int) -> int:
    """Looks that failed, or were not taken between a chunk of a process and the next, as it was started anew, or was killed."""
    lost = sum(int(found[1]) for note in notes for line in note["said"] if (found := _ERRORS.search(line)))
    for pid in {note["pid"] for note in notes}:
        own = sorted((note for note in notes if note["pid"] == pid and note["file"]), key=lambda note: note["began_ns"])
        for before, after in pairwise(own):
            lost += max(after["ready_ns"] - before["ended_ns"], 0) // period_ns
    return int(lost)


def _workers(run: Run, taken: Mapping[str, Any]) -> dict[int, int]:
    """By process, which loader worker it is."""
    rows = run.connection().execute(
        "SELECT value, args FROM spans WHERE category = 'flame' AND name = 'worker' "
        f"AND rank = {int(taken['rank'])} AND host = {quoted(taken['host'])}"
    )
    return {int(pid): int(json.loads(args)["worker"]) for pid, args in rows.fetchall() if args}


def _notes(path: str) -> list[dict[str, Any]]:
    """What was noted of each chunk; a torn last line of a run that was killed is left out."""
    found = []
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):
                    found.append(json.loads(line))
    except OSError:
        pass  # nothing was taken
    return found


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """``flame`` of a summary; see ``voirkit.instrument.Instrument``."""
    if not os.path.isdir(os.path.join(runs[0].path, FLAME_FOLDER)):
        return None
    part = flame_of(runs[0])
    return {"flame": part} if part else None
