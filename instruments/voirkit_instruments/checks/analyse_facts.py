"""The facts that ``--checks`` recorded in a run, as detectors read them, with the epochs of
training; and the base of all detectors.

A detector reports a bug, why there is none, or that it cannot tell. There must be no false alarms:
what some programs do on purpose is not reported as a bug.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from voirkit.analysis.document import Rank
from voirkit.analysis.steps import Table
from voirkit.runs.opened import Run

KIND = "check"
# Facts that are recorded at every step. Of each kind only the first and the last ``MOST`` of a
# process are read, which is enough for all detectors.
OFTEN = ("step", "backward", "zero_grad", "call", "scheduler", "scaler")
MOST = 20_000
# Facts that are written after an optimizer step has ended, but are about this step.
AFTER_STEP = ("look", "cleared", "uncleared", "without", "unheld", "trained", "not_finite")


@dataclass(frozen=True)
class Fact:
    """A record of one event in the run; ``name`` says what happened."""

    name: str
    at_ns: int  # end of the event, on the host's clock
    value: int  # a number whose meaning depends on ``name``
    args: Mapping[str, Any]  # all other values of the fact, by name
    rank: int = 0
    pid: int = 0
    tid: int = 0
    start_ns: int = 0  # start of the event

    @property
    def where(self) -> str | None:
        """The line of the program at which the event happened, as ``main.py:12``; None if
        unknown."""
        place = self.args.get("where")
        return None if place is None else str(place)


class Facts:
    """All facts of a run, in order of their end.

    ``ranks`` gives the steps of each rank. ``counts`` gives the number of recorded facts by name,
    including those that were not read.
    """

    def __init__(
        self,
        facts: Sequence[Fact],
        ranks: Sequence[Rank] = (),
        counts: Mapping[str, int] | None = None,
    ) -> None:
        self._all = sorted(facts, key=lambda fact: fact.at_ns)
        self._starts = {rank.rank: rank.steps.train.start_ns.tolist() for rank in ranks}
        self._evaluations = {rank.rank: _stretches(rank.steps.evaluation) for rank in ranks}
        self._counts = dict(counts or {})

    def __iter__(self) -> Iterator[Fact]:
        return iter(self._all)

    @cached_property
    def _by_name(self) -> dict[str, list[Fact]]:
        by_name: dict[str, list[Fact]] = {}
        for fact in self._all:
            by_name.setdefault(fact.name, []).append(fact)
        return by_name

    def of(self, *names: str, **args: Any) -> list[Fact]:
        """Return the facts with any of the names, and with the given arguments, in order of their
        end."""
        if len(names) == 1:
            named = self._by_name.get(names[0], [])
        else:
            named = [fact for fact in self._all if fact.name in names]
        pairs = args.items()
        return [fact for fact in named if all(fact.args.get(key) == value for key, value in pairs)]

    def has(self, name: str) -> bool:
        return name in self._by_name

    def count(self, name: str) -> int:
        return max(self._counts.get(name, 0), len(self._by_name.get(name, ())))

    def tally(self, name: str) -> dict[str, int]:
        """Return a dict from kind to the number of inspections of this kind, in all processes.

        Args:
            name: Name of facts that count inspections. Their argument ``kind`` says what was
                counted, and their value is the count so far. So only the highest value of each
                process is used.
        """
        most: dict[tuple[int, int, str], int] = {}
        for fact in self.of(name):
            key = (fact.rank, fact.pid, str(fact.args["kind"]))
            most[key] = max(most.get(key, 0), fact.value)
        sums: dict[str, int] = {}
        for (_, _, kind), n in most.items():
            sums[kind] = sums.get(kind, 0) + n
        return sums

    @property
    def ranks(self) -> list[int]:
        return sorted({fact.rank for fact in self._all})

    def processes(self) -> list[Facts]:
        """Return the facts of each process that steps an optimizer."""
        by_process: dict[tuple[int, int], list[Fact]] = {}
        for fact in self._all:
            by_process.setdefault((fact.rank, fact.pid), []).append(fact)
        processes = []
        for process_facts in by_process.values():
            if any(fact.name == "step" for fact in process_facts):
                process = Facts(process_facts)
                process._starts = self._starts
                process._evaluations = self._evaluations
                processes.append(process)
        return processes

    def by_optimizer(self, name: str) -> Iterator[tuple[Facts, int, list[Fact]]]:
        """Yield, for each optimizer of each process: the facts of the process, the optimizer's
        number, and the facts called ``name`` about this optimizer."""
        for process in self.processes():
            for optimizer in process.optimizers(name):
                yield process, optimizer, process.of(name, optimizer=optimizer)

    def optimizers(self, *names: str) -> list[int]:
        """Return the numbers of the optimizers that facts with these names are about, ascending."""
        return sorted({fact.args["optimizer"] for fact in self.of(*names)})

    def step(self, fact: Fact) -> int | None:
        """Return the number of the training step in which a fact began, from 0, as the steps
        instrument counts them. If it recorded no steps, return the number of the optimizer step."""
        rank_steps = [step for step in self.of("step") if step.rank == fact.rank]
        if fact.name in AFTER_STEP:
            fact = _step_that_wrote(fact, rank_steps)
        began_ns = self._backward_before(fact) if fact.name == "step" else fact.start_ns
        starts_ns = self._starts.get(fact.rank)
        if starts_ns:
            return max(bisect_right(starts_ns, began_ns) - 1, 0)
        if rank_steps:
            first = rank_steps[0].args.get("optimizer")
            of_first = [step for step in rank_steps if step.args.get("optimizer") == first]
            return sum(step.at_ns < began_ns for step in of_first)
        return self._backward_number(fact)  # a gradient scaler skipped all optimizer steps

    def _backward_number(self, fact: Fact) -> int | None:
        """Return the number of the rank's last backward pass that began before a fact, from 0; None
        if the rank had no backward pass."""
        passes = [backward for backward in self.of("backward") if backward.rank == fact.rank]
        if not passes:
            return None
        n_begun = sum(backward.start_ns <= fact.start_ns for backward in passes)
        return max(n_begun - 1, 0)

    def _backward_before(self, step: Fact) -> int:
        """Return the start, in ns, of the backward pass whose gradients an optimizer step uses.
        With several optimizers, the training step ends at the first one's step, so the start of a
        later one's step would be wrong."""
        process = (step.rank, step.pid)
        passes = [fact for fact in self.of("backward") if (fact.rank, fact.pid) == process]
        starts_ns = [backward.start_ns for backward in passes]
        n_before = bisect_right(starts_ns, step.start_ns)
        is_in_closure = bisect_right(starts_ns, step.at_ns) > n_before
        if n_before == 0 or is_in_closure:
            return step.start_ns
        return starts_ns[n_before - 1]

    def evaluates(self, fact: Fact) -> bool:
        """True if a fact began in an evaluation: a loop over a loader in which nothing was
        trained."""
        spans = self._evaluations.get(fact.rank) or []
        index = bisect_right(spans, (fact.start_ns, 1 << 63)) - 1
        return index >= 0 and fact.start_ns <= spans[index][1]


def _step_that_wrote(fact: Fact, steps: Sequence[Fact]) -> Fact:
    """Return the last optimizer step of the fact's process that ended before the fact; without such
    a step, the fact itself."""
    for step in reversed(steps):
        if step.pid == fact.pid and step.at_ns <= fact.at_ns:
            return step
    return fact


def _stretches(steps: Table) -> list[tuple[int, int]]:
    """Return the start and end of each step, in ns."""
    return list(zip(steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True))


def facts_of(runs: Sequence[Run], ranks: Sequence[Rank]) -> Facts | None:
    """Return the facts of a run; None if it ran without ``--checks``."""
    facts: list[Fact] = []
    counts: dict[str, int] = {}
    for run in runs:
        _read(run, facts, counts)
    return Facts(facts, ranks, counts) if counts else None


def _read(run: Run, facts: list[Fact], counts: dict[str, int]) -> None:
    """Add the facts of one run directory to ``facts``, and the number of each name to
    ``counts``."""
    connection = run.connection()
    names = connection.execute(
        f"SELECT name, count(*) FROM spans WHERE kind = '{KIND}' GROUP BY name"
    ).fetchall()
    for name, n in names:
        counts[name] = counts.get(name, 0) + n
    if not names:
        return
    often = ", ".join(f"'{name}'" for name in OFTEN)
    columns = (
        "name, start_ns, start_ns + duration_ns AS at_ns, coalesce(value, 0) AS value, args, rank,"
        " pid, tid"
    )
    order = "row_number() OVER (PARTITION BY rank, pid, name ORDER BY start_ns)"
    back = "row_number() OVER (PARTITION BY rank, pid, name ORDER BY start_ns DESC)"
    query = (
        f"SELECT name, start_ns, at_ns, value, args, rank, pid, tid FROM (SELECT {columns}, {order}"
        f" AS first, {back} AS last FROM spans WHERE kind = '{KIND}') WHERE name NOT IN ({often})"
        f" OR first <= {MOST} OR last <= {MOST}"
    )
    parsed: dict[str | None, dict[str, Any]] = {None: {}}
    for name, start_ns, at_ns, value, text, rank, pid, tid in connection.execute(query).fetchall():
        if text not in parsed:
            parsed[text] = json.loads(text)
        facts.append(Fact(name, at_ns, value, parsed[text], rank, pid, tid, start_ns))


# A bug is only reported if at least this many inspections show it. Fewer may only show a script's
# first step, or the moment at which the program changes how it trains.
LEAST_LOOKS = 3


@dataclass(frozen=True)
class Answer:
    """The result of a detector."""

    because: str  # the reason, in a sentence
    first_seen: Fact | None = None  # the first fact that shows the bug, with its step and line
    next: str = ""  # what to do about it; empty if nothing was found
    evidence: Mapping[str, Any] = field(default_factory=dict)  # the values that support the answer
    # number of steps, batches or epochs that were inspected; None: all optimizer steps
    n_inspected: int | None = None
    is_present: bool | None = True  # True: the bug is present; None: unknown


def unknown(because: str) -> Answer:
    """Return the answer that it is unknown whether the bug is present."""
    return Answer(because, is_present=None)


# The search of a detector is a generator. It yields an ``Answer`` with the bug, which ends the
# search, or sentences that say why the bug is in doubt, of which the last counts. If it yields
# nothing, its return value says why there is no bug.
Answers = Generator[Answer | str, None, Answer | str]


@dataclass(frozen=True)
class Detector:
    """A detector of one bug, which searches the facts of a run."""

    # as shown in the summary, the table and the catalogue of findings: "missing-zero-grad"
    name: str
    search: Callable[[Facts], Answers]  # searches the facts of all ranks
    # names of facts without which the detector cannot tell if the bug is present
    needs: tuple[str, ...] = ()
    looks_at: tuple[str, ...] = ()  # names of facts whose number says how much was inspected

    def examine(self, facts: Facts) -> dict[str, Any]:
        """Search the facts, and return the detector's entry in ``summary["checks"]``."""
        answer = _enough(self._answer(facts), facts)
        fact = answer.first_seen
        step = None if fact is None else facts.step(fact)
        where = None if fact is None else fact.where
        return {
            "name": self.name,
            "found": answer.is_present,
            "step": step,
            "where": where,
            "because": answer.because,
            "next": answer.next,
            "evidence": dict(answer.evidence),
            "answer": ANSWERS[answer.is_present],
            "looked_at": looked_at(facts, self.looks_at),
        }

    def _answer(self, facts: Facts) -> Answer:
        """Return the bug, why there is none, or why the detector cannot tell."""
        if not any(facts.has(name) for name in _TRAINING):
            return unknown(
                "No training was seen: no backward pass, and no step of a torch optimizer."
            )
        missing = [name for name in self.needs if not facts.has(name)]
        if missing:
            return unknown(_why_missing(missing[0], facts))
        try:
            return self.decide(facts)
        except (LookupError, TypeError, ValueError, AttributeError) as exc:
            # the facts have an unknown form
            return unknown(f"The facts cannot be read ({type(exc).__name__}: {exc}).")

    def decide(self, facts: Facts) -> Answer:
        """Run the search, and return the bug, why there is none, or what is in doubt."""
        doubt: str | None = None
        answers = self.search(facts)
        while True:
            try:
                answer = next(answers)
            except StopIteration as end:
                answer = end.value if doubt is None else unknown(doubt)
                return answer if isinstance(answer, Answer) else Answer(answer, is_present=False)
            if isinstance(answer, Answer):
                return answer
            doubt = answer


def _enough(answer: Answer, facts: Facts) -> Answer:
    """Return the answer if it rests on enough inspections, otherwise that it is unknown."""
    n = answer.n_inspected
    if n is None:
        n = max(facts.count("step"), facts.count("scaler"))
    if not answer.is_present or n >= LEAST_LOOKS:
        return answer
    looks_word = "look" if n == 1 else "looks"
    return unknown(f"{answer.because} That rests on {n} {looks_word}: {LEAST_LOOKS} are needed.")


def detector(
    name: str, *needs: str, looks_at: tuple[str, ...]
) -> Callable[[Callable[[Facts], Answers]], Detector]:
    """Return a decorator that turns a search function into a ``Detector``."""
    return lambda search: Detector(name, search, needs, looks_at)


def looked_at(facts: Facts, names: Sequence[str]) -> dict[str, int]:
    """Return how much was inspected: a dict from the unit shown in reports to the number of facts
    of a name."""
    figures: dict[str, int] = {}
    for name in names:
        if name == "epoch":
            epochs = [epoch for _, of_loader in training(facts) for epoch in of_loader]
            figures["epochs"] = len(epochs)
            figures["batches"] = sum(epoch["batches"] or 0 for epoch in epochs)
        elif name == "rank":
            figures["ranks"] = len(facts.ranks)
        elif name in _TALLIES:
            figures[_UNITS[name]] = sum(facts.tally(name).values())
        else:
            figures[_UNITS[name]] = facts.count(name)
        if name == "look":
            figures["parameters"] = _count_parameters(facts)
    return figures


def _count_parameters(facts: Facts) -> int:
    """Count the parameters that all optimizers held at their last inspection."""
    by_optimizer: dict[tuple[int, int, int], int] = {}
    for fact in facts.of("look"):
        key = (fact.rank, fact.pid, fact.args["optimizer"])
        by_optimizer[key] = fact.args["held"]
    return sum(by_optimizer.values())


ANSWERS = {True: "found", False: "not found", None: "cannot tell"}
_TALLIES = ("loss_call", "loss_value")
_UNITS = {
    "step": "optimizer steps",
    "backward": "backward passes",
    "zero_grad": "zero_grad calls",
    "call": "model calls",
    "look": "looks at gradients",
    "graph": "graphs",
    "scheduler": "scheduler steps",
    "scaler": "scaler steps",
    "loss_call": "loss calls",
    "loss_value": "losses",
    "units": "looks at ReLU layers",
    "drawn": "generators",
    "held": "batches of streams",
    "weights": "looks at ranks",
}
_TRAINING = ("step", "backward", "scaler")
_OF_GRAPHS = ("reach", "graph")


def _why_missing(name: str, facts: Facts) -> str:
    """Return why there are no facts called ``name``, so that a check cannot tell."""
    if name in _OF_GRAPHS and facts.has("graph_too_large"):
        n_nodes = facts.of("graph_too_large")[0].value
        return (
            f"The graph of the loss is too large to be walked through: {n_nodes:,} nodes or more."
        )
    if name in _OF_GRAPHS and facts.has("backward"):
        return "The graph of no backward pass was examined."
    if name == "look" and facts.has("step"):
        return (
            "No optimizer could be examined: a mode of the program's own was on, or a CUDA graph"
            " was captured."
        )
    return f"No {_WORDS.get(name, name.replace('_', ' '))} was seen."


_WORDS = {
    "step": "step of a torch optimizer",
    "backward": "backward pass",
    "call": "call of a model",
    "look": "step of a torch optimizer",
    "scheduler": "step of a learning rate scheduler",
    "scaler": "step of a gradient scaler",
    "reach": "backward pass",
    "graph": "backward pass",
}


_SAMPLERS = "torch.utils.data"  # prefix of the modules of torch's own samplers
_SHUFFLING = ("RandomSampler", "SubsetRandomSampler", "DistributedSampler")


@dataclass(frozen=True)
class Epoch:
    """One training epoch: a pass over a loader."""

    fact: Fact  # the record of the epoch
    optimizers: frozenset[int]  # numbers of the optimizers that stepped in the epoch
    steps: int  # number of optimizer steps in the epoch

    def __getitem__(self, key: str) -> Any:
        """Return an argument of the epoch's fact; None if it has no such argument."""
        return self.fact.args.get(key)

    @property
    def sampler(self) -> str:
        """The class of the epoch's sampler, without the module if it is torch's own."""
        module, _, name = str(self["sampler"]).rpartition(".")
        return name if module.startswith(_SAMPLERS) else f"{module}.{name}"

    @property
    def is_of_torch(self) -> bool:
        """True if torch's own samplers choose the samples."""
        return "." not in self.sampler

    @property
    def shuffles(self) -> bool:
        """True if the sampler is meant to choose a different order in each epoch."""
        return self.sampler in _SHUFFLING

    @property
    def where_made(self) -> Fact:
        """The epoch's fact, located at the line where the loader was made."""
        place = self["made"]
        if place is None:
            return self.fact
        return replace(self.fact, args={**self.fact.args, "where": place})


def training(facts: Facts) -> Iterator[tuple[Facts, list[Epoch]]]:
    """Yield the facts of a process and the training epochs of one of its loaders, ascending, for
    each process and loader.

    A pass in which no optimizer stepped, such as a validation, is left out. So is a pass whose
    batches were drawn one by one and never trained on.
    """
    for process in facts.processes():
        steps = process.of("step")
        ends_ns = [step.at_ns for step in steps]
        by_loader: dict[int, list[Epoch]] = {}
        for fact in process.of("epoch"):
            first = bisect_left(ends_ns, fact.start_ns)
            last = bisect_right(ends_ns, fact.at_ns)
            inside = steps[first:last]
            if inside and fact.args.get("trained") != 0:
                optimizers = frozenset(step.args.get("optimizer", -1) for step in inside)
                by_loader.setdefault(fact.value, []).append(Epoch(fact, optimizers, len(inside)))
        for epochs in by_loader.values():
            yield process, epochs


def by_optimizer(epochs: Sequence[Epoch]) -> list[list[Epoch]]:
    """Group epochs by the optimizers that stepped in them. A program that repeats a training on
    purpose, from the same seed, makes new optimizers for it."""
    by_optimizers: dict[frozenset[int], list[Epoch]] = {}
    for epoch in epochs:
        by_optimizers.setdefault(epoch.optimizers, []).append(epoch)
    return list(by_optimizers.values())
