"""What the summary says of stacks, and the files for other tools; also of runs that were killed."""

from __future__ import annotations

import json
import linecache
import os
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from voirkit.errors import VoirkitError
from voirkit.runs.directory import read_json, write_json
from voirkit.runs.manifest import rank_and_world_size
from voirkit.runs.other_processes import has_settled
from voirkit.runs.parquet import quoted
from voirkit_instruments.stacks import FLAME_FOLDER
from voirkit_instruments.stacks.analyse_figures import clock_agreement, figures, tool_cost, write_files
from voirkit_instruments.stacks.analyse_frames import Frame, Stacks, place
from voirkit_instruments.stacks.analyse_join import StackCounts
from voirkit_instruments.stacks.analyse_py_spy import read_chrome_trace, read_raw, read_sampler
from voirkit_instruments.stacks.analyse_spans import RecordedSpans

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank
    from voirkit.runs.opened import Run
    from voirkit.runs.selection import Selection

SCHEMA = 1
_ERRORS = re.compile(r"Errors: (\d+)")
_NEVER = 1 << 62
_LONGEST = 80  # characters of a line of source
COUNTS = ".counts.json"


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """``flame`` of a summary, with ``flame/`` brought up to date; see ``voirkit.instrument.Instrument``."""
    run = runs[0]
    counts = counts_of(run)
    if not counts:
        return None
    if rank_and_world_size()[0] == 0:  # it writes what there is one of
        try:
            write_files(os.path.join(run.path, FLAME_FOLDER), counts)
        except OSError as exc:
            run.warnings.append(f"{FLAME_FOLDER} cannot be written to ({exc.strerror}).")
    return {"flame": figures(counts)}


def counts_of(run: Run) -> list[dict[str, Any]]:
    """The counts of each rank's stacks; made and kept if nobody has yet."""
    folder = os.path.join(run.path, FLAME_FOLDER)
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    counts = []
    for stem in [name.removesuffix(".json") for name in names if name.endswith(".json") and not name.endswith((COUNTS, "speedscope.json"))]:
        one = read_json(os.path.join(folder, f"{stem}{COUNTS}"), SCHEMA) or _count(run, folder, stem)
        if one is not None:
            counts.append(one)
    return counts


def chosen_counts(run: Run, selection: Selection, format: str) -> list[dict[str, Any]]:
    """The counts of the ranks that are to be exported.

    Raises:
        VoirkitError: There is nothing, or steps are chosen: stacks are counted over the whole run.
    """
    where = f"--format {format}"
    if selection.steps is not None:
        raise VoirkitError("stacks are counted over the whole run.", where=f"{where} --steps", next="Leave --steps out.")
    counts = counts_of(run)
    if not counts:
        raise VoirkitError("this run has no stacks.", where=where, next="Sample them: voirkit --flame SCRIPT")
    counts = [one for one in counts if selection.ranks is None or one["rank"] in selection.ranks]
    if not counts:
        raise VoirkitError("the chosen ranks have no stacks.", where=f"{where} --ranks", next="Choose others, or leave --ranks out.")
    return counts


def _count(run: Run, folder: str, stem: str) -> dict[str, Any] | None:
    """Count what was taken, and keep the counts."""
    record = read_json(os.path.join(folder, f"{stem}.json"), SCHEMA)
    if record is None or "tool" not in record or not has_settled(record, "taker_pid"):
        return None
    try:
        document = _document(run, folder, stem, record)
    except (OSError, ValueError, LookupError, TypeError) as exc:
        run.warnings.append(f"--flame: what {record.get('tool')} wrote cannot be counted ({type(exc).__name__}: {exc}).")
        return None
    try:
        write_json(os.path.join(folder, f"{stem}{COUNTS}"), document)
        for name in os.listdir(folder):
            if name.startswith(f"{stem}.") and name.endswith((".spy", ".sampled")):
                os.remove(os.path.join(folder, name))
    except OSError:
        pass  # the next reader of the run counts again
    return document


def _document(run: Run, folder: str, stem: str, record: Mapping[str, Any]) -> dict[str, Any]:
    stacks, period_ns = Stacks(), round(1e9 / record["rate_hz"])
    within_ns = record.get("attached_ns") or 0, record.get("ended_ns") or _NEVER
    recorded = RecordedSpans(run, record["rank"], record["host"])
    counts = StackCounts(recorded, stacks, period_ns, record["pid"], _workers(run, record), within_ns)
    notes = _notes(os.path.join(folder, f"{stem}.chunks"))
    if record["tool"] == "sampler":
        with open(os.path.join(folder, f"{stem}.sampled"), encoding="utf-8", errors="replace") as lines:
            counts.add_samples(record["pid"], read_sampler(lines, stacks))
    for note in notes:
        if note["file"] is not None:
            _add_file(counts, os.path.join(folder, note["file"]), note, bool(record["by_clock"]), stacks)
    known = {key: record.get(key) for key in ("tool", "version", "rate_hz", "gil", "native", "rank", "host", "cut", "by_clock")}
    processes = [(pid, kind, n) for pid, kinds in counts.processes.items() for kind, n in kinds.items()]
    return {
        "schema": SCHEMA,
        **known,
        "lost": _gaps(notes, period_ns) + (record.get("late") or 0) + counts.late,
        "own": counts.own,
        "clock": clock_agreement(counts.clocks),
        "cost": tool_cost(record, notes),
        "frames": [list(frame) for frame in stacks.frames],
        "stacks": [list(stack) for stack in stacks.stacks],
        "text": {place(frame.file, frame.line): text for frame in stacks.frames if (text := _source_line(frame))},
        "rows": [[*row, n] for row, n in sorted(counts.counts.items())],
        "processes": [{"pid": pid, "rank": record["rank"], "kind": kind, "samples": n} for pid, kind, n in processes],
    }


def _source_line(frame: Frame) -> str:
    """The text of a frame's line, as it is now: the program may be changed before anybody looks at the report."""
    return linecache.getline(frame.file, frame.line).strip()[:_LONGEST] if frame.line else ""


def _add_file(counts: StackCounts, path: str, note: Mapping[str, Any], by_clock: bool, stacks: Stacks) -> None:
    """Add what one file holds."""
    if by_clock:
        seen = {int(tid): at for tid, at in note["seen"].items()}
        threads = read_chrome_trace(path, stacks)
        counts.add_chunk(note["pid"], threads, note["began_ns"], note["ready_ns"] or note["began_ns"], note["until_ns"], seen)
        return
    with open(path, encoding="utf-8", errors="replace") as lines:
        counts.add_without_times(note["pid"], read_raw(lines, stacks))


def _gaps(notes: Sequence[Mapping[str, Any]], period_ns: int) -> int:
    """Samples that failed, or were not taken between a chunk of a process and the next, as py-spy was restarted, or was killed."""
    lost = sum(int(found[1]) for note in notes for line in note["said"] if (found := _ERRORS.search(line)))
    for pid in {note["pid"] for note in notes}:
        own = sorted((note for note in notes if note["pid"] == pid and note["file"]), key=lambda note: note["began_ns"])
        for before, after in pairwise(own):
            lost += max(after["ready_ns"] - before["ended_ns"], 0) // period_ns
    return int(lost)


def _workers(run: Run, record: Mapping[str, Any]) -> dict[int, int]:
    """By process, which loader worker it is."""
    rows = run.connection().execute(
        "SELECT value, args FROM spans WHERE category = 'flame' AND name = 'worker' "
        f"AND rank = {int(record['rank'])} AND host = {quoted(record['host'])}"
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
        pass  # nothing was recorded
    return found
