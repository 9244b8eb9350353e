"""The last steps of a run that goes on, from its trace: where their time goes, rates, progress and what they are bound by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from voirkit.analysis.document import RATE_TIMES, Rank, figures
from voirkit.analysis.nesting import Array
from voirkit.analysis.phase_records import Records
from voirkit.analysis.phases import ranks
from voirkit.analysis.steps import Steps, Table
from voirkit.analysis.verdict.diagnosis import verdict
from voirkit.live.picture import HISTORY, Number, Picture, Progress
from voirkit.live.window import Counts, Window, arguments_of
from voirkit.runs.summary import throughput
from voirkit.trace.following import CHUNK, Following
from voirkit.trace.reader import Name, Process

LAST_S = 10.0  # the steps that are shown are those of so many seconds ...
LAST = 20  # ... or so many, if they take longer
KEPT = 2000  # steps, of each rank, that the verdict and the rates' history are from
_ARGUMENTS = (b'"loader":', b'"which":', b'"module":', b'"to":')  # what the steps are made from


def _is_wanted(arguments: bytes) -> bool:
    return any(key in arguments for key in _ARGUMENTS)


class LiveSteps:
    """Follows the steps of a run.

    Args:
        path: The run directory; it need not be there yet.
        most: Records of phases that are looked at at once; of a run that writes more between two looks the newest are.
        pid: Only this process, if given.
        at_once: Records that are read at once of what was there before the first look.
    """

    def __init__(self, path: str, most: int = 1 << 12, pid: int | None = None, at_once: int = CHUNK) -> None:
        self._following = Following(path, at_once, pid, _is_wanted)
        self.window = Window(self._following, most)
        self._ranks: dict[int, Rank] = {}
        self._cpus: int | None = None

    def look(self, cpus: int | None = None) -> bool:
        """Take in what has been recorded since the last look; whether there was anything.

        Args:
            cpus: Processors of the host, for the verdict.

        Raises:
            OSError: The run directory can not be read.
        """
        found = bool(self.window.look())
        if found:
            for rank in ranks(self.window.records(), cpus):
                self._ranks[rank.rank] = self._with(rank)
        return found

    def _with(self, rank: Rank) -> Rank:
        """A rank with its steps of before; those of the window that are new are put behind them."""
        known = self._ranks.get(rank.rank)
        # A step without a loader begins where the window does, if it is cut: its beginning is not known.
        first = 1 if self.window.is_cut() and not rank.steps.wait_known else 0
        train, evaluation = _after(rank.steps.train, None, first), rank.steps.evaluation
        facts = {**(known.facts if known else {}), **rank.facts}
        wait_known = rank.steps.wait_known
        if known is not None:
            if not len(train):
                wait_known = known.steps.wait_known
            train = _joined(known.steps.train, train)
            evaluation = _joined(known.steps.evaluation, evaluation)
        return replace(rank, steps=Steps(train, evaluation, wait_known), facts=facts)

    def fill(self, picture: Picture) -> None:
        """Put into a picture what is known of the steps by now."""
        known = [self._ranks[number] for number in sorted(self._ranks)]
        counts = self._leading()
        picture.done = counts_of_training(counts, known) if counts else 0
        picture.is_counted = not self.is_behind
        trained = [rank for rank in known if len(rank.steps.train)]
        if trained:
            last = [replace(rank, steps=replace(rank.steps, train=_last(rank.steps.train))) for rank in trained]
            shown = figures(last)
            picture.steps, picture.ranks = shown["steps"], shown["ranks"]
            picture.shown_s = float(max(rank.steps.train.time_ns.sum() for rank in last)) * 1e-9
            picture.rates = list(_rates(shown["rates"], trained))
            facts = dict(max(trained, key=lambda rank: len(rank.steps.train)).facts)
            picture.verdict = verdict(figures(trained), facts)
        picture.workers = next((rank.facts["workers"] for rank in known if "workers" in rank.facts), None)
        if counts is not None:
            picture.progress = list(progress(counts, self.window.records()))
            if picture.workers is None:
                picture.workers = next((loader["workers"] for loader in counts.loaders.values() if "workers" in loader), None)

    @property
    def is_behind(self) -> bool:
        """Whether what was there before the first look has not been counted yet."""
        return self._following.is_behind

    def names(self) -> Iterable[Name]:
        """All names that records have."""
        return (name for followed in self._following.processes.values() for name in followed.tables.names.values())

    def arguments(self) -> Iterable[Mapping[str, Any]]:
        """The arguments that phases have, in the order in which they came up."""
        return (arguments_of(text) for followed in self._following.processes.values() for text in followed.tables.arguments.values())

    def last_ns(self, host: str) -> int | None:
        """When the last record of a host ended, on its clock."""
        hosts = {stem: followed.process.host for stem, followed in self._following.processes.items()}
        return max((at for stem, at in self.window.last_ns.items() if hosts.get(stem) == host), default=None)

    def processes(self) -> list[Process]:
        """The processes that have recorded so far."""
        return [followed.process for followed in self._following.processes.values()]

    def has_dropped(self) -> bool:
        """Whether something could not be recorded."""
        return self._following.has_dropped

    def _leading(self) -> Counts | None:
        """What the process of the lowest rank that trains most has done."""
        found = self.window.counts
        rank_of = {stem: followed.process.rank for stem, followed in self._following.processes.items()}
        best = max(found, key=lambda stem: (-rank_of.get(stem, 0), sum(found[stem].steps.values())), default=None)
        return None if best is None else found[best]


def counts_of_training(counts: Counts, known: Iterable[Rank]) -> int:
    """How many steps a process has trained: batches of its loaders, or steps of the optimizer that steps most."""
    optimizer = max(counts.steps.values(), default=0)
    if not counts.batches or any(not rank.steps.wait_known for rank in known if len(rank.steps.train)):
        return optimizer
    by_loader: dict[int | None, int] = {}
    for (loader, _), n in counts.batches.items():
        by_loader[loader] = by_loader.get(loader, 0) + n
    # The training's loader is that whose batches come nearest to the steps: an evaluation's has none of its own.
    return min(by_loader.values(), key=lambda n: (n < optimizer, abs(n - optimizer)))


def _after(table: Table, start_ns: int | None, first: int = 0) -> Table:
    """The steps that began after a time, without so many of the first."""
    begin = first if start_ns is None else max(int(np.searchsorted(table.start_ns, start_ns, side="right")), first)
    return Table(*(column[begin:] for column in _columns(table)))


def _columns(table: Table) -> tuple[Array, Array, Array, Array]:
    return table.start_ns, table.time_ns, table.items, table.own_ns


def _joined(before: Table, after: Table) -> Table:
    """The last steps of both, each once."""
    if len(before):
        after = _after(after, int(before.start_ns[-1]))
    columns = zip(_columns(before), _columns(after), strict=True)
    return Table(*(np.concatenate(pair)[-KEPT:] for pair in columns))


def _last(table: Table) -> Table:
    """The steps of the last seconds."""
    if not len(table):
        return table
    end = int(table.start_ns[-1] + table.time_ns[-1])
    recent = len(table) - int(np.searchsorted(table.start_ns, end - LAST_S * 1e9))
    return _after(table, None, max(len(table) - max(recent, LAST), 0))


def _rates(rates: Mapping[str, Any], trained: list[Rank]) -> Iterable[Number]:
    table = trained[0].steps.train
    for name, rate in rates.items():
        yield Number(name, throughput(rate), rate["units"], _history(table.items, RATE_TIMES[name](table)))


def _history(items: Array, time_ns: Array) -> list[float]:
    """Items per second of equal parts of the steps, in their order."""
    parts = min(HISTORY, len(items))
    edges = np.linspace(0, len(items), parts, endpoint=False).astype(np.int64)
    sums, times = (np.add.reduceat(values, edges).astype(float) for values in (np.maximum(items, 0), time_ns))
    return [n / (t * 1e-9) if t > 0 else 0.0 for n, t in zip(sums.tolist(), times.tolist(), strict=True)]


def progress(counts: Counts, records: Records) -> Iterable[Progress]:
    """How far the loops are that were at their loaders lately, and how long they will take."""
    fetch = next((i for i, name in enumerate(records.names) if name == ("dataloader", "fetch")), None)
    if fetch is None:
        return
    asked = records.name == fetch
    start, args = records.start_ns[asked], records.args[asked]
    latest: dict[Any, tuple[int, int]] = {}  # by loader: episode, its arguments
    for code in np.unique(args).tolist():
        known = records.arguments[code]
        loader, episode = known.get("loader"), known.get("episode", 0)
        if loader not in latest or episode > latest[loader][0]:
            latest[loader] = episode, code
    for loader, (episode, code) in sorted(latest.items(), key=lambda pair: str(pair[0])):
        about = counts.loaders.get(loader, {})
        total, done = about.get("length"), counts.batches.get((loader, episode), 0)
        if not isinstance(total, int) or total <= 0:
            continue
        begun = start[args == code]
        speed = (len(begun) - 1) / ((begun.max() - begun.min()) * 1e-9) if len(begun) > 1 and begun.max() > begun.min() else 0.0
        name = f"{about.get('dataset')} epoch" if len(latest) > 1 else "epoch"
        left = (total - done) / speed if speed and done < total else None
        yield Progress(f"{name} {counts.epochs.get(loader, 0)}", min(done, total), total, left)
