"""The last steps of a run that goes on, from its trace: where their time goes, rates, progress and what they are bound by.

Bounded in memory and in work, whatever the run's length and speed.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from voirkit.analysis.document import RATE_TIMES, Rank, figures
from voirkit.analysis.nesting import Array
from voirkit.analysis.phases import COLLECTIVE, KIND, Records, ranks
from voirkit.analysis.steps import Steps, Table, concatenated
from voirkit.analysis.verdict.diagnosis import verdict
from voirkit.instrument import resolve
from voirkit.live import HISTORY, Number, Picture, Progress
from voirkit.plugins import installed_instruments
from voirkit.runs.summary import throughput
from voirkit.trace.following import CHUNK, Followed, Following, Fresh
from voirkit.trace.reader import Name, Process

FEWEST_STEPS = 6  # among the records that are kept: a step may have thousands of phases
AT_MOST = 16  # times as many records as wanted, however few steps those are
_STEPS = {("dataloader", "fetch"), ("compute", "step")}
_COUNTED = {("dataloader", "iter"), *_STEPS}


class Counter(NamedTuple):
    """The last value of a counter."""

    value: float
    units: str


class Counts:
    """How much of what a process has done since it began."""

    def __init__(self, followed: Followed) -> None:
        self._followed = followed
        self._known: dict[int, Mapping[str, Any]] = {}
        self.steps: dict[int, int] = {}  # steps of each optimizer
        self.epochs: dict[int | None, int] = {}  # how often each loader was iterated over
        self.batches: dict[tuple[int | None, int], int] = {}  # how many batches came, by loader and episode (an iterator's number)
        self.loaders: dict[int | None, Mapping[str, Any]] = {}  # what is known of each loader: ``length``, ``workers``, ``dataset`` ..

    def add(self, name: str, arguments: int, n: int) -> None:
        """So many more records with this name and these arguments."""
        known = self._known.get(arguments)
        if known is None:
            known = self._known[arguments] = arguments_of(self._followed.tables.arguments.get(arguments, b"{}"))
        if name == "step":
            which = known.get("which", 0)
            self.steps[which] = self.steps.get(which, 0) + n
            return
        loader = known.get("loader")
        if name == "iter":
            self.epochs[loader] = self.epochs.get(loader, 0) + n
            self.loaders[loader] = known
        elif name == "fetch":
            episode = loader, known.get("episode", 0)
            self.batches[episode] = self.batches.get(episode, 0) + n


class _Part(NamedTuple):
    followed: Followed
    records: Array
    tid: Array
    steps: int


class _Kept:
    """The last records of one kind of one process."""

    def __init__(self) -> None:
        self.parts: deque[_Part] = deque()
        self.n = self._steps = 0

    def add(self, followed: Followed, records: Array, tid: Array, is_step: Array, most: int) -> None:
        """Put some behind those that are there; of more than so many the newest."""
        # Copies: the records are parts of larger buffers, which would be kept. In pieces, so that the window can move on by little.
        piece = max(most // 4, 1)
        for at in range(max(len(records) - AT_MOST * most, 0), len(records), piece):
            to = slice(at, at + piece)
            self.parts.append(_Part(followed, records[to].copy(), tid[to], int(is_step[to].sum())))
            self.n += len(self.parts[-1].records)
            self._steps += self.parts[-1].steps

    def trim(self, most: int) -> None:
        """Let the oldest go, down to so many, or to more where they hold few steps."""
        while len(self.parts) > 1 and self._is_spare(self.parts[0], most):
            gone = self.parts.popleft()
            self.n -= len(gone.records)
            self._steps -= gone.steps

    def _is_spare(self, part: _Part, most: int) -> bool:
        left = self.n - len(part.records)
        return left >= AT_MOST * most or (left >= most and self._steps - part.steps >= FEWEST_STEPS)


class _Codes:
    """What the numbers of one process's names are for a window."""

    def __init__(self) -> None:
        self.known = 0
        self.is_phase = self.is_counted = self.is_counter = self.is_step = self.is_collective = np.zeros(1, bool)

    def update(self, followed: Followed) -> None:
        names = followed.tables.names
        if len(names) == self.known:
            return
        self.known = len(names)
        shape = max(names, default=0) + 2  # the last is that of all numbers beyond
        self.is_phase, self.is_counted, self.is_counter, self.is_step, self.is_collective = (np.zeros(shape, bool) for _ in range(5))
        for number, name in names.items():
            self.is_phase[number] = name.kind == KIND
            self.is_collective[number] = name.kind == COLLECTIVE
            self.is_counter[number] = name.kind == "counter"
            self.is_counted[number] = name.kind == KIND and (name.category, name.name) in _COUNTED
            self.is_step[number] = name.kind == KIND and (name.category, name.name) in _STEPS


class Window:
    """The last phases of all processes that are followed.

    Args:
        most: How many records of phases are kept, of all processes; more only where they hold few steps.
    """

    def __init__(self, following: Following, most: int) -> None:
        self._following, self._most = following, most
        self._kept: dict[str, dict[str, _Kept]] = {KIND: {}, COLLECTIVE: {}}  # by kind and process
        self._codes: dict[str, _Codes] = {}
        self.counts: dict[str, Counts] = {}  # how many requests and optimizer steps there were, by process
        self.counters: dict[tuple[int, str, str], Counter] = {}  # the last value of each counter, by rank, category and name
        self.last_ns: dict[str, int] = {}  # when the last record ended, by process, on its host's clock
        self.collectives = 0  # how many have come

    def update(self) -> int:
        """Take in what has been recorded since the last update; how many records there were. Raises OSError: the folder cannot be read."""
        n = 0
        for fresh in self._following.look():
            n += len(fresh.records)
            self._add(fresh)
        for of_processes in self._kept.values():  # each has its share: the first ones would be gone where much is read at once
            for kept in of_processes.values():
                kept.trim(self._share(of_processes))
        return n

    def _add(self, fresh: Fresh) -> None:
        followed, records = fresh.followed, fresh.records
        codes = self._codes.setdefault(followed.stem, _Codes())
        codes.update(followed)
        name = np.minimum(records["name"], len(codes.is_phase) - 1)
        self._count(followed, records, codes.is_counted[name])
        if fresh.is_past:
            return
        self._update_counters(followed, records, codes.is_counter[name])
        self.last_ns[followed.stem] = max(int(records["start_ns"][-1] + records["duration_ns"][-1]), self.last_ns.get(followed.stem, 0))
        for kind, chosen, steps in ((KIND, codes.is_phase, codes.is_step), (COLLECTIVE, codes.is_collective, codes.is_collective)):
            own = chosen[name]
            if own.any():
                kept = self._kept[kind].setdefault(followed.stem, _Kept())
                kept.add(followed, records[own], fresh.tid[own], steps[name[own]], self._most)
                self.collectives += int(own.sum()) if kind == COLLECTIVE else 0

    def _count(self, followed: Followed, records: Array, is_counted: Array) -> None:
        chosen = records[is_counted]
        if not len(chosen):
            return
        counts = self.counts.setdefault(followed.stem, Counts(followed))
        keys, numbers = np.unique(chosen["name"].astype(np.int64) << 32 | chosen["args"], return_counts=True)
        for key, n in zip(keys.tolist(), numbers.tolist(), strict=True):
            counts.add(followed.tables.names[key >> 32].name, key & 0xFFFFFFFF, n)

    def _update_counters(self, followed: Followed, records: Array, chosen: Array) -> None:
        rank = followed.process.rank
        for record in records[chosen][-64:].tolist():  # a sampler writes a handful at a time
            _, _, value, _, name = record
            found = followed.tables.names[name]
            number = float(np.int64(value).view(np.float64))
            self.counters[rank, found.category, found.name] = Counter(number, found.value_key or "")

    def records(self, kind: str = KIND) -> Records:
        """What is kept of a kind (phases, collectives), of all processes."""
        names: dict[tuple[str, str], int] = {}
        arguments: dict[bytes, int] = {b"{}": 0}
        processes: dict[tuple[int, str, int], int] = {}  # one that records again writes into other files
        columns: dict[str, list[Array]] = {key: [] for key in ("start_ns", "duration_ns", "name", "args", "value", "process", "tid")}
        for part in (part for kept in self._kept[kind].values() for part in kept.parts):
            process = part.followed.process
            number = processes.setdefault((process.rank, process.host, process.pid), len(processes))
            for key in ("start_ns", "duration_ns", "value"):
                columns[key].append(part.records[key])
            columns["tid"].append(part.tid)
            columns["process"].append(np.full(len(part.tid), number))
            columns["name"].append(_renumbered(part.records["name"], lambda n, p=part: _name(p.followed, n), names))
            columns["args"].append(
                _renumbered(part.records["args"], lambda n, p=part: p.followed.tables.arguments.get(n, b"{}"), arguments)
            )
        joined: dict[str, Any] = {key: np.concatenate(parts) if parts else np.zeros(0, np.int64) for key, parts in columns.items()}
        return Records(**joined, names=list(names), arguments=[arguments_of(text) for text in arguments], processes=list(processes))

    def is_cut(self) -> bool:
        """Whether there was more than what is kept."""
        return any(kept.n >= self._share(self._kept[KIND]) for kept in self._kept[KIND].values())

    def _share(self, of_processes: Mapping[str, _Kept]) -> int:
        return max(self._most // len(of_processes), 1)


def _name(followed: Followed, number: int) -> tuple[str, str]:
    found = followed.tables.names[number]
    return found.category, found.name


def _renumbered(local: Array, what: Any, codes: dict[Any, int]) -> Array:
    """Numbers of one process as those of all."""
    numbers, at = np.unique(local, return_inverse=True)
    return np.array([codes.setdefault(what(n), len(codes)) for n in numbers.tolist()], np.int64)[at]


def arguments_of(text: bytes) -> Mapping[str, Any]:
    """Arguments from their JSON; none of what is damaged."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


LAST_S = 10.0  # the steps that are shown are those of so many seconds ...
LAST = 20  # ... or so many, if they take longer
KEPT = 2000  # steps, of each rank, that the verdict and the rates' history are from
_ARGUMENTS = (b'"loader":', b'"which":', b'"module":', b'"to":', b'"group":')  # what the steps and collectives are made from


def _is_wanted(arguments: bytes) -> bool:
    return any(key in arguments for key in _ARGUMENTS)


class LiveSteps:
    """Follows the steps of a run.

    Args:
        path: The run directory; it need not be there yet.
        most: Records of phases that are looked at at once; of a run that writes more between two looks the newest are.
        pid: Only this process, if given.
    """

    def __init__(self, path: str, most: int = 1 << 12, pid: int | None = None) -> None:
        self._following = Following(path, CHUNK, pid, _is_wanted)
        self.window = Window(self._following, most)
        self._ranks: dict[int, Rank] = {}
        self._parts: dict[str, Any] = {}  # of instruments, by key of the summary
        self._collectives = 0  # that these are from

    def update(self, cpus: int | None = None) -> bool:
        """Take in what has been recorded since the last update; whether there was anything. ``cpus``: processors of the host, for the
        verdict. Raises OSError: the run directory cannot be read."""
        found = bool(self.window.update())
        if found:
            for rank in ranks(self.window.records(), cpus):
                self._ranks[rank.rank] = self._with(rank)
        if len(self._ranks) > 1 and self.window.collectives > self._collectives:
            self._collectives = self.window.collectives
            self._renew_parts()
        return found

    def _renew_parts(self) -> None:
        """What instruments say of the time of which both phases and collectives are known: these come seconds later, many at once."""
        clocks = self._clocks()
        phases, exchanged = _of_same_time(self.window.records(), self.window.records(COLLECTIVE), clocks)
        last = [rank for rank in ranks(phases, exchanged=exchanged) if not rank.alone]
        for instrument in installed_instruments():
            if instrument.live_part and (part := resolve(instrument.live_part)(last, phases, clocks)) is not None:
                self._parts[next(iter(instrument.parts))] = part

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
            clocks = self._clocks()
            picture.last_step_s = {rank.rank: _ended_ns(rank.steps.train, clocks.get(rank.host, 0)) * 1e-9 for rank in trained}
            facts = dict(max(trained, key=lambda rank: len(rank.steps.train)).facts)
            picture.verdict = verdict({**figures(trained), **self._parts}, facts)
        picture.workers = next((rank.facts["workers"] for rank in known if "workers" in rank.facts), None)
        if counts is not None:
            picture.progress = list(progress(counts, self.window.records()))
            if picture.workers is None:
                picture.workers = next((loader["workers"] for loader in counts.loaders.values() if "workers" in loader), None)

    @property
    def is_behind(self) -> bool:
        """Whether what was there before the first update has not been counted yet."""
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

    def _clocks(self) -> dict[str, int]:
        """By host what makes its clock the wall clock."""
        return {process.host: process.time_ns - process.perf_counter_ns for process in self.processes()}

    def has_dropped(self) -> bool:
        """Whether something could not be recorded."""
        return self._following.has_dropped

    def _leading(self) -> Counts | None:
        """What the process of the lowest rank that trains most has done."""
        found = self.window.counts
        rank_of = {stem: followed.process.rank for stem, followed in self._following.processes.items()}
        best = max(found, key=lambda stem: (-rank_of.get(stem, 0), sum(found[stem].steps.values())), default=None)
        return None if best is None else found[best]


def _of_same_time(phases: Records, exchanged: Records, clocks: Mapping[str, int]) -> tuple[Records, Records]:
    """Of two kinds of records those of processes that have both, from when on to when all have both; ``clocks`` are by host."""
    both = set(phases.processes) & set(exchanged.processes)
    spans = []
    for records in (phases, exchanged):
        wall = np.array([clocks.get(host, 0) for _, host, _ in records.processes], np.int64)[records.process] + records.start_ns
        of = np.array([process in both for process in records.processes], bool)[records.process]
        edges = [(wall[records.process == i].min(), wall[records.process == i].max()) for i in np.unique(records.process[of])]
        spans.append((records, wall, of, edges))
    begin = max((first for *_, edges in spans for first, _ in edges), default=0)
    end = min((last for *_, edges in spans for _, last in edges), default=0)
    one, other = (records.chosen(of & (wall >= begin) & (wall <= end)) for records, wall, of, _ in spans)
    return one, other


def counts_of_training(counts: Counts, every_rank: Iterable[Rank]) -> int:
    """How many steps a process has trained: batches of its loaders, or steps of the optimizer that steps most."""
    optimizer = max(counts.steps.values(), default=0)
    if not counts.batches or any(not rank.steps.wait_known for rank in every_rank if len(rank.steps.train)):
        return optimizer
    by_loader: dict[int | None, int] = {}
    for (loader, _), n in counts.batches.items():
        by_loader[loader] = by_loader.get(loader, 0) + n
    # The training's loader is that whose batches come nearest to the steps: an evaluation's has none of its own.
    return min(by_loader.values(), key=lambda n: (n < optimizer, abs(n - optimizer)))


def _after(table: Table, start_ns: int | None, first: int = 0) -> Table:
    """The steps that began after a time, without so many of the first."""
    begin = first if start_ns is None else max(int(np.searchsorted(table.start_ns, start_ns, side="right")), first)
    return table.chosen(slice(begin, None))


def _joined(before: Table, after: Table) -> Table:
    """The last steps of both, each once."""
    if len(before):
        after = _after(after, int(before.start_ns[-1]))
    return concatenated([before, after]).chosen(slice(-KEPT, None))


def _ended_ns(table: Table, clock_ns: int) -> int:
    return int(table.start_ns[-1] + table.time_ns[-1]) + clock_ns


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
    passes = _starts_of(records, "backward")
    if not len(passes):
        passes = _starts_of(records, "step")
    loaders = {code: records.arguments[code].get("loader") for code in np.unique(args).tolist()}
    is_of = {loader: np.isin(args, [code for code, of in loaders.items() if of == loader]) for loader in latest}
    others = {loader for loader in latest if len(passes) and not _is_followed(start[is_of[loader]], passes)}
    for loader, (episode, code) in sorted(latest.items(), key=lambda pair: str(pair[0])):
        about = counts.loaders.get(loader, {})
        total, done = about.get("length"), counts.batches.get((loader, episode), 0)
        if not isinstance(total, int) or total <= 0:
            continue
        begun = start[args == code]
        speed = (len(begun) - 1) / ((begun.max() - begun.min()) * 1e-9) if len(begun) > 1 and begun.max() > begun.min() else 0.0
        name = "evaluation" if loader in others else "epoch"
        if len(latest) > 1:
            name = f"{about.get('dataset')} {name}"
        left = (total - done) / speed if speed and done < total else None
        yield Progress(f"{name} {counts.epochs.get(loader, 0)}", min(done, total), total, left)


def _starts_of(records: Records, name: str) -> Array:
    """When the backward passes, or steps of optimizers, began; ascending."""
    code = next((i for i, known in enumerate(records.names) if known == ("compute", name)), -1)
    starts: Array = np.sort(records.start_ns[records.name == code])
    return starts


def _is_followed(asked_ns: Array, passes_ns: Array) -> bool:
    """Whether most requests for a batch are followed by a backward pass before the next, as no evaluation's are."""
    following: Array = np.atleast_1d(np.searchsorted(passes_ns, asked_ns))
    is_open = following == len(passes_ns)
    if is_open.sum() == 1:  # the last batch of all, whose pass may be under way
        following = following[~is_open]
    followed = np.unique(following[following < len(passes_ns)])
    return len(followed) >= len(following) / 2


# What counts from the beginning of the run, and parts of other figures.
_LEFT_OUT = {"read", "write", "disk_read", "disk_write", "net_sent", "net_received", "shared", "processes"}


def devices(counters: Mapping[tuple[int, str, str], Counter], rank: int = 0) -> Iterator[Number]:
    """The counters of one rank, by the names of the monitor; those of others with their category."""
    for (of_rank, category, name), counter in counters.items():
        if of_rank != rank or (category == "monitor" and name in _LEFT_OUT):
            continue
        shown = name if category == "monitor" else f"{category}.{name}"
        yield Number(shown.replace("_", " "), counter.value, counter.units, ())
