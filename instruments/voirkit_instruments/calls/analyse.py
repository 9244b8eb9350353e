"""Summary and report of a run's recorded calls: which functions were called, how often and for how
long, their time by phase, and what varies between steps.

``recorded`` and ``calls`` yield the calls of each rank, with the step and phase of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from voirkit.analysis.document import Rank
from voirkit.analysis.nesting import Array
from voirkit.phase_table import PHASES
from voirkit.report import duration
from voirkit.report.sections import (
    Amounts,
    Block,
    Column,
    Details,
    InText,
    OnPage,
    Section,
    Stacked,
    Table,
    Text,
)
from voirkit.runs.opened import Run
from voirkit_instruments.calls.analyse_records import (
    TASKS,
    Call,
    Calls,
    Recorded,
    ranks_of,
    unknown,
    when,
)


def recorded(run: Run) -> Iterator[Recorded]:
    """Yield the recorded calls of each rank, in ascending order of rank. Use each item before
    asking for the next."""
    ranks = ranks_of(run)
    steps = when(run) if ranks else {}
    for rank in ranks:
        yield Recorded(run, rank, steps.get(rank) or unknown())


def calls(run: Run) -> Iterator[Call]:
    """Yield each call of a run, by rank, then by thread and start within a chunk (see
    ``Recorded.chunks``)."""
    for rank in recorded(run):
        yield from rank.rows()


def calls_of(runs: Iterable[Run]) -> dict[str, Any] | None:
    """Return the ``calls`` section of a summary, for one run or for the directories of its ranks;
    None if no call was recorded."""
    parts = [part for run in runs for ranks in run.map_ranks(_partials) for part in ranks]
    return figures(combine(parts)) if parts else None


def _partials(run: Run) -> list[Partial]:
    return [partial(rank) for rank in recorded(run)]


def summarise(
    runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the ``calls`` section of a summary; see ``voirkit.instrument.Instrument``."""
    # Values that only the run's own summary has, and the records lack (``skipped``), are kept. A
    # run of one rank has already summarised its calls at its end, so nothing is left to do.
    known_calls = summary.get("calls") or {}
    known_ranks = known_calls.get("by_rank") or ()
    has_one_rank = len(runs) == len(known_ranks) == len(ranks_of(runs[0])) == 1
    if "by_function" in known_calls and has_one_rank:
        return None
    calls = calls_of(runs)
    return None if calls is None else {"calls": {**known_calls, **calls}}


MOST = 50  # largest number of functions that a summary names
_S = 1e9


def figures(partial: Partial) -> dict[str, Any]:
    """Return the figures of a summary about the functions that were called, ordered by self time,
    longest first.

    Returns:
        ``functions`` and ``events`` (numbers of functions and calls), ``errors``, ``self_s``,
        ``by_function`` (at most 50), ``by_phase``, ``by_rank``, ``by_step``. ``by_step`` covers
        the calls in training steps; its ``varying`` names the functions that are not called
        equally often in all of these steps.
    """
    ordered = sorted(partial.functions.items(), key=lambda item: (-item[1].self_ns, item[0]))
    functions = [function for _, function in ordered]
    by_phase = {phase: _phase_row(functions, phase) for phase in GROUPS}
    by_rank = [
        {"rank": rank, "n": n, "errors": errors, "self_s": self_ns / _S}
        for rank, (n, errors, self_ns) in sorted(partial.ranks.items())
    ]
    by_function = {".".join(name): _function_row(function) for name, function in ordered[:MOST]}
    events = sum(function.n for function in functions)
    errors = sum(function.errors for function in functions)
    self_ns = sum(function.self_ns for function in functions)
    return {
        "functions": len(functions),
        "events": events,
        "errors": errors,
        "self_s": self_ns / _S,
        "by_function": by_function,
        "by_phase": {phase: row for phase, row in by_phase.items() if row["n"]},
        "by_rank": by_rank,
        "by_step": _step_row(partial, ordered),
    }


def _function_row(function: Function) -> dict[str, Any]:
    phases = {
        phase: {"n": n, "self_s": self_ns / _S} for phase, (n, self_ns) in function.phases.items()
    }
    return {
        "n": function.n,
        "total_s": function.total_ns / _S,
        "self_s": function.self_ns / _S,
        "mean_s": function.all_ns / function.n / _S if function.n else 0.0,
        "max_s": function.most_ns / _S,
        "errors": function.errors,
        "a_step": counts(function.a_step),
        "phases": phases,
    }


def _phase_row(functions: Iterable[Function], phase: str) -> dict[str, Any]:
    rows = [function.phases.get(phase, (0, 0)) for function in functions]
    return {"n": sum(n for n, _ in rows), "self_s": sum(self_ns for _, self_ns in rows) / _S}


def _step_row(
    partial: Partial, ordered: list[tuple[tuple[str, str], Function]]
) -> dict[str, Any] | None:
    calls = counts(partial.a_step)
    if calls is None:
        return None
    varying = [".".join(name) for name, function in ordered if len(function.a_step) > 1]
    return {"steps": sum(partial.a_step.values()), "calls": calls, "varying": varying[:MOST]}


def counts(numbers: Counter[int]) -> dict[str, int] | None:
    """Return the median, minimum and maximum of the counted numbers; None if nothing was
    counted."""
    if not numbers:
        return None
    ordered = sorted(numbers)
    cumulative = np.cumsum([numbers[number] for number in ordered])
    middle = (cumulative[-1] + 1) // 2
    median = ordered[int(np.searchsorted(cumulative, middle))]
    return {"median": median, "min": ordered[0], "max": ordered[-1]}


_TRAIN, _NO_STEP = TASKS.index("train"), TASKS.index("")
GROUPS = (*PHASES, "outside of steps")


@dataclass
class Function:
    """Statistics of the calls of one function; times in nanoseconds."""

    n: int = 0
    errors: int = 0  # number of calls that raised an exception
    # total duration, without calls inside another call of the same function (recursion)
    total_ns: int = 0
    all_ns: int = 0  # total duration of all calls
    self_ns: int = 0  # total duration without the recorded calls inside each call
    most_ns: int = 0  # duration of the longest call
    # by phase, or "outside of steps": (number of calls, self time)
    phases: dict[str, tuple[int, int]] = field(default_factory=dict)
    # histogram {number of calls in one training step: number of steps with so many calls}; only
    # calls of the training thread
    a_step: Counter[int] = field(default_factory=Counter)

    def merge(self, other: Function) -> Function:
        """Return the sum of this and ``other``; neither is changed."""
        phases = dict(self.phases)
        for phase, (n, self_ns) in other.phases.items():
            n_before, self_ns_before = phases.get(phase, (0, 0))
            phases[phase] = n_before + n, self_ns_before + self_ns
        return Function(
            self.n + other.n,
            self.errors + other.errors,
            self.total_ns + other.total_ns,
            self.all_ns + other.all_ns,
            self.self_ns + other.self_ns,
            max(self.most_ns, other.most_ns),
            phases,
            self.a_step + other.a_step,
        )


@dataclass
class Partial:
    """Statistics of the calls of one rank, or the sum over several ranks."""

    functions: dict[tuple[str, str], Function] = field(default_factory=dict)  # by (module, name)
    # by rank: number of calls, number of errors, self time in ns
    ranks: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    # histogram {number of calls of all functions in one training step: number of steps with so many
    # calls}; only calls of the training thread
    a_step: Counter[int] = field(default_factory=Counter)


def partial(recorded: Recorded) -> Partial:
    """Add up the calls of one rank."""
    size = len(recorded.functions)
    sums = {
        key: np.zeros(size, dtype=np.int64)
        for key in ("n", "errors", "total_ns", "all_ns", "self_ns", "most_ns")
    }
    phase_n, phase_ns = (np.zeros(size * len(GROUPS), dtype=np.int64) for _ in range(2))
    # for each chunk: (step * size + function, number of calls)
    in_steps: list[tuple[Array, Array]] = []
    failed = recorded.failed
    trains = recorded.threads.index(recorded.trains) if recorded.trains in recorded.threads else -1
    for calls in recorded.chunks():
        function = calls.function
        group = np.where(calls.task == _NO_STEP, len(PHASES), calls.phase)
        phase = function * len(GROUPS) + group
        outermost = ~calls.inside_itself
        sums["n"] += np.bincount(function, minlength=size)
        sums["errors"] += np.bincount(function[failed[calls.args]], minlength=size)
        sums["total_ns"] += _sum_by(function[outermost], calls.duration_ns[outermost], size)
        sums["all_ns"] += _sum_by(function, calls.duration_ns, size)
        sums["self_ns"] += _sum_by(function, calls.self_ns, size)
        np.maximum.at(sums["most_ns"], function, calls.duration_ns)
        phase_n += np.bincount(phase, minlength=len(phase_n))
        phase_ns += _sum_by(phase, calls.self_ns, len(phase_n))
        in_steps.append(_count_in_steps(calls, trains, size))
    step_and_function, counts = _add_counts(in_steps)
    step, function = np.divmod(step_and_function, max(size, 1))
    n_steps = len(np.unique(step))
    a_step = _steps_by_calls(function, counts, n_steps)
    result = Partial(a_step=_steps_by_all_calls(step, counts))
    for i, name in enumerate(recorded.functions):
        groups = slice(i * len(GROUPS), (i + 1) * len(GROUPS))
        rows = zip(GROUPS, phase_n[groups].tolist(), phase_ns[groups].tolist(), strict=True)
        phases = {phase_name: (n, self_ns) for phase_name, n, self_ns in rows if n}
        of_function = {key: int(values[i]) for key, values in sums.items()}
        steps = a_step.get(i, Counter())
        result.functions[name] = Function(**of_function, phases=phases, a_step=steps)
    n, errors, self_ns = (int(sums[key].sum()) for key in ("n", "errors", "self_ns"))
    result.ranks[recorded.rank] = n, errors, self_ns
    return result


def combine(partials: Iterable[Partial]) -> Partial:
    result = Partial()
    for partial in partials:
        for name, function in partial.functions.items():
            result.functions[name] = result.functions.get(name, Function()).merge(function)
        result.ranks.update(partial.ranks)
        result.a_step += partial.a_step
    return result


def _sum_by(indices: Array, amounts: Array, size: int) -> Array:
    return np.bincount(indices, weights=amounts, minlength=size).astype(np.int64)


def _count_in_steps(calls: Calls, trains: int, size: int) -> tuple[Array, Array]:
    """Count the calls of each function in each training step, in the training thread.

    Returns:
        The pairs of step and function that occur, each as the number ``step * size + function``,
        and the number of calls of each pair.
    """
    inside = (calls.task == _TRAIN) & (calls.thread == trains)
    numbers = calls.step[inside] * size + calls.function[inside]
    step_and_function, n_calls = np.unique(numbers, return_counts=True)
    return step_and_function, n_calls


def _add_counts(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Add up the counts of all chunks; the calls of one step may be in two chunks."""
    none = np.zeros(0, dtype=np.int64)
    numbers = np.concatenate([none, *(number for number, _ in parts)])
    counts = np.concatenate([none, *(count for _, count in parts)])
    unique, index = np.unique(numbers, return_inverse=True)
    return unique, _sum_by(index.reshape(-1), counts, len(unique))


def _steps_by_all_calls(steps: Array, counts: Array) -> Counter[int]:
    """Return how many steps have each total number of calls: {calls: steps}."""
    unique, index = np.unique(steps, return_inverse=True)
    return Counter(_sum_by(index.reshape(-1), counts, len(unique)).tolist())


def _steps_by_calls(function: Array, counts: Array, n_steps: int) -> dict[int, Counter[int]]:
    """Return, for each function, how many steps call it how often: {calls: steps}. Steps without a
    call count under 0; a function that no step calls has no entries."""
    n_functions = int(function.max()) + 1 if len(function) else 0
    by_function: dict[int, Counter[int]] = {i: Counter() for i in range(n_functions)}
    pairs, n_with = np.unique(np.stack([function, counts]), axis=1, return_counts=True)
    for i, n_calls, n in zip(*pairs.tolist(), n_with.tolist(), strict=True):
        by_function[i][n_calls] = n
    for of_function in by_function.values():
        without = n_steps - sum(of_function.values())
        if of_function and without > 0:
            of_function[0] = without
    return by_function


_MOST = 20  # most functions that are shown in the terminal's table, and in the chart
_NAMED = 4  # most functions that are named because their number of calls varies between steps
_MANY_RANKS = 8
_HEADS = (
    Column("function", left=True, cut=True),
    Column("self"),
    Column("total", narrowest=42),
    Column("n", narrowest=52),
    Column("mean", narrowest=66),
    Column("longest", narrowest=100),
    Column("a step", narrowest=76),
    Column("errors"),
)
OUTSIDE = "outside of steps"

CallSummary = Mapping[str, Any]


def sections(calls: CallSummary, summary: Mapping[str, Any]) -> Iterator[Section]:
    functions = calls.get("by_function")
    if not functions:
        return
    rows = [_cells(name, row) for name, row in functions.items()]
    n_more = calls["functions"] - len(rows)
    title = f"all {len(rows)} functions"
    if n_more > 0:
        title = f"{len(rows)} functions; {n_more} more had less"
    details = Details(title, [Table(_HEADS, rows)])
    self_s = {short(name): row["self_s"] for name, row in functions.items()}
    table = Table(_HEADS, rows, most=_MOST, total=calls["functions"])
    blocks: list[Block] = [_call_facts(calls), InText([table])]
    blocks += _phase_facts(calls["by_phase"])
    blocks += _varying_functions(calls.get("by_step"))
    blocks += _rank_facts(calls["by_rank"])
    blocks.append(OnPage([*_by_phase(functions), details]))
    blocks.append(Amounts("time of their own", self_s, "s"))
    yield Section(
        "calls",
        "Calls",
        blocks,
        "self is the time without the recorded calls inside, total with them.",
    )


def _cells(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    a_step = row.get("a_step")
    calls_a_step = ""
    if a_step:
        calls_a_step = f"{a_step['median']}"
        if a_step["min"] < a_step["max"]:
            calls_a_step += f" ({a_step['min']}..{a_step['max']})"
    keys = ("self_s", "total_s", "mean_s", "max_s")
    self_time, total, mean, longest = (duration(row[key]) for key in keys)
    n = f"{row['n']:,}"
    errors = f"{row['errors']:,}" if row["errors"] else ""
    return short(name), self_time, total, n, mean, longest, calls_a_step, errors


def _by_phase(functions: Mapping[str, Any]) -> Iterator[Block]:
    """Yield a chart of the functions with most self time within steps, by phase."""
    rows = []
    for name, row in functions.items():
        phases = {phase: part["self_s"] for phase, part in row["phases"].items()}
        phases.pop(OUTSIDE, None)
        self_s = sum(phases.values())
        if self_s > 0:
            rows.append((short(name), phases, duration(self_s)))
    if rows:
        rows.sort(key=lambda row: -sum(row[1].values()))
        yield Stacked(
            rows[:_MOST], "s", "time of their own within steps, by phase", (*PHASES, OUTSIDE)
        )


def short(name: str) -> str:
    """Return a function's name as people write it: ``F.relu``, ``optim.Adam.step``,
    ``nn.Linear.__call__``, ``data.DataLoader.__iter__``."""
    functional = "torch.nn.functional."
    if name.startswith(functional):
        return f"F.{name[len(functional) :]}"
    for long, brief in (
        ("torch.nn.modules.", "nn."),
        ("torch.optim.", "optim."),
        ("torch.utils.data.", "data."),
    ):
        if name.startswith(long):
            in_package = name[len(long) :]
            return brief + (in_package.partition(".")[2] or in_package)
    return name


def _call_facts(calls: CallSummary) -> Text:
    """Return the line about all calls: number of calls, number of functions, calls per step."""
    facts = [f"{calls['events']:,} calls of {calls['functions']:,} functions"]
    if calls["errors"]:
        facts.append(f"{calls['errors']:,} raised an exception")
    steps = calls.get("by_step")
    if steps:
        a_step = steps["calls"]
        spread = ""
        if a_step["min"] < a_step["max"]:
            spread = f" ({a_step['min']:,}..{a_step['max']:,})"
        facts.append(f"{a_step['median']:,} a step{spread}")
    skipped = sum(reason["n"] for reason in (calls.get("skipped") or {}).values())
    if skipped:
        facts.append(f"{skipped:,} functions could not be watched")
    if calls.get("every", 1) > 1:
        facts.append(f"one step in {calls['every']:,} was recorded")
    return _line("calls", facts)


def _phase_facts(by_phase: Mapping[str, Any]) -> Iterator[Text]:
    """Yield the line about the self time of the calls in each phase of a step."""
    phases = dict(by_phase)
    outside = phases.pop(OUTSIDE, None)
    inside_s = sum(row["self_s"] for row in phases.values())
    if not inside_s:
        return
    ordered = sorted(phases.items(), key=lambda item: -item[1]["self_s"])
    facts = [f"{phase} {row['self_s'] / inside_s:.0%} ({row['n']:,})" for phase, row in ordered]
    if outside:
        facts.append(f"{OUTSIDE} {duration(outside['self_s'])} ({outside['n']:,})")
    yield _line("their time by phase", facts)


def _varying_functions(by_step: Mapping[str, Any] | None) -> Iterator[Text]:
    varying = by_step["varying"] if by_step else ()
    if varying:
        names = ", ".join(map(short, varying[:_NAMED]))
        n_more = len(varying) - _NAMED
        if n_more > 0:
            names += f" and {n_more} more"
        yield Text(names, "not called equally often in all steps")


def _rank_facts(ranks: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    if len(ranks) < 2:
        return
    facts = [
        f"{row['rank']}: {row['n']:,} in {duration(row['self_s'])}" for row in ranks[:_MANY_RANKS]
    ]
    n_more = len(ranks) - _MANY_RANKS
    if n_more > 0:
        facts.append(f"{n_more} more")
    yield _line("by rank", facts)


def _line(label: str, facts: list[str]) -> Text:
    return Text(" · ".join(facts), label)
