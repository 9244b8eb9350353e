"""What the summary says of stacks, and the files for other tools; also of runs that were killed.

Other tools read lines (flamegraph.pl, inferno) or a document (https://www.speedscope.app).
"""

from __future__ import annotations

import io
import json
import linecache
import os
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from voirkit.analysis.verdict.evidence import LEAST, Evidence
from voirkit.errors import VoirkitError
from voirkit.report.output import text
from voirkit.runs.directory import file_beside, kept_counts, record_stems
from voirkit.runs.manifest import rank_and_world_size
from voirkit.runs.opened import Run
from voirkit.runs.other_processes import has_settled
from voirkit.runs.parquet import quoted
from voirkit.runs.selection import Selection
from voirkit_instruments.stacks import FLAME_FOLDER
from voirkit_instruments.stacks.analyse_frames import MAIN, Frame, RecordedSpans, Stacks, label, place
from voirkit_instruments.stacks.analyse_join import Clock, StackCounts
from voirkit_instruments.stacks.analyse_samples import read_chrome_trace, read_raw, read_sampler

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank

SCHEMA = 1
_ERRORS = re.compile(r"Errors: (\d+)")
_NEVER = 1 << 62
_ASKS = re.compile(r"^(async )?for\b|\bnext\(")  # the line that asks for a batch says nothing of what is waited for
_LONGEST = 80  # characters of a line of source


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


def summarise_rank(runs: Sequence[Run], rank: int) -> dict[str, Any] | None:
    """The same of one rank."""
    own = [one for run in runs for one in counts_of(run) if one["rank"] == rank]
    return figures(own) if own else None


def counts_of(run: Run) -> list[dict[str, Any]]:
    """The counts of each rank's stacks; made and kept if nobody has yet."""
    stems = record_stems(os.path.join(run.path, FLAME_FOLDER))
    return [one for stem in stems if (one := kept_counts(stem, SCHEMA, partial(_count, run, stem))) is not None]


def _count(run: Run, stem: str, record: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[str]] | None:
    if "tool" not in record or not has_settled(record, "taker_pid"):
        return None
    try:
        return _document(run, stem, record), (".spy", ".sampled")
    except (OSError, ValueError, LookupError, TypeError) as exc:
        run.warnings.append(f"--flame: what {record.get('tool')} wrote cannot be counted ({type(exc).__name__}: {exc}).")
        return None


def _document(run: Run, stem: str, record: Mapping[str, Any]) -> dict[str, Any]:
    stacks, period_ns = Stacks(), round(1e9 / record["rate_hz"])
    within_ns = record.get("attached_ns") or 0, record.get("ended_ns") or _NEVER
    recorded = RecordedSpans(run, record["rank"], record["host"])
    counts = StackCounts(recorded, stacks, period_ns, record["pid"], _workers(run, record), within_ns)
    notes = _notes(f"{stem}.chunks")
    if record["tool"] == "sampler":
        with open(f"{stem}.sampled", encoding="utf-8", errors="replace") as lines:
            counts.add_samples(record["pid"], read_sampler(lines, stacks))
    for note in notes:
        if note["file"] is not None:
            _add_file(counts, file_beside(stem, note["file"]), note, bool(record["by_clock"]), stacks)
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
    if not frame.line or not frame.file.endswith(".py") or not os.path.isfile(frame.file):
        return ""  # a run may name any file of this machine: none but sources are read, and no pipe is waited for
    return shortened_source(linecache.getline(frame.file, frame.line).strip())


def shortened_source(line: str) -> str:
    """A line of source, or as much of it as ends with a statement or an argument; nothing of one that has no such end soon enough."""
    if len(line) <= _LONGEST:
        return line
    ends = [end for end in _ends_of_parts(line) if end <= _LONGEST]
    return f"{line[: ends[-1]]} …" if ends else ""


def _ends_of_parts(line: str) -> Iterator[int]:
    """Where a line has a comma or a semicolon that is no part of a string."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(line).readline):
            if token.string in (",", ";"):
                yield token.end[1]
    except (tokenize.TokenError, SyntaxError):
        pass  # the statement goes on in other lines


def _add_file(counts: StackCounts, path: str, note: Mapping[str, Any], by_clock: bool, stacks: Stacks) -> None:
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


SPEEDSCOPE, COLLAPSED = "speedscope.json", "collapsed.txt"
_MOST = 8  # functions, and lines, of a phase in a summary
_KINDS = ("main", "worker", "child")
_NO_PYTHON = "(no Python)"

Counts = Mapping[str, Any]


def clock_agreement(clocks: Sequence[Clock]) -> dict[str, Any]:
    """How well the two clocks are known to agree: of stacks that say a phase, how many were seen in it."""
    compared = sum(clock.compared for clock in clocks)
    return {
        "compared": compared,
        "agreement": sum(clock.same for clock in clocks) / compared if compared else None,
        "within_s": max((clock.within_ns for clock in clocks), default=0) / 1e9,
    }


def tool_cost(record: Mapping[str, Any], notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What it cost: time on a processor beside the program, and as a share of the time that it was there."""
    took_s = record.get("took_s") or max((note["took_s"] for note in notes), default=None)
    until = record.get("ended_ns") or max((note["ended_ns"] for note in notes), default=None)
    lasted_s = (until - record["began_ns"]) / 1e9 if until else None
    return {"tool_s": took_s, "of_a_processor": took_s / lasted_s if took_s and lasted_s else None}


def figures(counts: Sequence[Counts]) -> dict[str, Any]:
    """The key ``flame`` of a summary. Shares of phases are those of the threads that train among each other, and those of the loader
    workers' own."""
    phases: dict[str, Counter[str]] = {}
    lines: dict[str, Counter[str]] = {}
    kinds: Counter[str] = Counter()
    kind_of: dict[str, str] = {}
    others = 0
    for _, (phase, process, thread, _, n), frames in rows(counts):
        if thread != MAIN:
            others += n
            continue
        kind_of[phase] = kind = process.partition(" ")[0]
        kinds[kind] += n
        phases.setdefault(phase, Counter())[label(frames[-1], False) if frames else _NO_PYTHON] += n
        at = next((frame for frame in reversed(frames) if frame.line), None)
        if at is not None:
            lines.setdefault(phase, Counter())[place(at.file, at.line)] += n
    first = counts[0]
    texts = {at: text for one in counts for at, text in (one.get("text") or {}).items()}
    compared = sum(one["clock"]["compared"] for one in counts)
    same = sum(one["clock"]["compared"] * (one["clock"]["agreement"] or 0.0) for one in counts)
    return {
        **{key: first.get(key) for key in ("tool", "version", "rate_hz", "gil", "native", "by_clock", "cut")},
        "samples": kinds.total() + others, "other_threads": others, "lost": sum(one["lost"] for one in counts),
        "phases": {
            phase: {
                "samples": functions.total(), "share": functions.total() / kinds[kind_of[phase]], "of": kind_of[phase],
                "functions": _shares(functions, functions.total()), "lines": _shares(lines.get(phase, Counter()), functions.total()),
                "text": {at: texts[at] for at, _ in lines.get(phase, Counter()).most_common(_MOST) if at in texts},
            }
            for phase, functions in sorted(phases.items(), key=lambda pair: (_KINDS.index(kind_of[pair[0]]), -pair[1].total()))
        },
        "processes": [process for one in counts for process in one["processes"]],
        "clock": {
            "compared": compared, "agreement": same / compared if compared else None,
            "within_s": max(one["clock"]["within_s"] for one in counts),
        },
        "files": {"speedscope": f"flame/{SPEEDSCOPE}", "collapsed": f"flame/{COLLAPSED}"},
        "cost": {
            key: sum(one["cost"][key] or 0.0 for one in counts) for key in ("tool_s", "of_a_processor")
        },
    }  # fmt: skip


def _shares(counts: Counter[str], total: int) -> dict[str, float]:
    return {name: n / total for name, n in counts.most_common(_MOST)}


def rows(counts: Sequence[Counts]) -> Iterator[tuple[int, tuple[str, str, str, int, int], list[Frame]]]:
    """(which rank's, (phase, process, thread, stack, n), the frames from the outermost) of each row."""
    for at, one in enumerate(counts):
        frames = [Frame(*frame) for frame in one["frames"]]
        stacks = [[frames[number] for number in stack] for stack in one["stacks"]]
        for phase, process, thread, stack, n in one["rows"]:
            yield at, (phase, process, thread, stack, n), stacks[stack]


def process_name(one: Counts, process: str, several: bool) -> str:
    """What a process is called among those of all ranks."""
    return f"rank {one['rank']} {process}" if several else process


def write_files(folder: str, counts: Sequence[Counts]) -> None:
    """Write the files for other tools. Raises OSError: the disk is full, for instance."""
    for name, parts in FILES.items():
        path = os.path.join(folder, name)
        with open(f"{path}.tmp", "w", encoding="utf-8", errors="replace") as file:
            file.writelines(parts(counts))
        os.replace(f"{path}.tmp", path)


def collapsed(counts: Sequence[Counts]) -> Iterator[str]:
    """Lines of ``phase;process;[thread;]frames n``, as flame graph tools read them."""
    several = len(counts) > 1
    for at, (phase, process, thread, _, n), frames in rows(counts):
        parts = [phase, process_name(counts[at], process, several), *([f"thread {thread}"] if thread else []), *map(label, frames)]
        yield ";".join(part.replace(";", ",").replace("\n", " ") for part in parts) + f" {n}\n"


def speedscope(counts: Sequence[Counts]) -> dict[str, Any]:
    """A document of https://www.speedscope.app/file-format-schema.json: a profile for each thread, its phases as outermost frames. Stacks
    are in the order of phases, not of time: each stands once, with all the time that it was seen."""
    several = len(counts) > 1
    frames: dict[Frame, int] = {}
    profiles: dict[str, tuple[list[list[int]], list[float]]] = {}
    for at, (phase, process, thread, _, n), path in rows(counts):
        name = process_name(counts[at], process, several) + (f", thread {thread}" if thread else "")
        samples, weights = profiles.setdefault(name, ([], []))
        samples.append([frames.setdefault(frame, len(frames)) for frame in (Frame(phase, ""), *path)])
        weights.append(n / counts[at]["rate_hz"])
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "shared": {"frames": [{key: value for key, value in frame._asdict().items() if value or key == "name"} for frame in frames]},
        "profiles": [
            {"type": "sampled", "name": name, "unit": "seconds", "startValue": 0, "endValue": sum(weights), "samples": samples,
             "weights": weights}
            for name, (samples, weights) in sorted(profiles.items(), key=lambda pair: (pair[0] != "main", pair[0]))
        ],
        "name": "voirkit --flame", "exporter": "voirkit", "activeProfileIndex": 0,
    }  # fmt: skip


def _speedscope_text(counts: Sequence[Counts]) -> Iterator[str]:
    yield json.dumps(speedscope(counts)) + "\n"


FILES = {COLLAPSED: collapsed, SPEEDSCOPE: _speedscope_text}


def source_lines(flame: Mapping[str, Any], phases: Sequence[str]) -> list[Evidence]:
    """Lines with their text, and their shares of the first of the phases."""
    row = (flame.get("phases") or {}).get(phases[0]) or {}
    texts = row.get("text") or {}
    hot = [(place, share) for place, share in (row.get("lines") or {}).items() if share >= LEAST]
    found = sorted((line for line in hot if phases[0] != "wait" or not _ASKS.search(texts.get(line[0], ""))), key=lambda line: -line[1])
    return [Evidence(" ".join(filter(None, (place.rpartition("/")[2], texts.get(place)))), share) for place, share in found]


# formats of voirkit export


class StackFormat:
    """A format of ``voirkit export``. ``file``: the file in ``flame/`` that has it, of all ranks."""

    IS_TEXT = True

    def __init__(self, file: str) -> None:
        self.NAME, self.SUFFIX = file.partition(".")[0], f".{file}"
        self._parts = FILES[file]

    def write(self, run: Run, selection: Selection, target: str) -> list[str]:
        """Write one file; compressed with gzip if its name ends in ``.gz``. Raises VoirkitError: the run has no stacks, or not of what is
        chosen."""
        counts = chosen_counts(run, selection, self.NAME)
        with text(target) as put:
            for part in self._parts(counts):
                put(part)
        return [target]


SPEEDSCOPE_FORMAT, COLLAPSED_FORMAT = StackFormat(SPEEDSCOPE), StackFormat(COLLAPSED)


def chosen_counts(run: Run, selection: Selection, format: str) -> list[dict[str, Any]]:
    """The counts of the ranks that are to be exported. Raises VoirkitError: there is nothing, or steps are chosen: stacks are counted over
    the whole run."""
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
