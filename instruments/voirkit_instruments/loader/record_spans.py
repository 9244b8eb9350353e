"""What the parts of the loader instrument share: what each thread is inside of, and the names and arguments of records.

Must never raise, and never change what it is shown.
"""

from __future__ import annotations

import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from voirkit_instruments.loader_numbers import LoaderNumbers

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
        episode: What they are of, while batches are prepared.
        worker: Which worker this is.
        making: The episode whose iterator this thread has made last; in a forked worker that is its own.
        asked: The queue that this thread takes numbers of batches from.
        given: The queue that a worker puts batches on.
        sent: What was put on a worker's queue last.
        owner: A weak reference to the iterator that this pinning thread belongs to.
        idle: Since when a worker waits for a number.
        worked: The processor's time that a worker had used when it had made its last batch; 0: it has made none.
        collates: Whether samples are being put together.
        dataset: The dataset whose sample is being read, innermost; None: none is.
        batches_of: The dataset whose ``__getitems__`` runs.
        of: Number of the arguments of the sample's record: as ``args``, with what reads it.
        sources: Numbers of such arguments by the dataset's class.
    """

    inside = OUTSIDE
    batch = item = UNKNOWN
    args = idle = of = worked = 0
    collates = False
    worker = MAIN
    episode: Episode | None = None
    making: Episode | None = None
    asked: Any = None
    given: Any = None
    sent: Any = None
    owner: Any = None
    dataset: Any = None
    batches_of: Any = None
    sources: Any = None

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
        has_made: Whether an iterator over a loader has been made.
    """

    def __init__(self, recorder: Any, warn: Callable[[str], None], numbers: LoaderNumbers) -> None:
        self.here = type("ThreadState", (ThreadState,), {})()  # a class of its own: what it says of all threads is for this one alone
        self.span: Callable[..., None] = recorder.span
        self.numbers, self.warn = numbers, warn
        self._recorder = recorder
        self._failed: set[str] = set()
        self.has_made = False

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
            sources = episode.sources[worker] = SourceArguments(self, episode, worker, ".__getitem__")
            sources.inner = SourceArguments(self, episode, worker, ".__getitem__", whole=False)
            sources.lists = SourceArguments(self, episode, worker, ".__getitem__", whole=True)
            sources.batches = SourceArguments(self, episode, worker, ".__getitems__", whole=True)
            sources.turns = SourceArguments(self, episode, worker, ".__iter__")
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
        place: Its ``loader`` and ``episode``.
        source: What reads its samples, ``source``: class and method, and ``whole`` if a sample of theirs is a batch; empty if that is
            not known.
        arguments: The numbers of its arguments with others, by those.
        tasks: The indices of each batch that was queued and has not arrived.
        batches: How many were asked for, where no worker prepares them.
        worked: The processor's time that this process had used when the last batch had come; 0: none has.
        arrived: The last batch that has arrived since one was asked for; None: none has.
        lost: Whether the last request ended without a batch.
        sources: By worker, the numbers of arguments that name the class of a dataset.
    """

    __slots__ = ("arguments", "arrived", "batches", "lost", "place", "source", "sources", "tasks", "worked")

    def __init__(self, loader: int, episode: int) -> None:
        self.place: dict[str, Any] = {"loader": loader, "episode": episode}
        self.source: dict[str, Any] = {}
        self.arguments: dict[Any, int] = {}
        self.tasks: dict[int, Any] = {}
        self.batches = self.worked = 0
        self.arrived: int | None = None
        self.lost = False
        self.sources: dict[int, SourceArguments] = {}


class SourceArguments(dict[type, int]):
    """By class of the dataset that reads: the number of arguments that name it.

    Attributes:
        inner: The same, of datasets that another dataset asks.
        lists: The same, where the index was a list.
        batches: Of ``__getitems__``.
        turns: Of datasets that are iterated over.
    """

    inner: SourceArguments
    lists: SourceArguments
    batches: SourceArguments
    turns: SourceArguments

    def __init__(self, recording: Recording, episode: Episode, worker: int, suffix: str, **more: Any) -> None:
        self._recording, self._place, self._suffix, self._more = recording, (episode, worker), suffix, more

    def __missing__(self, kind: type) -> int:
        episode, worker = self._place
        try:
            given = {**episode.source, "source": f"{kind.__name__}{self._suffix}", **self._more}
            if not given.get("whole", True):
                del given["whole"]
            number = self._recording.arguments_of(episode, worker=worker, **given)
        except Exception:
            number = 0
        self[kind] = number
        return number
