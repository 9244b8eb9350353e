"""The calls of a run: of each rank that recorded some, with steps and phases; and how reports show them: which functions were called, how
often and for how long, their time by phase, what varies between steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from voirkit.analysis.document import Rank
from voirkit.analysis.nesting import Array
from voirkit.report import duration
from voirkit.report.sections import Amounts, Block, Column, Details, InText, OnPage, Section, Stacked, Table, Text
from voirkit.runs.opened import Run
from voirkit.runs.summary import PHASES
from voirkit_instruments.calls.analyse_records import TASKS, Call, Calls, Recorded, ranks_of, unknown, when


def recorded(run: Run) -> Iterator[Recorded]:
    """What each rank recorded, ascending by rank; one is to be used before the next is asked for."""
    ranks = ranks_of(run)
    places = when(run) if ranks else {}
    for rank in ranks:
        yield Recorded(run, rank, places.get(rank) or unknown())


def calls(run: Run) -> Iterator[Call]:
    """Each call of a run: by rank, then by thread and start (in chunks: see ``Recorded.chunks``)."""
    for rank in recorded(run):
        yield from rank.rows()


def calls_of(runs: Iterable[Run]) -> dict[str, Any] | None:
    """``calls`` of a summary for a run, or for the directories of its ranks; None if no call was recorded."""
    parts = [part for run in runs for ranks in run.map_ranks(_partials) for part in ranks]
    return figures(combine(parts)) if parts else None


def _partials(run: Run) -> list[Partial]:
    return [partial(rank) for rank in recorded(run)]


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """``calls`` of a summary; see ``voirkit.instrument.Instrument``."""
    own = summary.get("calls")  # what the run itself knows of it (``skipped``); a run of one rank has worked it all out at its end
    if own is not None and "by_function" in own and len(runs) == 1 and len(own.get("by_rank") or ()) == 1 == len(ranks_of(runs[0])):
        return None
    calls = calls_of(runs)
    return None if calls is None else {"calls": {**(own or {}), **calls}}


MOST = 50  # functions that a summary names
_S = 1e9


def figures(partial: Partial) -> dict[str, Any]:
    """The functions that were called, those with most time of their own first.

    Returns:
        ``functions`` and ``events`` (how many), ``errors``, ``self_s``, ``by_function`` (at most 50), ``by_phase``, ``by_rank``,
        ``by_step``: calls in a step of training, and the functions (``varying``) that are not called equally often in all of them.
    """
    ordered = sorted(partial.functions.items(), key=lambda item: (-item[1].self_ns, item[0]))
    by_phase = {phase: _phase(partial, phase) for phase in GROUPS}
    return {
        "functions": len(ordered),
        "events": sum(one.n for _, one in ordered),
        "errors": sum(one.errors for _, one in ordered),
        "self_s": sum(one.self_ns for _, one in ordered) / _S,
        "by_function": {".".join(name): _function(one) for name, one in ordered[:MOST]},
        "by_phase": {phase: row for phase, row in by_phase.items() if row["n"]},
        "by_rank": [{"rank": rank, "n": n, "errors": e, "self_s": ns / _S} for rank, (n, e, ns) in sorted(partial.ranks.items())],
        "by_step": _steps_of(partial, ordered),
    }


def _function(one: Function) -> dict[str, Any]:
    return {
        "n": one.n, "total_s": one.total_ns / _S, "self_s": one.self_ns / _S, "mean_s": one.all_ns / one.n / _S if one.n else 0.0,
        "max_s": one.most_ns / _S, "errors": one.errors, "a_step": counts(one.a_step),
        "phases": {phase: {"n": n, "self_s": ns / _S} for phase, (n, ns) in one.phases.items()},
    }  # fmt: skip


def _phase(partial: Partial, phase: str) -> dict[str, Any]:
    rows = [one.phases.get(phase, (0, 0)) for one in partial.functions.values()]
    return {"n": sum(n for n, _ in rows), "self_s": sum(ns for _, ns in rows) / _S}


def _steps_of(partial: Partial, ordered: list[tuple[tuple[str, str], Function]]) -> dict[str, Any] | None:
    found = counts(partial.a_step)
    if found is None:
        return None
    varying = [".".join(name) for name, one in ordered if len(one.a_step) > 1]
    return {"steps": sum(partial.a_step.values()), "calls": found, "varying": varying[:MOST]}


def counts(numbers: Counter[int]) -> dict[str, int] | None:
    """Median, least and most of counted numbers; None of none."""
    if not numbers:
        return None
    ordered = sorted(numbers)
    reached = np.cumsum([numbers[number] for number in ordered])
    median = ordered[int(np.searchsorted(reached, (reached[-1] + 1) // 2))]
    return {"median": median, "min": ordered[0], "max": ordered[-1]}


_TRAIN, _NO_STEP = TASKS.index("train"), TASKS.index("")
GROUPS = (*PHASES, "outside of steps")


@dataclass
class Function:
    """The calls of one function; times in nanoseconds."""

    n: int = 0
    errors: int = 0  # how many of them raised an exception
    total_ns: int = 0  # time in it; that of a call inside another one of the same function is counted once
    all_ns: int = 0  # the durations of all its calls
    self_ns: int = 0  # time in it without the recorded calls that it made
    most_ns: int = 0  # the longest call
    phases: dict[str, tuple[int, int]] = field(default_factory=dict)  # (number, self time) by phase, and outside of steps
    a_step: Counter[int] = field(default_factory=Counter)  # steps of training by its number of calls in the thread that trains

    def merge(self, other: Function) -> Function:
        """Both together; neither is changed."""
        phases = dict(self.phases)
        for phase, (n, own) in other.phases.items():
            known = phases.get(phase, (0, 0))
            phases[phase] = known[0] + n, known[1] + own
        return Function(
            self.n + other.n, self.errors + other.errors, self.total_ns + other.total_ns, self.all_ns + other.all_ns,
            self.self_ns + other.self_ns, max(self.most_ns, other.most_ns), phases, self.a_step + other.a_step,
        )  # fmt: skip


@dataclass
class Partial:
    """The calls of one rank, or of several added up."""

    functions: dict[tuple[str, str], Function] = field(default_factory=dict)  # by (module, name)
    ranks: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # number of calls, errors, and time without the calls inside
    a_step: Counter[int] = field(default_factory=Counter)  # steps of training by the number of calls in them, of the thread that trains


def partial(recorded: Recorded) -> Partial:
    """What a rank's calls come to."""
    size = len(recorded.functions)
    sums = {key: np.zeros(size, dtype=np.int64) for key in ("n", "errors", "total_ns", "all_ns", "self_ns", "most_ns")}
    phase_n, phase_ns = (np.zeros(size * len(GROUPS), dtype=np.int64) for _ in range(2))
    in_steps: list[tuple[Array, Array]] = []  # (function and step as one number, count)
    failed = recorded.failed
    trains = recorded.threads.index(recorded.trains) if recorded.trains in recorded.threads else -1
    for calls in recorded.chunks():
        function = calls.function
        phase = function * len(GROUPS) + np.where(calls.task == _NO_STEP, len(PHASES), calls.phase)
        outermost = ~calls.inside_itself
        sums["n"] += np.bincount(function, minlength=size)
        sums["errors"] += np.bincount(function[failed[calls.args]], minlength=size)
        sums["total_ns"] += _summed(function[outermost], calls.duration_ns[outermost], size)
        sums["all_ns"] += _summed(function, calls.duration_ns, size)
        sums["self_ns"] += _summed(function, calls.self_ns, size)
        np.maximum.at(sums["most_ns"], function, calls.duration_ns)
        phase_n += np.bincount(phase, minlength=len(phase_n))
        phase_ns += _summed(phase, calls.self_ns, len(phase_n))
        in_steps.append(_by_step(calls, trains, size))
    of_step, counts = _sum_counts(in_steps)
    found = Partial(a_step=_spread(of_step // max(size, 1), counts))
    steps = len(np.unique(of_step // max(size, 1)))
    called = _called(of_step % max(size, 1), counts, steps)
    for at, name in enumerate(recorded.functions):
        own = slice(at * len(GROUPS), (at + 1) * len(GROUPS))
        phases = {p: (int(n), int(ns)) for p, n, ns in zip(GROUPS, phase_n[own], phase_ns[own], strict=True) if n}
        found.functions[name] = Function(
            **{key: int(values[at]) for key, values in sums.items()}, phases=phases, a_step=called.get(at, Counter())
        )
    found.ranks[recorded.rank] = tuple(int(sums[key].sum()) for key in ("n", "errors", "self_ns"))  # type: ignore[assignment]  # three
    return found


def combine(partials: Iterable[Partial]) -> Partial:
    found = Partial()
    for one in partials:
        for name, function in one.functions.items():
            found.functions[name] = found.functions.get(name, Function()).merge(function)
        found.ranks.update(one.ranks)
        found.a_step += one.a_step
    return found


def _summed(which: Array, amounts: Array, size: int) -> Array:
    return np.bincount(which, weights=amounts, minlength=size).astype(np.int64)


def _by_step(calls: Calls, trains: int, size: int) -> tuple[Array, Array]:
    inside = (calls.task == _TRAIN) & (calls.thread == trains)
    found, counts = np.unique(calls.step[inside] * size + calls.function[inside], return_counts=True)
    return found, counts


def _sum_counts(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """The same over all chunks: a step may lie in two of them."""
    which = np.concatenate([found for found, _ in parts]) if parts else np.zeros(0, dtype=np.int64)
    counts = np.concatenate([count for _, count in parts]) if parts else np.zeros(0, dtype=np.int64)
    found, place = np.unique(which, return_inverse=True)
    return found, _summed(place.reshape(-1), counts, len(found))


def _spread(steps: Array, counts: Array) -> Counter[int]:
    found, place = np.unique(steps, return_inverse=True)
    return Counter(_summed(place.reshape(-1), counts, len(found)).tolist())


def _called(function: Array, counts: Array, steps: int) -> dict[int, Counter[int]]:
    """By function: in how many steps it was called so often; those without a call of it among them."""
    found: dict[int, Counter[int]] = {at: Counter() for at in range(int(function.max()) + 1 if len(function) else 0)}
    pairs, times = np.unique(np.stack([function, counts]), axis=1, return_counts=True)
    for at, n, steps_with in zip(*pairs.tolist(), times.tolist(), strict=True):
        found[at][n] = steps_with
    for of_function in found.values():
        if of_function and sum(of_function.values()) < steps:
            of_function[0] = steps - sum(of_function.values())
    return found


_MOST = 20  # functions that a terminal shows, and that are drawn
_NAMED = 4  # functions that vary between steps
_MANY_RANKS = 8
_HEADS = (
    Column("function", left=True, cut=True), Column("self"), Column("total", narrowest=42), Column("n", narrowest=52),
    Column("mean", narrowest=66), Column("longest", narrowest=100), Column("a step", narrowest=76), Column("errors"),
)  # fmt: skip
OUTSIDE = "outside of steps"

CallSummary = Mapping[str, Any]


def sections(calls: CallSummary, summary: Mapping[str, Any]) -> Iterator[Section]:
    functions = calls.get("by_function")
    if not functions:
        return
    cells = [_cells(name, row) for name, row in functions.items()]
    more = calls["functions"] - len(cells)
    title = f"all {len(cells)} functions" if more <= 0 else f"{len(cells)} functions; {more} more had less"
    first, *rest = _facts(calls)
    blocks: list[Block] = [first, InText([Table(_HEADS, cells, most=_MOST, total=calls["functions"])]), *rest]
    blocks.append(OnPage([*_by_phase(functions), Details(title, [Table(_HEADS, cells)])]))
    blocks.append(Amounts("time of their own", {short(name): row["self_s"] for name, row in functions.items()}, "s"))
    yield Section("calls", "Calls", blocks, "self is the time without the recorded calls inside, total with them.")


def _cells(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    a_step = row.get("a_step")
    often = "" if not a_step else f"{a_step['median']}" + (f" ({a_step['min']}..{a_step['max']})" if a_step["min"] < a_step["max"] else "")
    times = (duration(row["self_s"]), duration(row["total_s"]), f"{row['n']:,}", duration(row["mean_s"]), duration(row["max_s"]))
    return short(name), *times, often, f"{row['errors']:,}" if row["errors"] else ""


def _by_phase(functions: Mapping[str, Any]) -> Iterator[Block]:
    """The functions with most time of their own within steps."""
    rows = []
    for name, row in functions.items():
        phases = {phase: one["self_s"] for phase, one in row["phases"].items() if phase != OUTSIDE}
        if sum(phases.values()) > 0:
            rows.append((short(name), phases, duration(sum(phases.values()))))
    if rows:
        rows.sort(key=lambda row: -sum(row[1].values()))
        yield Stacked(rows[:_MOST], "s", "time of their own within steps, by phase", (*PHASES, OUTSIDE))


def short(name: str) -> str:
    """A function as people call it: ``F.relu``, ``optim.Adam.step``, ``nn.Linear.__call__``, ``data.DataLoader.__iter__``."""
    for long, brief in (
        ("torch.nn.functional.", "F."),
        ("torch.nn.modules.", "nn."),
        ("torch.optim.", "optim."),
        ("torch.utils.data.", "data."),
    ):
        if name.startswith(long):
            rest = name[len(long) :]
            return brief + (rest if brief == "F." else rest.partition(".")[2] or rest)
    return name


def _facts(calls: CallSummary) -> Iterator[Text]:
    """How many, of how many functions; their time by phase; what is not called equally often in all steps; ranks; a line each."""
    parts = [f"{calls['events']:,} calls of {calls['functions']:,} functions"]
    if calls["errors"]:
        parts.append(f"{calls['errors']:,} raised an exception")
    steps = calls.get("by_step")
    if steps:
        each = steps["calls"]
        spread = f" ({each['min']:,}..{each['max']:,})" if each["min"] < each["max"] else ""
        parts.append(f"{each['median']:,} a step{spread}")
    skipped = sum(why["n"] for why in (calls.get("skipped") or {}).values())
    if skipped:
        parts.append(f"{skipped:,} functions could not be watched")
    if calls.get("every", 1) > 1:
        parts.append(f"one step in {calls['every']:,} was recorded")
    yield _line("calls", parts)
    phases = dict(calls["by_phase"])
    outside, inside = phases.pop(OUTSIDE, None), sum(row["self_s"] for row in phases.values())
    ordered = sorted(phases.items(), key=lambda item: -item[1]["self_s"])
    parts = [f"{phase} {row['self_s'] / inside:.0%} ({row['n']:,})" for phase, row in ordered if inside]
    if parts:
        yield _line("their time by phase", [*parts, *([f"{OUTSIDE} {duration(outside['self_s'])} ({outside['n']:,})"] if outside else [])])
    if steps and steps["varying"]:
        rest = len(steps["varying"]) - _NAMED
        names = ", ".join(map(short, steps["varying"][:_NAMED]))
        yield Text(names + (f" and {rest} more" if rest > 0 else ""), "not called equally often in all steps")
    ranks = calls["by_rank"]
    if len(ranks) > 1:
        parts = [f"{row['rank']}: {row['n']:,} in {duration(row['self_s'])}" for row in ranks[:_MANY_RANKS]]
        yield _line("by rank", [*parts, *([f"{len(ranks) - _MANY_RANKS} more"] if len(ranks) > _MANY_RANKS else [])])


def _line(label: str, parts: list[str]) -> Text:
    return Text(" · ".join(parts), label)
