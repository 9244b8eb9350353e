"""The ``flame`` part of a summary, and the files of stacks for other tools; also for runs that were
killed.

Other tools read lines (flamegraph.pl, inferno) or a JSON document (https://www.speedscope.app).
"""

from __future__ import annotations

import io
import json
import linecache
import os
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from voirkit.analysis.run_steps import read_steps
from voirkit.analysis.steps import NO_STEPS, Steps
from voirkit.analysis.verdict.evidence import LEAST, Evidence
from voirkit.errors import VoirkitError
from voirkit.report.output import text
from voirkit.runs.directory import file_beside, kept_counts, record_stems
from voirkit.runs.manifest import rank_and_world_size
from voirkit.runs.opened import Run
from voirkit.runs.other_processes import has_settled
from voirkit.runs.parquet import quoted
from voirkit.runs.selection import Selection
from voirkit.runs.summary import STARTUP
from voirkit_instruments.stacks import FLAME_FOLDER
from voirkit_instruments.stacks.analyse_frames import (
    MAIN,
    Frame,
    RecordedSpans,
    Stacks,
    label,
    place,
)
from voirkit_instruments.stacks.analyse_join import Clock, StackCounts
from voirkit_instruments.stacks.analyse_samples import read_chrome_trace, read_raw, read_sampler

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank

SCHEMA = 1
_ERRORS = re.compile(r"Errors: (\d+)")
_NEVER = 1 << 62
# Lines that do not explain why a phase takes long: for waiting, the line that requests a batch; for
# the startup, an import statement.
_SAYS_NOTHING = {
    "wait": re.compile(r"^(async )?for\b|\bnext\("),
    STARTUP: re.compile(r"^(import|from)\b"),
}
_FEW_SAMPLES = 10  # minimum number of samples of a phase for listing its lines
_LONGEST = 80  # maximum number of characters shown of a line of source


def summarise(
    runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return ``flame`` of a summary, and bring the files in ``flame/`` up to date; see
    ``voirkit.instrument.Instrument``."""
    run = runs[0]
    counts = counts_of(run, ranks)
    if not counts:
        return None
    if rank_and_world_size()[0] == 0:  # only rank 0 writes the files of the run
        try:
            write_files(os.path.join(run.path, FLAME_FOLDER), counts)
        except OSError as exc:
            run.warnings.append(f"{FLAME_FOLDER} cannot be written to ({exc.strerror}).")
    return {"flame": figures(counts)}


def summarise_rank(runs: Sequence[Run], rank: int) -> dict[str, Any] | None:
    """Return the section ``flame`` of one rank's summary; None if no stacks of the rank were
    counted."""
    all_counts = [counts for run in runs for counts in counts_of(run)]
    of_rank = [counts for counts in all_counts if counts["rank"] == rank]
    return figures(of_rank) if of_rank else None


def counts_of(run: Run, ranks: Sequence[Rank] | None = None) -> list[dict[str, Any]]:
    """Return the counts of each rank's stacks; they are made and kept if they do not exist yet.
    ``ranks`` are the ranks of the run, if they have been read."""
    all_counts = []
    for stem in record_stems(os.path.join(run.path, FLAME_FOLDER)):
        counts = kept_counts(stem, SCHEMA, partial(_count, run, ranks, stem))
        if counts is not None:
            all_counts.append(counts)
    return all_counts


def _count(
    run: Run, ranks: Sequence[Rank] | None, stem: str, record: Mapping[str, Any]
) -> tuple[dict[str, Any], Sequence[str]] | None:
    """Return (the counts of a record, the suffixes of its files that are no longer needed); None if
    the stacks cannot be counted yet or at all."""
    if "tool" not in record or not has_settled(record, "taker_pid"):
        return None
    try:
        process = record["host"], record["pid"]
        steps = _steps_of(read_steps(run) if ranks is None else ranks, process)
        return _document(run, stem, record, steps), (".spy", ".sampled")
    except (OSError, ValueError, LookupError, TypeError) as exc:
        run.warnings.append(
            f"--flame: what {record.get('tool')} wrote cannot be counted ({type(exc).__name__}:"
            f" {exc})."
        )
        return None


def _steps_of(ranks: Sequence[Rank], process: tuple[str, int]) -> Steps:
    """Return the steps of a process (host, pid); no steps if the process trains nothing, or in
    several threads at once."""
    steps = [rank.steps for rank in ranks if process in rank.processes]
    return steps[0] if len(steps) == 1 else NO_STEPS


def _document(run: Run, stem: str, record: Mapping[str, Any], steps: Steps) -> dict[str, Any]:
    rank = record["rank"]
    stacks = Stacks()
    period_ns = round(1e9 / record["rate_hz"])
    notes = _notes(f"{stem}.chunks")
    spans = RecordedSpans(run, rank, record["host"])
    pid = record["pid"]
    attached_ns, ended_ns = record.get("attached_ns") or 0, record.get("ended_ns") or _NEVER
    counts = StackCounts(
        spans, stacks, period_ns, pid, _workers(run, record), (attached_ns, ended_ns), steps
    )
    if record["tool"] == "sampler":
        with open(f"{stem}.sampled", encoding="utf-8", errors="replace") as lines:
            counts.add_samples(pid, read_sampler(lines, stacks))
    for note in notes:
        if note["file"] is not None:
            path = file_beside(stem, note["file"])
            _add_file(counts, path, note, bool(record["by_clock"]), stacks)
    settings = ("tool", "version", "rate_hz", "gil", "native", "rank", "host", "cut", "by_clock")
    processes = [
        {"pid": pid, "rank": rank, "kind": kind, "samples": n}
        for pid, kinds in counts.processes.items()
        for kind, n in kinds.items()
    ]
    n_late = record.get("late") or 0
    document: dict[str, Any] = {"schema": SCHEMA, **{key: record.get(key) for key in settings}}
    document["lost"] = _gaps(notes, period_ns) + n_late + counts.late
    document["own"] = counts.own
    document["clock"] = clock_agreement(counts.clocks)
    document["cost"] = tool_cost(record, notes)
    document["frames"] = list(map(list, stacks.frames))
    document["stacks"] = list(map(list, stacks.stacks))
    document["text"] = _source_lines(stacks.frames)
    document["rows"] = [[*row, n] for row, n in sorted(counts.counts.items())]
    document["processes"] = processes
    return document


def _source_lines(frames: Iterable[Frame]) -> dict[str, str]:
    """Return a dict from place to the source text of the line, for the lines of frames."""
    texts = {}
    for frame in frames:
        source = _source_line(frame)
        if source:
            texts[place(frame.file, frame.line)] = source
    return texts


def _source_line(frame: Frame) -> str:
    """Return the source text of a frame's line as it is now: the program may be changed before the
    report is read."""
    if not frame.line or not frame.file.endswith(".py") or not os.path.isfile(frame.file):
        # A run may name any file on this machine. Only regular Python files are read: reading a
        # pipe could block.
        return ""
    return shortened_source(linecache.getline(frame.file, frame.line).strip())


def shortened_source(line: str) -> str:
    """Return a line of source. A long line is cut after a statement or an argument; the result is
    empty if neither ends early enough."""
    if len(line) <= _LONGEST:
        return line
    ends = [end for end in _ends_of_parts(line) if end <= _LONGEST]
    return f"{line[: ends[-1]]} …" if ends else ""


def _ends_of_parts(line: str) -> Iterator[int]:
    """Yield the end positions of the commas and semicolons in a line, except those in strings."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(line).readline):
            if token.string in (",", ";"):
                yield token.end[1]
    except (tokenize.TokenError, SyntaxError):
        pass  # the statement continues on other lines


def _add_file(
    counts: StackCounts, path: str, note: Mapping[str, Any], by_clock: bool, stacks: Stacks
) -> None:
    pid = note["pid"]
    if not by_clock:
        with open(path, encoding="utf-8", errors="replace") as lines:
            counts.add_without_times(pid, read_raw(lines, stacks))
        return
    last_seen = {int(tid): seen_ns for tid, seen_ns in note["seen"].items()}
    start_ns = note["began_ns"]
    ready_ns = note["ready_ns"] or start_ns
    threads = read_chrome_trace(path, stacks)
    counts.add_chunk(pid, threads, start_ns, ready_ns, note["until_ns"], last_seen)


def _gaps(notes: Sequence[Mapping[str, Any]], period_ns: int) -> int:
    """Return the number of samples that failed, or were missed between two chunks of a process
    because py-spy was restarted or killed."""
    n_failed = 0
    chunks: dict[int, list[Mapping[str, Any]]] = {}
    for note in notes:
        for line in note["said"]:
            match = _ERRORS.search(line)
            if match:
                n_failed += int(match[1])
        if note["file"]:
            chunks.setdefault(note["pid"], []).append(note)
    n_missed = 0
    for of_process in chunks.values():
        of_process.sort(key=lambda note: note["began_ns"])
        for before, after in pairwise(of_process):
            n_missed += max(after["ready_ns"] - before["ended_ns"], 0) // period_ns
    return int(n_failed + n_missed)


def _workers(run: Run, record: Mapping[str, Any]) -> dict[int, int]:
    """Return a dict from pid to the number of each loader worker."""
    rows = run.connection().execute(
        "SELECT value, args FROM spans WHERE category = 'flame' AND name = 'worker' "
        f"AND rank = {int(record['rank'])} AND host = {quoted(record['host'])}"
    )
    return {int(pid): int(json.loads(args)["worker"]) for pid, args in rows.fetchall() if args}


def _notes(path: str) -> list[dict[str, Any]]:
    """Return the notes on each chunk, without an incomplete last line of a run that was killed."""
    notes = []
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):
                    notes.append(json.loads(line))
    except OSError:
        pass  # nothing was recorded
    return notes


SPEEDSCOPE, COLLAPSED = "speedscope.json", "collapsed.txt"
_MOST = 8  # maximum number of functions, and of lines, of a phase in a summary
_KINDS = ("main", "worker", "child")
_NO_PYTHON = "(no Python)"

Counts = Mapping[str, Any]


def clock_agreement(clocks: Sequence[Clock]) -> dict[str, Any]:
    """Return how well py-spy's clock agrees with the run's: the share of the compared stacks that
    show the phase in which they were seen."""
    compared = sum(clock.compared for clock in clocks)
    return {
        "compared": compared,
        "agreement": sum(clock.same for clock in clocks) / compared if compared else None,
        "within_s": max((clock.within_ns for clock in clocks), default=0) / 1e9,
    }


def tool_cost(record: Mapping[str, Any], notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the cost of sampling: the CPU time of the tool, and that time's share of the time that
    the tool ran."""
    took_s = record.get("took_s") or max((note["took_s"] for note in notes), default=None)
    end_ns = record.get("ended_ns") or max((note["ended_ns"] for note in notes), default=None)
    share = None
    if end_ns:
        lasted_s = (end_ns - record["began_ns"]) / 1e9
        share = took_s / lasted_s if took_s and lasted_s else None
    return {"tool_s": took_s, "of_a_processor": share}


def figures(counts: Sequence[Counts]) -> dict[str, Any]:
    """Return ``flame`` of a summary. The share of a phase is its share of the samples of the
    threads that train or load, in the same kind of process: training, loader workers, or other
    children."""
    first = counts[0]
    phases: dict[str, _PhaseCounts] = {}
    kinds: Counter[str] = Counter()
    n_others = 0
    for row in rows(counts):
        if row.thread != MAIN:
            n_others += row.n
            continue
        if row.phase not in phases:
            phases[row.phase] = _PhaseCounts()
        phases[row.phase].add(row)
        kinds[phases[row.phase].kind] += row.n
    texts: dict[str, str] = {}
    for of_rank in counts:
        texts.update(of_rank.get("text") or {})
    phase_rows: dict[str, Any] = {}
    for kind in _KINDS:
        of_kind = [item for item in phases.items() if item[1].kind == kind]
        for name, phase in sorted(of_kind, key=lambda item: -item[1].functions.total()):
            phase_rows[name] = phase.document(kinds[kind], texts)
    settings = ("tool", "version", "rate_hz", "gil", "native", "by_clock", "cut")
    document = {key: first.get(key) for key in settings}
    document["samples"] = kinds.total() + n_others
    document["other_threads"] = n_others
    document["lost"] = sum(of_rank["lost"] for of_rank in counts)
    document["phases"] = phase_rows
    document["processes"] = [process for of_rank in counts for process in of_rank["processes"]]
    document["clock"] = _merged_clocks([of_rank["clock"] for of_rank in counts])
    document["files"] = {"speedscope": f"flame/{SPEEDSCOPE}", "collapsed": f"flame/{COLLAPSED}"}
    document["cost"] = _summed_costs([of_rank["cost"] for of_rank in counts])
    return document


class CountedStack(NamedTuple):
    """A row of a rank's counts: a stack and how often it was seen."""

    rank_counts: Counts  # the counts from which the row is taken
    phase: str
    process: str
    thread: str
    frames: list[Frame]  # outermost first
    n: int


class _PhaseCounts:
    """Counts of the innermost functions and lines of a phase. ``kind`` is the kind of the processes
    in which the phase was seen."""

    def __init__(self) -> None:
        self.kind = ""
        self.functions: Counter[str] = Counter()
        self.lines: Counter[str] = Counter()

    def add(self, row: CountedStack) -> None:
        """Count a stack."""
        self.kind = row.process.partition(" ")[0]
        function = label(row.frames[-1], False) if row.frames else _NO_PYTHON
        self.functions[function] += row.n
        for frame in reversed(row.frames):
            if frame.line:
                self.lines[place(frame.file, frame.line)] += row.n
                return

    def document(self, n_of_kind: int, texts: Mapping[str, str]) -> dict[str, Any]:
        """Return the entry of the phase in a summary. ``n_of_kind`` is the number of samples of its
        kind of process; ``texts`` holds source lines by place."""
        n = self.functions.total()
        most_seen = [line for line, _ in self.lines.most_common(_MOST)]
        return {
            "samples": n,
            "share": n / n_of_kind,
            "of": self.kind,
            "functions": _shares(self.functions, n),
            "lines": _shares(self.lines, n),
            "text": {line: texts[line] for line in most_seen if line in texts},
        }


def _summed_costs(costs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {key: sum(cost[key] or 0.0 for cost in costs) for key in ("tool_s", "of_a_processor")}


def _merged_clocks(clocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine the ``clock_agreement`` of several ranks into one."""
    compared = sum(clock["compared"] for clock in clocks)
    same = sum(clock["compared"] * (clock["agreement"] or 0.0) for clock in clocks)
    return {
        "compared": compared,
        "agreement": same / compared if compared else None,
        "within_s": max(clock["within_s"] for clock in clocks),
    }


def _shares(counts: Counter[str], total: int) -> dict[str, float]:
    return {name: n / total for name, n in counts.most_common(_MOST)}


def rows(counts: Sequence[Counts]) -> Iterator[CountedStack]:
    """Yield the rows of all ranks."""
    for of_rank in counts:
        frames = [Frame(*frame) for frame in of_rank["frames"]]
        stacks = [[frames[number] for number in stack] for stack in of_rank["stacks"]]
        for phase, process, thread, stack, n in of_rank["rows"]:
            yield CountedStack(of_rank, phase, process, thread, stacks[stack], n)


def process_name(counts: Counts, process: str, several: bool) -> str:
    """Return the name of a process; with its rank if there are several ranks."""
    return f"rank {counts['rank']} {process}" if several else process


def write_files(folder: str, counts: Sequence[Counts]) -> None:
    """Write the files for other tools. Raises OSError: for instance, the disk is full."""
    for name, parts in FILES.items():
        path = os.path.join(folder, name)
        with open(f"{path}.tmp", "w", encoding="utf-8", errors="replace") as file:
            file.writelines(parts(counts))
        os.replace(f"{path}.tmp", path)


def collapsed(counts: Sequence[Counts]) -> Iterator[str]:
    """Yield lines ``phase;process;[thread;]frames n``, as flame graph tools read them."""
    several = len(counts) > 1
    for row in rows(counts):
        parts = [row.phase, process_name(row.rank_counts, row.process, several)]
        if row.thread:
            parts.append(f"thread {row.thread}")
        parts += map(label, row.frames)
        line = ";".join(part.replace(";", ",").replace("\n", " ") for part in parts)
        yield f"{line} {row.n}\n"


def speedscope(counts: Sequence[Counts]) -> dict[str, Any]:
    """Return a document of https://www.speedscope.app/file-format-schema.json: a profile for each
    thread, with phases as the outermost frames. Stacks are ordered by phase, not by time: each
    occurs once, with all the time in which it was seen."""
    several = len(counts) > 1
    frames: dict[Frame, int] = {}
    profiles: dict[str, tuple[list[list[int]], list[float]]] = {}
    for row in rows(counts):
        name = process_name(row.rank_counts, row.process, several)
        if row.thread:
            name += f", thread {row.thread}"
        stack = [Frame(row.phase, ""), *row.frames]
        samples, weights = profiles.setdefault(name, ([], []))
        samples.append([frames.setdefault(frame, len(frames)) for frame in stack])
        weights.append(row.n / row.rank_counts["rate_hz"])
    main_first = sorted(profiles.items(), key=lambda pair: (pair[0] != "main", pair[0]))
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "shared": {"frames": [_speedscope_frame(frame) for frame in frames]},
        "profiles": [
            {
                "type": "sampled",
                "name": name,
                "unit": "seconds",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": samples,
                "weights": weights,
            }
            for name, (samples, weights) in main_first
        ],
        "name": "voirkit --flame",
        "exporter": "voirkit",
        "activeProfileIndex": 0,
    }


def _speedscope_frame(frame: Frame) -> dict[str, Any]:
    return {key: value for key, value in frame._asdict().items() if value or key == "name"}


def _speedscope_text(counts: Sequence[Counts]) -> Iterator[str]:
    yield json.dumps(speedscope(counts)) + "\n"


FILES = {COLLAPSED: collapsed, SPEEDSCOPE: _speedscope_text}


def source_lines(flame: Mapping[str, Any], phases: Sequence[str]) -> list[Evidence]:
    """Return source lines with their text and shares, for the first of the phases that has any."""
    for phase in phases:
        lines = _hot_lines(flame, phase)
        if lines:
            return lines
    return []


def _hot_lines(flame: Mapping[str, Any], phase: str) -> list[Evidence]:
    row = (flame.get("phases") or {}).get(phase) or {}
    if row.get("samples", _FEW_SAMPLES) < _FEW_SAMPLES:
        return []
    texts = row.get("text") or {}
    says_nothing = _SAYS_NOTHING.get(phase)
    lines = []
    for line, share in (row.get("lines") or {}).items():
        source = texts.get(line, "")
        if share < LEAST or (says_nothing is not None and says_nothing.search(source)):
            continue
        name = line.rpartition("/")[2]
        lines.append(Evidence(" ".join(word for word in (name, source) if word), share))
    return sorted(lines, key=lambda evidence: -evidence.share)


# formats of voirkit export


class StackFormat:
    """A format of ``voirkit export`` for stacks. ``file`` is the file in ``flame/`` that holds the
    stacks of all ranks in this format."""

    IS_TEXT = True

    def __init__(self, file: str) -> None:
        self.NAME = file.partition(".")[0]
        self.SUFFIX = f".{file}"
        self._parts = FILES[file]

    def write(self, run: Run, selection: Selection, target: str) -> list[str]:
        """Write one file, compressed with gzip if its name ends in ``.gz``. Raises VoirkitError:
        the run has no stacks, or none of the selection."""
        counts = chosen_counts(run, selection, self.NAME)
        with text(target) as write:
            for part in self._parts(counts):
                write(part)
        return [target]


SPEEDSCOPE_FORMAT, COLLAPSED_FORMAT = StackFormat(SPEEDSCOPE), StackFormat(COLLAPSED)


def chosen_counts(run: Run, selection: Selection, format: str) -> list[dict[str, Any]]:
    """Return the counts of the ranks to export. Raises VoirkitError: there are none, or steps are
    selected, although stacks are counted over the whole run."""
    where = f"--format {format}"
    if selection.steps is not None:
        raise VoirkitError(
            "stacks are counted over the whole run.",
            where=f"{where} --steps",
            next="Leave --steps out.",
        )
    counts = counts_of(run)
    if not counts:
        raise VoirkitError(
            "this run has no stacks.", where=where, next="Sample them: voirkit --flame SCRIPT"
        )
    if selection.ranks is not None:
        counts = [of_rank for of_rank in counts if of_rank["rank"] in selection.ranks]
    if not counts:
        raise VoirkitError(
            "the chosen ranks have no stacks.",
            where=f"{where} --ranks",
            next="Choose others, or leave --ranks out.",
        )
    return counts
