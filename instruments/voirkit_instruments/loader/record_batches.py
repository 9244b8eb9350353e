"""Batches, as the process that asks for them sees them: queued, arrived, waited for, consumed; pinned, in the thread that does it; and
workers that were killed: with which batch, and at which of its samples, as far as their own records show. Before these, what all parts of
the instrument share: what each thread is inside of, and the names and arguments of records.

Must never raise, and never change what it is shown. Reads attributes of torch's own iterators only. Checked with torch 2.1 and 2.15,
torchdata 0.11.
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
MAIN = -1  # in place of a worker's number: the process that asks for batches prepares them itself

# What a thread is inside of. What stands around a function does something up to its level: transforms in an item and elsewhere in a fetch,
# an item in a fetch but in no other item, queues in the loop of a worker, of the pinning thread, and where an index is put on one.
ITEM, FETCH, WORKER, PUTTING, PIN, PINNING, OUTSIDE = 0, 1, 2, 3, 4, 5, 6


class ThreadState(threading.local):
    """Where each thread is.

    Attributes:
        batch: The loader's number of the batch that is being prepared.
        item: The index of the sample that is being read.
        args: Number of the arguments of records: loader, episode and worker.
        idle: Since when a worker waits for a number.
        worked: The processor's time that a worker had used when it had made its last batch; 0: it has made none.
        of: Number of the arguments of the sample's record: as ``args``, with what reads it.
    """

    inside = OUTSIDE
    batch = item = UNKNOWN
    args = idle = of = worked = 0
    collates = False  # whether samples are being put together
    worker = MAIN  # which worker this is
    episode: Episode | None = None  # what they are of, while batches are prepared
    making: Episode | None = None  # the episode whose iterator this thread has made last; in a forked worker that is its own
    asked: Any = None  # the queue that this thread takes numbers of batches from
    given: Any = None  # the queue that a worker puts batches on
    sent: Any = None  # what was put on a worker's queue last
    owner: Any = None  # a weak reference to the iterator that this pinning thread belongs to
    dataset: Any = None  # the dataset whose sample is being read, innermost; None: none is
    batches_of: Any = None  # the dataset whose ``__getitems__`` runs
    sources: Any = None  # numbers of such arguments by the dataset's class

    def __deepcopy__(self, memo: object) -> ThreadState:
        return self  # torch.compile copies the constants of code, of which it is one


class Recording:
    """Writes what loaders do into the trace plane.

    Args:
        recorder: ``voirkit.trace.recorder``, or what has its ``name``, ``arguments`` and ``span``.
        warn: Told, once, of a record that failed.
        numbers: Of the run's loaders and episodes.

    Attributes:
        here: Says where each thread is.
    """

    def __init__(self, recorder: Any, warn: Callable[[str], None], numbers: LoaderNumbers) -> None:
        self.here = type("ThreadState", (ThreadState,), {})()  # a class of its own: what it says of all threads is for this one alone
        self.span: Callable[..., None] = recorder.span
        self.numbers, self.warn = numbers, warn
        self._recorder = recorder
        self._failed: set[str] = set()
        self.has_made = False  # whether an iterator over a loader has been made

    def name(self, category: str, name: str, value: str) -> int:
        """The number of a name, and what a record's own number is: ``batch`` or ``index``."""
        found: int = self._recorder.name(category, name, kind="loader", value=value)
        return found

    def operation(self, name: str) -> int:
        """The number of an operation's name."""
        return self.name("operation", name, "index")

    def arguments(self, place: dict[str, Any]) -> int:
        """The number of a set of arguments."""
        found: int = self._recorder.arguments(place)
        return found

    def be_at(self, episode: Episode, worker: int) -> None:
        """From now on this thread prepares batches of an episode."""
        here = self.here
        here.episode, here.worker = episode, worker
        here.args = self.arguments_of(episode, worker=worker, **episode.source)
        sources = episode.sources.get(worker)
        if sources is None:
            sources = episode.sources[worker] = Sources(
                SourceArguments(self, episode, worker, ".__getitem__"),
                SourceArguments(self, episode, worker, ".__getitem__", False),
                SourceArguments(self, episode, worker, ".__getitem__", True),
                SourceArguments(self, episode, worker, ".__getitems__", True),
                SourceArguments(self, episode, worker, ".__iter__"),
            )
        here.sources = sources

    def arguments_of(self, episode: Episode, **more: Any) -> int:
        """The number of an episode's arguments and others."""
        key = tuple(more.items())
        found = episode.arguments.get(key)
        if found is None:
            found = episode.arguments[key] = self.arguments({**episode.place, **more})
        return found

    def folder(self) -> str | None:
        """Where the trace's files are; None if nothing is recorded into files."""
        inherited = getattr(self._recorder, "inherited", lambda: None)()
        return None if inherited is None else str(inherited[0])

    def cost(self, name: str) -> int:
        """The number of a name of what a batch costs beside its making: nanoseconds of a processor's time, bytes, tensors."""
        return self.name("cost", name, name)

    def failed(self, what: str, exc: BaseException) -> None:
        """Tell, once for each kind of record, that one could not be made."""
        if what not in self._failed:
            self._failed.add(what)
            self.warn(f"loader: {what} could not be recorded ({type(exc).__name__}: {exc}); this is told once.")


class Episode:
    """One pass of an iterator over its loader, as the process that asks for batches keeps it.

    Attributes:
        source: What reads its samples, ``source``: class and method, and ``whole`` if a sample of theirs is a batch; empty if that is
            not known.
        batches: How many were asked for, where no worker prepares them.
        worked: The processor's time that this process had used when the last batch had come; 0: none has.
    """

    def __init__(self, loader: int, episode: int) -> None:
        self.place: dict[str, Any] = {"loader": loader, "episode": episode}  # its ``loader`` and ``episode``
        self.source: dict[str, Any] = {}
        self.arguments: dict[Any, int] = {}  # the numbers of its arguments with others, by those
        self.tasks: dict[int, Any] = {}  # the indices of each batch that was queued and has not arrived
        self.batches = self.worked = 0
        self.arrived: int | None = None  # the last batch that has arrived since one was asked for; None: none has
        self.lost = False  # whether the last request ended without a batch
        self.sources: dict[int, Sources] = {}  # by worker, the numbers of arguments that name the class of a dataset


class SourceArguments(dict[type, int]):
    """By class of the dataset that reads: the number of arguments that name it; ``whole``: whether a batch is read, None if the episode
    knows."""

    def __init__(self, recording: Recording, episode: Episode, worker: int, suffix: str, whole: bool | None = None) -> None:
        self._recording, self._place, self._suffix, self._whole = recording, (episode, worker), suffix, whole

    def __missing__(self, kind: type) -> int:
        episode, worker = self._place
        try:
            given = {**episode.source, "source": f"{kind.__name__}{self._suffix}"}
            if self._whole is not None:
                given["whole"] = self._whole
            if not given.get("whole"):
                given.pop("whole", None)
            number = self._recording.arguments_of(episode, worker=worker, **given)
        except Exception:
            number = 0
        self[kind] = number
        return number


class Sources(NamedTuple):
    """Arguments of what reads samples: one, one that another dataset asks for, a list of them, a batch, or by turns."""

    items: SourceArguments
    inner: SourceArguments
    lists: SourceArguments
    batches: SourceArguments
    turns: SourceArguments


class Batches:
    """Functions that stand around those of a loader's iterator.

    Args:
        prepare: Called with a dataset and a collate function before workers are made, and whether a sample is a batch; tells the source
            of samples, as in ``Episode``.
        died: Called with an iterator and its episode when a request has found that a worker is gone.
    """

    def __init__(
        self, recording: Recording, prepare: Callable[[Any, Any, bool], dict[str, Any]], died: Callable[[Any, Episode], None]
    ) -> None:  # fmt: skip
        self._recording, self._prepare, self._died = recording, prepare, died
        self._here, self._span, self._arguments = recording.here, recording.span, recording.arguments_of
        self._episodes = IdentityMap()  # by iterator
        self._queued = recording.name("batch", "queued", "batch")
        self._arrived = recording.name("batch", "arrived", "batch")
        self._wait = recording.name("batch", "wait", "batch")
        self._consumed = recording.name("batch", "consumed", "batch")
        self._pin = recording.name("batch", "pin", "batch")
        self._receive, self._train = recording.cost("receive_ns"), recording.cost("training_ns")

    # an iterator is made, or begins again

    def making(self, iterator: Any, loader: Any) -> int:
        """Before ``_BaseDataLoaderIter.__init__``."""
        try:
            episode = self._start_episode(iterator, loader)
            given = vars(loader)
            episode.source = self._prepare(given.get("dataset"), given.get("collate_fn"), given.get("batch_sampler") is None)
        except Exception as exc:
            self._recording.failed("a loader's iterator", exc)
        return 1

    def beginning_again(self, iterator: Any, loader: Any, first_iter: bool) -> int:
        """Before ``_BaseDataLoaderIter._reset``: its workers are told by what ``_ResumeIteration`` carries."""
        try:
            if not first_iter:
                self._start_episode(iterator, loader)
        except Exception as exc:
            self._recording.failed("a loader's iterator", exc)
        return 1

    def _start_episode(self, iterator: Any, loader: Any) -> Episode:
        numbers = self._recording.numbers
        self._recording.has_made = True
        episode = Episode(numbers.loader(loader), numbers.begin_episode(iterator))
        self._episodes[iterator] = episode
        self._here.making = episode
        return episode

    def episode(self, iterator: Any) -> Episode:
        """The episode that an iterator is in. Raises KeyError: it was made before anybody watched."""
        episode: Episode | None = self._episodes.get(iterator)
        if episode is None:
            raise KeyError(id(iterator))
        return episode

    # with workers

    def around_put_index(self) -> tuple[Any, Any]:
        """Around ``_try_put_index``, in which what is put on a queue is looked at."""
        here = self._here

        def enter(iterator: Any) -> Any:
            here.inside, here.sent = PUTTING, None
            return (iterator._send_idx,)

        def leave(began: Any, was: int, iterator: Any) -> None:
            at = now()
            sent, here.inside, here.sent = here.sent, was, None
            try:
                batch = began[0] if began else iterator._send_idx
                if iterator._send_idx > batch:
                    episode, worker = self.episode(iterator), iterator._task_info[batch][0]
                    self._span(self._queued, at, at, self._arguments(episode, worker=worker), batch)
                    episode.tasks[batch] = sent[1] if sent is not None else None
            except Exception as exc:
                self._recording.failed("a queued batch", exc)

        return enter, leave

    def after_get_data(self) -> Any:
        """After ``_get_data``: a batch, a worker's answer to another message, or an exception."""

        def leave(began: int, was: int, iterator: Any, got: Any) -> None:
            at = now()
            try:
                episode = self.episode(iterator)
                if got is ABSENT:
                    episode.lost = True
                elif type(got[0]) is int and (task := iterator._task_info.get(got[0])) is not None:
                    # Else nobody asked for it: workers that stay still had it when the loop before was left.
                    batch = episode.arrived = got[0]
                    episode.tasks.pop(batch, None)
                    self._span(self._arrived, at, at, self._arguments(episode, worker=task[0]), batch)
            except Exception as exc:
                self._recording.failed("a batch's arrival", exc)

        return leave

    def around_next(self) -> tuple[Any, Any]:
        """Around ``_next_data`` where workers prepare batches."""

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
                began = entered[0]
                self._cost(episode, began, entered[1])
                self._span(self._receive, end, end, self._arguments(episode), thread_time_ns() - entered[2])
                error = _error(got)
                if error is StopIteration:
                    return
                if episode.lost:
                    batch = iterator._rcvd_idx  # it was waited for, and did not come
                elif getattr(iterator, "_in_order", True):
                    batch = iterator._rcvd_idx - 1
                else:
                    batch = episode.arrived
                more = {} if error is None else {"error": error.__name__}
                self._span(self._wait, began, end, self._arguments(episode, ready=episode.arrived is None and not episode.lost), batch)
                if not episode.lost:
                    self._span(self._consumed, end, end, self._arguments(episode, **more), batch)
                else:
                    self._died(iterator, episode)
            except Exception as exc:
                self._recording.failed("a wait for a batch", exc)

        return enter, leave

    def _cost(self, episode: Episode, began: int, worked: int) -> None:
        """How much processor's time, of all threads, the program has used from one batch to the request for the next one."""
        if episode.worked:
            self._span(self._train, began, began, self._arguments(episode), worked - episode.worked)
        episode.worked = process_time_ns()

    # without workers

    def around_next_here(self) -> tuple[Any, Any]:
        """Around ``_next_data`` where this thread prepares batches itself; perhaps inside of an item of another loader."""
        here = self._here

        def enter(iterator: Any) -> Any:
            try:
                episode = self.episode(iterator)
                before = here.batch, here.item, here.args, here.episode, here.worker, here.sources, here.of, here.dataset, here.batches_of
                self._recording.be_at(episode, MAIN)
            except Exception:
                return 0
            here.inside, here.batch = PIN, episode.batches
            return now(), episode, before, process_time_ns()

        def leave(entered: Any, was: int, got: Any) -> None:
            end = now()
            here.inside = was
            if not entered:
                return
            try:
                began, episode, before, worked = entered
                here.batch, here.item, here.args, here.episode, here.worker, here.sources, here.of, here.dataset, here.batches_of = before
                error = _error(got)
                if error is StopIteration:
                    return
                self._cost(episode, began, worked)
                batch = episode.batches
                episode.batches += 1
                more = {} if error is None else {"error": error.__name__}
                self._span(self._wait, began, end, self._arguments(episode, ready=False), batch)
                self._span(self._consumed, end, end, self._arguments(episode, **more), batch)
            except Exception as exc:
                self._recording.failed("a batch", exc)

        return enter, leave

    # pinning

    def around_pin_loop(self) -> tuple[Any, Any]:
        """Around the pinning thread's loop."""
        here = self._here

        def enter(in_queue: Any, out_queue: Any) -> int:
            here.inside, here.asked = PIN, in_queue
            here.owner = next((weakref.ref(one) for one, _ in self._episodes.items() if _has(one, in_queue, out_queue)), None)
            return 1

        def leave(began: int, was: int) -> None:
            here.inside, here.asked = was, None

        return enter, leave

    def around_pin(self) -> tuple[Any, Any]:
        """Around ``pin_memory``, which calls itself."""
        here = self._here

        def enter() -> int:
            if here.inside != PIN or here.batch == UNKNOWN:
                return 0
            here.inside = PINNING
            return now()

        def leave(began: int, was: int) -> None:
            end = now()
            here.inside = was
            if not began:
                return
            try:
                args, owner = here.args, here.owner
                if owner is not None:  # in the pinning thread; an iterator with persistent workers is in another episode now
                    args = self._arguments(self.episode(owner()))
                self._span(self._pin, began, end, args, here.batch)
            except Exception as exc:
                self._recording.failed("a batch's pinning", exc)

        return enter, leave


def _has(iterator: Any, in_queue: Any, out_queue: Any) -> bool:
    """Whether a pinning thread's queues are those of an iterator."""
    return getattr(iterator, "_worker_result_queue", None) is in_queue and getattr(iterator, "_data_queue", None) is out_queue


def _error(got: Any) -> type[BaseException] | None:
    """What a body that this is called after has raised, if it has returned nothing."""
    return (sys.exc_info()[0] or BaseException) if got is ABSENT else None


_LAST = 1 << 14  # records of a worker that are looked at


class Deaths:
    """Records and reports workers that are gone."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._died = recording.name("worker", "died", "batch")
        self._reported: set[int] = set()

    def check_workers(self, iterator: Any, episode: Episode) -> None:
        """A request has found no batch: see which worker is gone. torch has looked already, so that asking changes nothing."""
        time_ns = now()
        for worker, process in enumerate(iterator._workers):
            code = process.exitcode
            if code and process.pid not in self._reported:
                self._reported.add(process.pid)
                waiting = [batch for batch, info in iterator._task_info.items() if info[0] == worker and len(info) == 1]
                self._report(time_ns, episode, worker, process.pid, code, waiting)

    def _report(self, time_ns: int, episode: Episode, worker: int, pid: int, code: int, waiting: list[int]) -> None:
        recording = self._recording
        batch, done = self._doing(pid)
        sample = None
        if batch in episode.tasks:
            indices = episode.tasks[batch]
            if type(indices) is tuple and len(indices) == 2:  # torchdata sends more along
                indices = indices[0]
            listed = indices if isinstance(indices, list) else [indices]
            sample = listed[done] if done < len(listed) and type(listed[done]) is int else None
        else:
            batch = min(waiting, default=UNKNOWN)
        more = {"worker": worker, "pid": pid, "exit_code": code, "sample": sample}
        recording.span(self._died, time_ns, time_ns, recording.arguments({**episode.place, **more}), batch)
        how = f"was killed by {_signal(-code)}" if code < 0 else f"exited with code {code}"
        doing = "" if batch == UNKNOWN else f" with batch {batch}" + ("" if sample is None else f", sample {sample}")
        recording.warn(f"loader: worker {worker} (pid {pid}) of loader {episode.place['loader']} {how}{doing}.")

    def _doing(self, pid: int) -> tuple[int, int]:
        """The batch that a process took last, by its own records, and how many samples it has read since."""
        folder = self._recording.folder()
        if folder is None:
            return UNKNOWN, 0
        from voirkit.trace.following import Following

        batch, done = UNKNOWN, 0
        for fresh in Following(os.path.dirname(folder), at_once=_LAST, pid=pid).look():
            names = fresh.followed.tables.names
            for number, value in zip(fresh.records["name"].tolist(), fresh.records["value"].tolist(), strict=True):
                name = names.get(number)
                if name is not None and name.kind == "loader":
                    if (name.category, name.name) == ("worker", "idle"):
                        batch, done = value, 0
                    elif (name.category, name.name) == ("data", "item"):
                        done += 1
        return batch, done


def _signal(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
