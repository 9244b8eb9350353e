"""The last steps of a run in progress, read from its trace: where their time goes, rates, progress
and the verdict.

Memory and work are bounded, whatever the length and speed of the run.
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

# At least this many steps are kept, even if they need more records than the wanted number: a step
# may have thousands of phases.
FEWEST_STEPS = 6
AT_MOST = 16  # the records kept are at most this many times the wanted number
_STEP_SPANS = {("dataloader", "fetch"), ("compute", "step")}
_COUNTED_SPANS = {("dataloader", "iter"), *_STEP_SPANS}


class Counter(NamedTuple):
    """The last value of a counter."""

    value: float
    units: str


class Counts:
    """Numbers of steps, epochs and batches of a process since it began."""

    def __init__(self, followed: Followed) -> None:
        self._followed = followed
        self._parsed: dict[int, Mapping[str, Any]] = {}  # parsed arguments, by their number
        self.steps: dict[int, int] = {}  # number of steps of each optimizer
        self.epochs: dict[int | None, int] = {}  # how often each loader was iterated over
        # number of batches received, by loader and episode (the number of an iterator)
        self.batches: dict[tuple[int | None, int], int] = {}
        # facts about each loader: ``length``, ``workers``, ``dataset`` ...
        self.loaders: dict[int | None, Mapping[str, Any]] = {}

    def add(self, name: str, arguments_number: int, n: int) -> None:
        """Count ``n`` more records with a name and arguments."""
        arguments = self._parsed.get(arguments_number)
        if arguments is None:
            text = self._followed.tables.arguments.get(arguments_number, b"{}")
            arguments = arguments_of(text)
            self._parsed[arguments_number] = arguments
        if name == "step":
            optimizer = arguments.get("which", 0)
            self.steps[optimizer] = self.steps.get(optimizer, 0) + n
            return
        loader = arguments.get("loader")
        if name == "iter":
            self.epochs[loader] = self.epochs.get(loader, 0) + n
            self.loaders[loader] = arguments
        elif name == "fetch":
            episode = loader, arguments.get("episode", 0)
            self.batches[episode] = self.batches.get(episode, 0) + n


class _Part(NamedTuple):
    followed: Followed
    records: Array
    tid: Array
    steps: int


class _LastRecords:
    """The last records of one kind of one process."""

    def __init__(self) -> None:
        self.parts: deque[_Part] = deque()
        self.n = 0
        self._steps = 0

    def add(
        self, followed: Followed, records: Array, tid: Array, is_step: Array, most: int
    ) -> None:
        """Append records; if there are more than ``AT_MOST * most``, only the newest."""
        # The records are copied, because they are slices of larger buffers that would otherwise
        # stay in memory. They are kept in pieces, so that the oldest are dropped a few at a time.
        piece_length = max(most // 4, 1)
        first = max(len(records) - AT_MOST * most, 0)
        for start in range(first, len(records), piece_length):
            piece = slice(start, start + piece_length)
            n_steps = int(is_step[piece].sum())
            part = _Part(followed, records[piece].copy(), tid[piece], n_steps)
            self.parts.append(part)
            self.n += len(part.records)
            self._steps += part.steps

    def trim(self, most: int) -> None:
        """Drop the oldest records until about ``most`` are left; keep more of them if they hold few
        steps."""
        while len(self.parts) > 1 and self._is_dispensable(self.parts[0], most):
            oldest = self.parts.popleft()
            self.n -= len(oldest.records)
            self._steps -= oldest.steps

    def _is_dispensable(self, part: _Part, most: int) -> bool:
        n_without = self.n - len(part.records)
        steps_without = self._steps - part.steps
        return n_without >= AT_MOST * most or (n_without >= most and steps_without >= FEWEST_STEPS)


class _Codes:
    """Boolean masks over the names of one process, indexed by the number of a name: True if records
    with that name are phases, counters, collectives, or a batch request or optimizer step."""

    def __init__(self) -> None:
        self._n_names = 0
        self._allocate(1)

    def _allocate(self, length: int) -> None:
        self.is_phase = np.zeros(length, bool)
        self.is_counted = np.zeros(length, bool)
        self.is_counter = np.zeros(length, bool)
        self.is_step = np.zeros(length, bool)
        self.is_collective = np.zeros(length, bool)

    def update(self, followed: Followed) -> None:
        names = followed.tables.names
        if len(names) == self._n_names:
            return
        self._n_names = len(names)
        self._allocate(max(names, default=0) + 2)  # the last entry is for all unknown numbers
        for number, name in names.items():
            span = name.category, name.name
            is_phase = name.kind == KIND
            self.is_phase[number] = is_phase
            self.is_collective[number] = name.kind == COLLECTIVE
            self.is_counter[number] = name.kind == "counter"
            self.is_counted[number] = is_phase and span in _COUNTED_SPANS
            self.is_step[number] = is_phase and span in _STEP_SPANS


class Window:
    """The last phases of all processes that are followed.

    Args:
        most: Number of phase records to keep, over all processes; more are kept only if they hold
            few steps.
    """

    def __init__(self, following: Following, most: int) -> None:
        self._following = following
        self._most = most
        # the last records, by kind and process
        self._last: dict[str, dict[str, _LastRecords]] = {KIND: {}, COLLECTIVE: {}}
        self._codes: dict[str, _Codes] = {}
        # numbers of steps, epochs and batches, by process
        self.counts: dict[str, Counts] = {}
        # the last value of each counter, by rank, category and name
        self.counters: dict[tuple[int, str, str], Counter] = {}
        # process -> when its last record ended, on the clock of its host
        self.last_ns: dict[str, int] = {}
        self.collectives = 0  # number of collectives so far

    def update(self) -> int:
        """Read the records since the last update; returns how many there were. Raises OSError: the
        folder cannot be read."""
        n = 0
        for fresh in self._following.look():
            n += len(fresh.records)
            self._add(fresh)
        # Each process keeps an equal share. Otherwise the records of the first processes would be
        # lost when much is read at once.
        for by_process in self._last.values():
            for last in by_process.values():
                last.trim(self._share(by_process))
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
        end_ns = int(records["start_ns"][-1] + records["duration_ns"][-1])
        self.last_ns[followed.stem] = max(end_ns, self.last_ns.get(followed.stem, 0))
        self._append(KIND, fresh, codes.is_phase[name], codes.is_step[name])
        is_collective = codes.is_collective[name]
        self._append(COLLECTIVE, fresh, is_collective, is_collective)
        self.collectives += int(is_collective.sum())

    def _append(self, kind: str, fresh: Fresh, is_of_kind: Array, is_step: Array) -> None:
        """Append the records of one kind."""
        if not is_of_kind.any():
            return
        last = self._last[kind].setdefault(fresh.followed.stem, _LastRecords())
        last.add(
            fresh.followed,
            fresh.records[is_of_kind],
            fresh.tid[is_of_kind],
            is_step[is_of_kind],
            self._most,
        )

    def _count(self, followed: Followed, records: Array, is_counted: Array) -> None:
        counted_records = records[is_counted]
        if not len(counted_records):
            return
        counts = self.counts.setdefault(followed.stem, Counts(followed))
        names = counted_records["name"].astype(np.int64)
        keys, numbers = np.unique(names << 32 | counted_records["args"], return_counts=True)
        for key, n in zip(keys.tolist(), numbers.tolist(), strict=True):
            counts.add(followed.tables.names[key >> 32].name, key & 0xFFFFFFFF, n)

    def _update_counters(self, followed: Followed, records: Array, is_counter: Array) -> None:
        rank = followed.process.rank
        # only the last values matter, and a sampler writes only a few at a time
        for _, _, bits, _, number in records[is_counter][-64:].tolist():
            name = followed.tables.names[number]
            value = float(np.int64(bits).view(np.float64))
            self.counters[rank, name.category, name.name] = Counter(value, name.value_key or "")

    def records(self, kind: str = KIND) -> Records:
        """Return the records of a kind (phases, collectives) in the window, of all processes."""
        names: dict[tuple[str, str], int] = {}
        arguments: dict[bytes, int] = {b"{}": 0}
        # a process that starts recording again writes new files, but stays the same process
        processes: dict[tuple[int, str, int], int] = {}
        columns: dict[str, list[Array]] = {
            key: []
            for key in ("start_ns", "duration_ns", "name", "args", "value", "process", "tid")
        }
        for last in self._last[kind].values():
            for part in last.parts:
                process = part.followed.process
                key = process.rank, process.host, process.pid
                number = processes.setdefault(key, len(processes))
                for column in ("start_ns", "duration_ns", "value"):
                    columns[column].append(part.records[column])
                columns["tid"].append(part.tid)
                columns["process"].append(np.full(len(part.tid), number))
                columns["name"].append(_common_names(part, names))
                columns["args"].append(_common_arguments(part, arguments))
        joined: dict[str, Any] = {
            key: np.concatenate(parts) if parts else np.zeros(0, np.int64)
            for key, parts in columns.items()
        }
        return Records(
            **joined,
            names=list(names),
            arguments=[arguments_of(text) for text in arguments],
            processes=list(processes),
        )

    def is_cut(self) -> bool:
        """True if the window may have dropped records: a process has filled its share."""
        by_process = self._last[KIND]
        return any(last.n >= self._share(by_process) for last in by_process.values())

    def _share(self, by_process: Mapping[str, _LastRecords]) -> int:
        return max(self._most // len(by_process), 1)


def _common_names(part: _Part, codes: dict[tuple[str, str], int]) -> Array:
    """Return the names of records as numbers that all processes share. ``codes`` has these numbers,
    and gets new ones; the records have the numbers of their own process."""
    names = part.followed.tables.names
    numbers, inverse = np.unique(part.records["name"], return_inverse=True)
    common = []
    for number in numbers.tolist():
        name = names[number]
        common.append(codes.setdefault((name.category, name.name), len(codes)))
    return np.array(common, np.int64)[inverse]


def _common_arguments(part: _Part, codes: dict[bytes, int]) -> Array:
    """Return the arguments of records as numbers that all processes share, as ``_common_names``
    does for names."""
    arguments = part.followed.tables.arguments
    numbers, inverse = np.unique(part.records["args"], return_inverse=True)
    common = []
    for number in numbers.tolist():
        common.append(codes.setdefault(arguments.get(number, b"{}"), len(codes)))
    return np.array(common, np.int64)[inverse]


def arguments_of(text: bytes) -> Mapping[str, Any]:
    """Return the arguments in a JSON text; empty if the text is damaged."""
    try:
        arguments = json.loads(text)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


LAST_S = 10.0  # the view shows the steps of this many last seconds ...
LAST = 20  # ... but at least this many steps
_MOST_STEPS = 2000  # last steps kept of each rank, for the verdict and the history of rates
# only arguments with one of these keys are needed to compute steps and collectives
_ARGUMENTS = (b'"loader":', b'"which":', b'"module":', b'"to":', b'"group":')


def _is_wanted(arguments: bytes) -> bool:
    return any(key in arguments for key in _ARGUMENTS)


class LiveSteps:
    """Follows the steps of a run.

    Args:
        path: The run directory; it need not exist yet.
        most: Number of phase records to analyse at once; the newest if a run writes more between
            two updates.
        pid: Process id of the only process to follow; None follows all.
    """

    def __init__(self, path: str, most: int = 1 << 12, pid: int | None = None) -> None:
        self._following = Following(path, CHUNK, pid, _is_wanted)
        self.window = Window(self._following, most)
        self._ranks: dict[int, Rank] = {}
        self._parts: dict[str, Any] = {}  # live values of instruments, by key of the summary
        self._collectives = 0  # number of collectives when ``_parts`` was computed

    def update(self, cpus: int | None = None) -> bool:
        """Read the records since the last update; returns True if there were any. ``cpus``: number
        of CPUs of the host, for the verdict. Raises OSError: the run directory cannot be read."""
        has_new = bool(self.window.update())
        if has_new:
            for rank in ranks(self.window.records(), cpus):
                self._ranks[rank.rank] = self._with_steps_before(rank)
        if len(self._ranks) > 1 and self.window.collectives > self._collectives:
            self._collectives = self.window.collectives
            self._renew_parts()
        return has_new

    def _renew_parts(self) -> None:
        """Compute the live parts of instruments again, from the period for which both phases and
        collectives are known. Collectives are written seconds later than phases, many at once."""
        clocks = self._clocks()
        phases, exchanged = _of_same_time(
            self.window.records(), self.window.records(COLLECTIVE), clocks
        )
        last = [rank for rank in ranks(phases, exchanged=exchanged) if not rank.alone]
        for instrument in installed_instruments():
            if instrument.live_part:
                part = resolve(instrument.live_part)(last, phases, clocks)
                if part is not None:
                    self._parts[next(iter(instrument.parts))] = part

    def _with_steps_before(self, rank: Rank) -> Rank:
        """Return a rank with its earlier steps, and after them the new steps of the window."""
        before = self._ranks.get(rank.rank)
        steps = rank.steps
        # If earlier records were dropped (the window is cut) and training has no loader, the first
        # step begins where the window begins. Its real beginning is unknown, so it is left out.
        first = 1 if self.window.is_cut() and not steps.wait_known else 0
        train = _after(steps.train, None, first)
        if before is None:
            return replace(rank, steps=Steps(train, steps.evaluation, steps.wait_known))
        wait_known = steps.wait_known if len(train) else before.steps.wait_known
        joined = Steps(
            _joined(before.steps.train, train),
            _joined(before.steps.evaluation, steps.evaluation),
            wait_known,
        )
        return replace(rank, steps=joined, facts={**before.facts, **rank.facts})

    def fill(self, picture: Picture) -> None:
        """Put everything that is known about the steps so far into a picture."""
        every_rank = [self._ranks[number] for number in sorted(self._ranks)]
        counts = self._leading()
        picture.n_steps = counts_of_training(counts, every_rank) if counts else 0
        picture.is_counted = not self.is_behind
        trained = [rank for rank in every_rank if len(rank.steps.train)]
        if trained:
            self._fill_steps(picture, trained)
        picture.workers = _first_workers(rank.facts for rank in every_rank)
        if counts is not None:
            picture.progress = list(progress(counts, self.window.records()))
            if picture.workers is None:
                picture.workers = _first_workers(counts.loaders.values())

    def _fill_steps(self, picture: Picture, trained: list[Rank]) -> None:
        """Put the values for the training steps of all ranks that have any into a picture."""
        last = [
            replace(rank, steps=replace(rank.steps, train=_last(rank.steps.train)))
            for rank in trained
        ]
        last_figures = figures(last)
        picture.steps = last_figures["steps"]
        picture.ranks = last_figures["ranks"]
        picture.shown_s = float(max(rank.steps.train.time_ns.sum() for rank in last)) * 1e-9
        picture.rates = list(_rates(last_figures["rates"], trained))
        clocks = self._clocks()
        picture.last_step_s = {
            rank.rank: _ended_ns(rank.steps.train, clocks.get(rank.host, 0)) * 1e-9
            for rank in trained
        }
        longest = max(trained, key=lambda rank: len(rank.steps.train))
        picture.verdict = verdict({**figures(trained), **self._parts}, dict(longest.facts))

    @property
    def is_behind(self) -> bool:
        """True if not all records from before the first update have been counted yet."""
        return self._following.is_behind

    def names(self) -> Iterable[Name]:
        """Return the names of all records so far."""
        return (
            name
            for followed in self._following.processes.values()
            for name in followed.tables.names.values()
        )

    def arguments(self) -> Iterable[Mapping[str, Any]]:
        """Return the different arguments of phases so far, by process, in the order in which they
        first appeared."""
        return (
            arguments_of(text)
            for followed in self._following.processes.values()
            for text in followed.tables.arguments.values()
        )

    def last_ns(self, host: str) -> int | None:
        """Return when the last record of a host ended, on the host's clock; None without
        records."""
        hosts = {
            stem: followed.process.host for stem, followed in self._following.processes.items()
        }
        return max(
            (end_ns for stem, end_ns in self.window.last_ns.items() if hosts.get(stem) == host),
            default=None,
        )

    def processes(self) -> list[Process]:
        """Return the processes that have recorded so far."""
        return [followed.process for followed in self._following.processes.values()]

    def _clocks(self) -> dict[str, int]:
        """Return, for each host, the nanoseconds to add to its clock for the wall clock."""
        return {
            process.host: process.time_ns - process.perf_counter_ns for process in self.processes()
        }

    def has_dropped(self) -> bool:
        """True if any process has dropped records."""
        return self._following.has_dropped

    def _leading(self) -> Counts | None:
        """Return the counts of the lowest rank; of its processes, the one with the most optimizer
        steps."""
        counts = self.window.counts
        rank_of = {
            stem: followed.process.rank for stem, followed in self._following.processes.items()
        }
        best = max(
            counts,
            key=lambda stem: (-rank_of.get(stem, 0), sum(counts[stem].steps.values())),
            default=None,
        )
        return None if best is None else counts[best]


def _first_workers(facts: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the number of loader workers from the first facts that have it; None if unknown."""
    return next((fact["workers"] for fact in facts if "workers" in fact), None)


def _of_same_time(
    phases: Records, exchanged: Records, clocks: Mapping[str, int]
) -> tuple[Records, Records]:
    """Return the records of both kinds, without processes that have only one kind, and only from
    the period for which all remaining processes have both. ``clocks``: by host, the nanoseconds to
    add for the wall clock."""
    processes = set(phases.processes) & set(exchanged.processes)
    first_ns: list[int] = []  # time of the first record of each process and kind
    last_ns: list[int] = []
    for records in (phases, exchanged):
        wall_ns = _wall_ns(records, clocks)
        for number, process in enumerate(records.processes):
            times_ns = wall_ns[records.process == number]
            if process in processes and len(times_ns):
                first_ns.append(times_ns.min())
                last_ns.append(times_ns.max())
    start_ns = max(first_ns, default=0)
    end_ns = min(last_ns, default=0)

    def between(records: Records) -> Records:
        wall_ns = _wall_ns(records, clocks)
        has_both = np.array([process in processes for process in records.processes], bool)
        is_between = (wall_ns >= start_ns) & (wall_ns <= end_ns)
        return records.chosen(has_both[records.process] & is_between)

    return between(phases), between(exchanged)


def _wall_ns(records: Records, clocks: Mapping[str, int]) -> Array:
    """Return the starts of records on the wall clock."""
    process_clocks = np.array([clocks.get(host, 0) for _, host, _ in records.processes], np.int64)
    wall_ns: Array = process_clocks[records.process] + records.start_ns
    return wall_ns


def counts_of_training(counts: Counts, every_rank: Iterable[Rank]) -> int:
    """Return the number of training steps of a process: the batches of the training loader, or
    without one the steps of the optimizer that steps most."""
    optimizer_steps = max(counts.steps.values(), default=0)
    trained = (rank for rank in every_rank if len(rank.steps.train))
    if not counts.batches or any(not rank.steps.wait_known for rank in trained):
        return optimizer_steps
    by_loader: dict[int | None, int] = {}
    for (loader, _), n in counts.batches.items():
        by_loader[loader] = by_loader.get(loader, 0) + n
    # The training loader is the loader with the number of batches that is nearest to the number of
    # optimizer steps, and preferably not below it: an evaluation has no optimizer steps.
    return min(by_loader.values(), key=lambda n: (n < optimizer_steps, abs(n - optimizer_steps)))


def _after(table: Table, start_ns: int | None, first: int = 0) -> Table:
    """Return the steps that began after ``start_ns``, and in any case without the first ``first``
    steps of the table."""
    if start_ns is not None:
        first = max(int(np.searchsorted(table.start_ns, start_ns, side="right")), first)
    return table.chosen(slice(first, None))


def _joined(before: Table, after: Table) -> Table:
    """Return the last ``_MOST_STEPS`` steps of two tables; a step in both tables counts once."""
    if len(before):
        after = _after(after, int(before.start_ns[-1]))
    return concatenated([before, after]).chosen(slice(-_MOST_STEPS, None))


def _ended_ns(table: Table, clock_ns: int) -> int:
    return int(table.end_ns[-1]) + clock_ns


def _last(table: Table) -> Table:
    """Return the steps of the last ``LAST_S`` seconds, but at least ``LAST`` steps."""
    if not len(table):
        return table
    since_ns = int(table.end_ns[-1]) - LAST_S * 1e9
    recent = len(table) - int(np.searchsorted(table.start_ns, since_ns))
    return _after(table, None, max(len(table) - max(recent, LAST), 0))


def _rates(rates: Mapping[str, Any], trained: list[Rank]) -> Iterable[Number]:
    table = trained[0].steps.train
    for name, rate in rates.items():
        history = _history(table.items, RATE_TIMES[name](table))
        yield Number(name, throughput(rate), rate["units"], history)


def _history(items: Array, time_ns: Array) -> list[float]:
    """Return the items per second in up to ``HISTORY`` equal parts of the steps, in order."""
    parts = min(HISTORY, len(items))
    edges = np.linspace(0, len(items), parts, endpoint=False).astype(np.int64)
    items_by_part = np.add.reduceat(np.maximum(items, 0), edges).astype(float)
    ns_by_part = np.add.reduceat(time_ns, edges).astype(float)
    return [
        n / (part_ns * 1e-9) if part_ns > 0 else 0.0
        for n, part_ns in zip(items_by_part.tolist(), ns_by_part.tolist(), strict=True)
    ]


class _Requests(NamedTuple):
    """The requests for batches of a loader's last episode."""

    loader: Any
    episode: int
    start_ns: Array
    is_training: bool  # False if backward passes do not follow the requests to this loader


def progress(counts: Counts, records: Records) -> Iterable[Progress]:
    """Yield the progress of the latest loop over each loader, with the time that is left."""
    every_loader = _last_requests(records)
    for requests in sorted(every_loader, key=lambda requests: str(requests.loader)):
        facts = counts.loaders.get(requests.loader, {})
        total = facts.get("length")
        n = counts.batches.get((requests.loader, requests.episode), 0)
        if not isinstance(total, int) or total <= 0:
            continue
        name = "epoch" if requests.is_training else "evaluation"
        if len(every_loader) > 1:
            name = f"{facts.get('dataset')} {name}"
        label = f"{name} {counts.epochs.get(requests.loader, 0)}"
        speed = _batches_per_s(requests.start_ns)
        left_s = (total - n) / speed if speed and n < total else None
        yield Progress(label, min(n, total), total, left_s)


def _last_requests(records: Records) -> list[_Requests]:
    """Return the requests of the last episode of each loader."""
    if ("dataloader", "fetch") not in records.names:
        return []
    is_request = records.name == list(records.names).index(("dataloader", "fetch"))
    start_ns, args = records.start_ns[is_request], records.args[is_request]
    latest: dict[Any, tuple[int, int]] = {}  # loader -> (last episode, number of its arguments)
    codes: dict[Any, list[int]] = {}  # loader -> numbers of the arguments of all its episodes
    for code in np.unique(args).tolist():
        arguments = records.arguments[code]
        loader, episode = arguments.get("loader"), arguments.get("episode", 0)
        codes.setdefault(loader, []).append(code)
        if loader not in latest or episode > latest[loader][0]:
            latest[loader] = episode, code
    passes_ns = _starts_of(records, "backward")
    if not len(passes_ns):
        passes_ns = _starts_of(records, "step")
    last_requests = []
    for loader, (episode, code) in latest.items():
        loader_ns = start_ns[np.isin(args, codes[loader])]
        is_training = not len(passes_ns) or _is_followed(loader_ns, passes_ns)
        last_requests.append(_Requests(loader, episode, start_ns[args == code], is_training))
    return last_requests


def _batches_per_s(start_ns: Array) -> float:
    """Return the number of batches requested per second, from the starts of the requests; 0 if
    unknown."""
    if len(start_ns) < 2 or start_ns.max() == start_ns.min():
        return 0.0
    speed: float = (len(start_ns) - 1) / ((start_ns.max() - start_ns.min()) * 1e-9)
    return speed


def _starts_of(records: Records, name: str) -> Array:
    """Return the starts of the backward passes (``backward``) or optimizer steps (``step``),
    ascending."""
    code = next((i for i, span in enumerate(records.names) if span == ("compute", name)), -1)
    starts: Array = np.sort(records.start_ns[records.name == code])
    return starts


def _is_followed(asked_ns: Array, passes_ns: Array) -> bool:
    """True if most requests for a batch are followed by a backward pass before the next request. In
    an evaluation they are not."""
    following: Array = np.atleast_1d(np.searchsorted(passes_ns, asked_ns))
    is_open = following == len(passes_ns)
    if is_open.sum() == 1:  # the last batch, whose backward pass may not be recorded yet
        following = following[~is_open]
    followed = np.unique(following[following < len(passes_ns)])
    return len(followed) >= len(following) / 2


# Counters that the view leaves out: totals since the beginning of the run, and parts of other
# counters.
_LEFT_OUT = {
    "read",
    "write",
    "disk_read",
    "disk_write",
    "net_sent",
    "net_received",
    "shared",
    "processes",
}


def devices(counters: Mapping[tuple[int, str, str], Counter], rank: int = 0) -> Iterator[Number]:
    """Yield the counters of one rank. A counter of the monitor has its plain name; the name of any
    other counter includes its category."""
    for (of_rank, category, name), counter in counters.items():
        if of_rank != rank or (category == "monitor" and name in _LEFT_OUT):
            continue
        full_name = name if category == "monitor" else f"{category}.{name}"
        yield Number(full_name.replace("_", " "), counter.value, counter.units, ())
