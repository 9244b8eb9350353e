"""Recording of batches in the process that requests them, of pinning, and of workers that were
killed; and the state that all parts of ``--loader`` share.

A batch is queued, arrives, is waited for and is consumed; it is pinned in the thread that pins. For
a killed worker, the batch and sample that it was working on are recorded, as far as the worker's
own records show them. Shared are the state of each thread, and the names and arguments of records.

The code must never raise, and never change the objects that it receives. It only reads attributes
of torch's own iterators. Checked with torch 2.1 and 2.15, torchdata 0.11.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from time import process_time_ns, thread_time_ns
from typing import Any, NamedTuple

from voirkit.probes.around import ABSENT
from voirkit_instruments.identity import IdentityMap, LoaderNumbers

now = time.perf_counter_ns
UNKNOWN = -1
MAIN = -1  # worker number of the process that requests batches, if it makes them itself

# Values of ``inside``: what a thread is running. A patched function only records if ``inside`` is
# at most the limit of its patch (``Around.most``). So transforms are recorded in an item (a sample
# that is being read) and elsewhere in a fetch; an item in a fetch, but not in another item; queues
# in the loop of a worker, in the loop of the pinning thread, and where an index is put on a queue.
ITEM, FETCH, WORKER, PUTTING, PIN, PINNING, OUTSIDE = 0, 1, 2, 3, 4, 5, 6


class ThreadState(threading.local):
    """State of each thread: the part of loading that it is running (``inside``), and the batch and
    sample that it is preparing.

    Attributes:
        batch: The loader's number of the batch that is being prepared.
        item: The index of the sample that is being read.
        args: The recorder's number of the arguments of records: loader, episode and worker.
        idle: The time since which a worker has waited for the number of a batch.
        worked: The CPU time that a worker had used when it finished its last batch; 0: no batch
            yet.
        of: The recorder's number of the arguments of a sample's record: the arguments of ``args``,
            and the dataset that reads the sample.
    """

    inside = OUTSIDE
    batch = item = UNKNOWN
    args = idle = of = worked = 0
    collates = False  # True while samples are collated
    worker = MAIN  # number of this worker
    episode: Episode | None = None  # the episode of the batches that are being prepared
    # the episode whose iterator this thread made last; in a forked worker, the worker's own episode
    making: Episode | None = None
    index_queue: Any = None  # the queue that this thread takes numbers of batches from
    data_queue: Any = None  # the queue that a worker puts batches on
    sent: Any = None  # the object that was put on a worker's queue last
    owner: Any = None  # a weak reference to the iterator that this pinning thread belongs to
    # the innermost dataset of which a sample is being read; None: no sample is being read
    dataset: Any = None
    batches_of: Any = None  # the dataset whose ``__getitems__`` runs
    sources: Any = None  # ``Sources`` of this thread's episode and worker

    def __deepcopy__(self, memo: object) -> ThreadState:
        # no copy: torch.compile copies the constants of code, which include this object
        return self


class Recording:
    """Writes records of loaders into the trace.

    Args:
        recorder: ``voirkit.trace.recorder``, or an object with its ``name``, ``arguments`` and
            ``span``.
        warn: Called with a message when a record has failed, once for each kind of record.
        numbers: The numbers of the run's loaders and episodes.

    Attributes:
        state: The state of each thread.
    """

    def __init__(self, recorder: Any, warn: Callable[[str], None], numbers: LoaderNumbers) -> None:
        # Each ``Recording`` makes a subclass: class attributes apply to all threads, and must not
        # affect another ``Recording``.
        self.state = type("ThreadState", (ThreadState,), {})()
        self.span: Callable[..., None] = recorder.span
        self.numbers, self.warn = numbers, warn
        self._recorder = recorder
        self._failed: set[str] = set()
        self.has_made = False  # True if an iterator over a loader was made

    def name(self, category: str, name: str, value: str) -> int:
        """Return the recorder's number of a name. ``value`` is the key of a record's own number:
        ``batch`` or ``index``."""
        number: int = self._recorder.name(category, name, kind="loader", value=value)
        return number

    def operation(self, name: str) -> int:
        """Return the recorder's number of an operation's name."""
        return self.name("operation", name, "index")

    def arguments(self, place: dict[str, Any]) -> int:
        """Return the recorder's number of a set of arguments."""
        number: int = self._recorder.arguments(place)
        return number

    def be_at(self, episode: Episode, worker: int) -> None:
        """Note that this thread prepares batches of an episode from now on, as the given worker."""
        state = self.state
        state.episode, state.worker = episode, worker
        state.args = self.arguments_of(episode, worker=worker, **episode.source)
        sources = episode.sources.get(worker)
        if sources is None:
            kinds = [SourceArguments(self, episode, worker, *reading) for reading in _READINGS]
            sources = episode.sources[worker] = Sources(*kinds)
        state.sources = sources

    def arguments_of(self, episode: Episode, **more: Any) -> int:
        """Return the number of a set of arguments: an episode's, and ``more``."""
        key = tuple(more.items())
        number = episode.arguments.get(key)
        if number is None:
            number = episode.arguments[key] = self.arguments({**episode.place, **more})
        return number

    def folder(self) -> str | None:
        """Return the folder of the trace's files; None if nothing is recorded into files."""
        inherited = getattr(self._recorder, "inherited", lambda: None)()
        return None if inherited is None else str(inherited[0])

    def cost(self, name: str) -> int:
        """Return the recorder's number of the name of a cost that a batch has besides its making:
        nanoseconds of CPU time, bytes, tensors."""
        return self.name("cost", name, name)

    def failed(self, part: str, exc: BaseException) -> None:
        """Warn, once for each kind of record, that one could not be made."""
        if part not in self._failed:
            self._failed.add(part)
            self.warn(
                f"loader: {part} could not be recorded ({type(exc).__name__}: {exc}); this is told"
                " once."
            )


class Episode:
    """One pass of an iterator over its loader, as seen by the process that requests batches.

    Attributes:
        source: Arguments about the dataset that reads its samples: ``source`` (class and method),
            and ``whole`` if a sample is a batch; empty if unknown.
        batches: Number of batches requested so far, if there are no workers.
        worked: The CPU time that this process had used when the last batch came; 0: no batch yet.
    """

    def __init__(self, loader: int, episode: int) -> None:
        # the arguments that identify the episode in records
        self.place: dict[str, Any] = {"loader": loader, "episode": episode}
        self.source: dict[str, Any] = {}
        # the recorder's numbers of sets of arguments, by the arguments that are added to ``place``
        self.arguments: dict[Any, int] = {}
        # by number of each batch that was queued and has not arrived: the indices of its samples
        self.tasks: dict[int, Any] = {}
        self.batches = self.worked = 0
        # number of the batch that arrived last since the last request; None: no batch has arrived
        self.arrived: int | None = None
        self.lost = False  # True if the last request ended without a batch
        # by worker: the numbers of arguments for each way to read samples
        self.sources: dict[int, Sources] = {}


class SourceArguments(dict[type, int]):
    """Numbers of the arguments that name the dataset from which samples are read, by the class of
    the dataset. ``whole``: True if a whole batch is read at once; None: as in the episode's
    ``source``."""

    def __init__(
        self,
        recording: Recording,
        episode: Episode,
        worker: int,
        suffix: str,
        whole: bool | None = None,
    ) -> None:
        self._recording = recording
        self._place = episode, worker
        self._suffix = suffix
        self._whole = whole

    def __missing__(self, kind: type) -> int:
        episode, worker = self._place
        try:
            facts = {**episode.source, "source": f"{kind.__name__}{self._suffix}"}
            if self._whole is not None:
                facts["whole"] = self._whole
            if not facts.get("whole"):
                facts.pop("whole", None)
            number = self._recording.arguments_of(episode, worker=worker, **facts)
        except Exception:
            # the class has an unusual name: its samples are recorded without the name
            number = 0
        self[kind] = number
        return number


# for each field of ``Sources``: the method that reads, and if it reads a whole batch
_READINGS = (
    (".__getitem__", None),
    (".__getitem__", False),
    (".__getitem__", True),
    (".__getitems__", True),
    (".__iter__", None),
)


class Sources(NamedTuple):
    """Arguments for each way to read samples: a sample for the loader (``items``) or for another
    dataset (``inner``), a list of samples (``lists``), a batch (``batches``), or one sample after
    the other from an iterator (``turns``)."""

    items: SourceArguments
    inner: SourceArguments
    lists: SourceArguments
    batches: SourceArguments
    turns: SourceArguments


class Batches:
    """Code that runs around methods of a loader's iterator, and records its batches.

    Args:
        prepare: Called before workers are made, with a dataset, a collate function, and True if a
            sample is a batch. Returns the source of samples, as in ``Episode``.
        died: Called with an iterator and its episode when a request finds that a worker is dead.
    """

    def __init__(
        self,
        recording: Recording,
        prepare: Callable[[Any, Any, bool], dict[str, Any]],
        died: Callable[[Any, Episode], None],
    ) -> None:
        self._recording = recording
        self._prepare = prepare
        self._died = died
        self._state = recording.state
        self._span = recording.span
        self._arguments = recording.arguments_of
        self._episodes = IdentityMap()  # by iterator: its current ``Episode``
        self._queued = recording.name("batch", "queued", "batch")
        self._arrived = recording.name("batch", "arrived", "batch")
        self._wait = recording.name("batch", "wait", "batch")
        self._consumed = recording.name("batch", "consumed", "batch")
        self._pin = recording.name("batch", "pin", "batch")
        self._receive, self._train = recording.cost("receive_ns"), recording.cost("training_ns")

    # Start of an episode: an iterator is made, or begins again

    def making(self, iterator: Any, loader: Any) -> int:
        """Begin an episode, before ``_BaseDataLoaderIter.__init__``."""
        try:
            episode = self._start_episode(iterator, loader)
            attributes = vars(loader)
            episode.source = self._prepare(
                attributes.get("dataset"),
                attributes.get("collate_fn"),
                attributes.get("batch_sampler") is None,
            )
        except Exception as exc:  # torch's internals may have changed; the program goes on
            self._recording.failed("a loader's iterator", exc)
        return 1

    def beginning_again(self, iterator: Any, loader: Any, first_iter: bool) -> int:
        """Begin a new episode before ``_BaseDataLoaderIter._reset``, unless the iterator is new.
        The workers are notified through ``_ResumeIteration``."""
        try:
            if not first_iter:
                self._start_episode(iterator, loader)
        except Exception as exc:  # torch's internals may have changed; the program goes on
            self._recording.failed("a loader's iterator", exc)
        return 1

    def _start_episode(self, iterator: Any, loader: Any) -> Episode:
        numbers = self._recording.numbers
        self._recording.has_made = True
        episode = Episode(numbers.loader(loader), numbers.begin_episode(iterator))
        self._episodes[iterator] = episode
        self._state.making = episode
        return episode

    def episode(self, iterator: Any) -> Episode:
        """Return the episode that an iterator is in. Raises KeyError: it was made before recording
        began."""
        episode: Episode | None = self._episodes.get(iterator)
        if episode is None:
            raise KeyError(id(iterator))
        return episode

    # Batches that workers make

    def around_put_index(self) -> tuple[Any, Any]:
        """Return functions to run before and after ``_try_put_index``, which record the queued
        batch."""
        state = self._state

        def enter(iterator: Any) -> Any:
            state.inside, state.sent = PUTTING, None
            return (iterator._send_idx,)

        def leave(entered: Any, was: int, iterator: Any) -> None:
            time_ns = now()
            sent, state.inside, state.sent = state.sent, was, None
            try:
                batch = entered[0] if entered else iterator._send_idx
                if iterator._send_idx > batch:
                    episode, worker = self.episode(iterator), iterator._task_info[batch][0]
                    args = self._arguments(episode, worker=worker)
                    self._span(self._queued, time_ns, time_ns, args, batch)
                    episode.tasks[batch] = sent[1] if sent is not None else None
            except Exception as exc:  # torch's internals may have changed; the program goes on
                self._recording.failed("a queued batch", exc)

        return enter, leave

    def after_get_data(self) -> Any:
        """Return the function to run after ``_get_data``, which gave a batch or a worker's answer
        to another message, or raised."""

        def leave(start_ns: int, was: int, iterator: Any, got: Any) -> None:
            time_ns = now()
            try:
                episode = self.episode(iterator)
                if got is ABSENT:
                    episode.lost = True
                elif type(got[0]) is int:
                    batch = got[0]
                    task = iterator._task_info.get(batch)
                    # Without a task, this loop has not requested the batch: persistent workers
                    # still had it when the previous loop was left.
                    if task is not None:
                        episode.arrived = batch
                        episode.tasks.pop(batch, None)
                        args = self._arguments(episode, worker=task[0])
                        self._span(self._arrived, time_ns, time_ns, args, batch)
            except Exception as exc:  # torch's internals may have changed; the program goes on
                self._recording.failed("a batch's arrival", exc)

        return leave

    def around_next(self) -> tuple[Any, Any]:
        """Return functions to run before and after ``_next_data`` if workers prepare batches."""

        def enter(iterator: Any) -> Any:
            try:
                episode = self.episode(iterator)
                episode.arrived, episode.lost = None, False
            except KeyError:
                return 0
            return now(), process_time_ns(), thread_time_ns()

        def leave(entered: Any, was: int, iterator: Any, got: Any) -> None:
            end = now()
            if not entered:
                return
            try:
                episode = self.episode(iterator)
                start_ns = entered[0]
                self._cost(episode, start_ns, entered[1])
                self._span(
                    self._receive, end, end, self._arguments(episode), thread_time_ns() - entered[2]
                )
                error = _error(got)
                if error is StopIteration:
                    return
                if episode.lost:
                    # the number of the batch that was waited for and did not come
                    batch = iterator._rcvd_idx
                elif getattr(iterator, "_in_order", True):
                    batch = iterator._rcvd_idx - 1
                else:
                    batch = episode.arrived
                more = {} if error is None else {"error": error.__name__}
                self._span(
                    self._wait,
                    start_ns,
                    end,
                    self._arguments(episode, ready=episode.arrived is None and not episode.lost),
                    batch,
                )
                if not episode.lost:
                    self._span(self._consumed, end, end, self._arguments(episode, **more), batch)
                else:
                    self._died(iterator, episode)
            except Exception as exc:  # torch's internals may have changed; the program goes on
                self._recording.failed("a wait for a batch", exc)

        return enter, leave

    def _cost(self, episode: Episode, start_ns: int, worked: int) -> None:
        """Record the CPU time, of all threads, that the program has used from the last batch to the
        request for the next one."""
        if episode.worked:
            self._span(
                self._train, start_ns, start_ns, self._arguments(episode), worked - episode.worked
            )
        episode.worked = process_time_ns()

    # Batches that are made without workers

    def around_next_here(self) -> tuple[Any, Any]:
        """Return functions to run before and after ``_next_data`` if this thread itself prepares
        batches, perhaps while it reads an item of another loader."""
        state = self._state

        def enter(iterator: Any) -> Any:
            try:
                episode = self.episode(iterator)
                before = (
                    state.batch,
                    state.item,
                    state.args,
                    state.episode,
                    state.worker,
                    state.sources,
                    state.of,
                    state.dataset,
                    state.batches_of,
                )
                self._recording.be_at(episode, MAIN)
            except Exception:
                # the iterator was made before recording began, or the version of torch is unknown
                return 0
            state.inside, state.batch = PIN, episode.batches
            return now(), episode, before, process_time_ns()

        def leave(entered: Any, was: int, got: Any) -> None:
            end = now()
            state.inside = was
            if not entered:
                return
            try:
                start_ns, episode, before, worked = entered
                (
                    state.batch,
                    state.item,
                    state.args,
                    state.episode,
                    state.worker,
                    state.sources,
                    state.of,
                    state.dataset,
                    state.batches_of,
                ) = before
                error = _error(got)
                if error is StopIteration:
                    return
                self._cost(episode, start_ns, worked)
                batch = episode.batches
                episode.batches += 1
                more = {} if error is None else {"error": error.__name__}
                self._span(self._wait, start_ns, end, self._arguments(episode, ready=False), batch)
                self._span(self._consumed, end, end, self._arguments(episode, **more), batch)
            except Exception as exc:  # torch's internals may have changed; the program goes on
                self._recording.failed("a batch", exc)

        return enter, leave

    # Pinning of batches

    def around_pin_loop(self) -> tuple[Any, Any]:
        """Return functions to run before and after the loop of the pinning thread."""
        state = self._state

        def enter(in_queue: Any, out_queue: Any) -> int:
            state.inside, state.index_queue = PIN, in_queue
            state.owner = None
            for iterator, _ in self._episodes.items():
                if _has_queues(iterator, in_queue, out_queue):
                    state.owner = weakref.ref(iterator)
                    break
            return 1

        def leave(start_ns: int, was: int) -> None:
            state.inside, state.index_queue = was, None

        return enter, leave

    def around_pin(self) -> tuple[Any, Any]:
        """Return functions to run before and after ``pin_memory``. It calls itself for the parts of
        a batch, so only the outermost call is recorded."""
        state = self._state

        def enter() -> int:
            if state.inside != PIN or state.batch == UNKNOWN:
                return 0
            state.inside = PINNING
            return now()

        def leave(start_ns: int, was: int) -> None:
            end = now()
            state.inside = was
            if not start_ns:
                return
            try:
                args, owner = state.args, state.owner
                # In the pinning thread, the episode is looked up for each batch: an iterator with
                # persistent workers may be in another episode by now.
                if owner is not None:
                    args = self._arguments(self.episode(owner()))
                self._span(self._pin, start_ns, end, args, state.batch)
            except Exception as exc:  # torch's internals may have changed; the program goes on
                self._recording.failed("a batch's pinning", exc)

        return enter, leave


def _has_queues(iterator: Any, in_queue: Any, out_queue: Any) -> bool:
    """True if a pinning thread's queues are those of an iterator."""
    return (
        getattr(iterator, "_worker_result_queue", None) is in_queue
        and getattr(iterator, "_data_queue", None) is out_queue
    )


def _error(got: Any) -> type[BaseException] | None:
    """Return the type of the exception that the observed function has raised; None if it returned a
    value."""
    return (sys.exc_info()[0] or BaseException) if got is ABSENT else None


_LAST = 1 << 14  # number of last records of a worker that are read


class Deaths:
    """Records and reports workers that have died."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._died = recording.name("worker", "died", "batch")
        self._reported: set[int] = set()

    def check_workers(self, iterator: Any, episode: Episode) -> None:
        """Find the workers that have died, after a request has found no batch. torch has checked
        them before, so asking for their exit codes changes nothing."""
        time_ns = now()
        for worker, process in enumerate(iterator._workers):
            code = process.exitcode
            if code and process.pid not in self._reported:
                self._reported.add(process.pid)
                tasks = iterator._task_info.items()
                waiting = [batch for batch, info in tasks if info == (worker,)]
                self._report(time_ns, episode, worker, process.pid, code, waiting)

    def _report(
        self, time_ns: int, episode: Episode, worker: int, pid: int, code: int, waiting: list[int]
    ) -> None:
        recording = self._recording
        batch, n_read = self._last_batch(pid)
        sample = None
        if batch in episode.tasks:
            indices = episode.tasks[batch]
            # torchdata sends more than the indices: they are the first of two objects
            if type(indices) is tuple and len(indices) == 2:
                indices = indices[0]
            samples = indices if isinstance(indices, list) else [indices]
            if n_read < len(samples) and type(samples[n_read]) is int:
                sample = samples[n_read]
        else:
            batch = min(waiting, default=UNKNOWN)
        more = {"worker": worker, "pid": pid, "exit_code": code, "sample": sample}
        recording.span(
            self._died, time_ns, time_ns, recording.arguments({**episode.place, **more}), batch
        )
        how = f"was killed by {_signal(-code)}" if code < 0 else f"exited with code {code}"
        work = ""
        if batch != UNKNOWN:
            work = f" with batch {batch}"
            if sample is not None:
                work += f", sample {sample}"
        recording.warn(
            f"loader: worker {worker} (pid {pid}) of loader {episode.place['loader']} {how}{work}."
        )

    def _last_batch(self, pid: int) -> tuple[int, int]:
        """Return the batch that a process took last, according to its own records, and the number
        of samples that it has read since."""
        folder = self._recording.folder()
        if folder is None:
            return UNKNOWN, 0
        from voirkit.trace.following import Following

        batch, n_read = UNKNOWN, 0
        for fresh in Following(os.path.dirname(folder), at_once=_LAST, pid=pid).look():
            names = fresh.followed.tables.names
            numbers, values = fresh.records["name"].tolist(), fresh.records["value"].tolist()
            for number, value in zip(numbers, values, strict=True):
                name = names.get(number)
                if name is not None and name.kind == "loader":
                    if (name.category, name.name) == ("worker", "idle"):
                        batch, n_read = value, 0
                    elif (name.category, name.name) == ("data", "item"):
                        n_read += 1
        return batch, n_read


def _signal(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
