"""Requests for batches that another thread takes from a loader and hands over through a
``queue.Queue``: each get is one.

Which batch a get brings is told by time: a queue is filled by one thread, epoch after epoch, in
order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from voirkit.analysis.segmentation import Kind, Request
from voirkit.analysis.work_times import NEVER, any_between


@dataclass(frozen=True)
class QueueGet:
    """A get from a queue that brought something; nanoseconds on the process's clock."""

    queue: int  # which queue
    start_ns: int
    end_ns: int


@dataclass
class _Source:
    """An iterator over a loader that another thread reads."""

    thread: int
    batches: list[Request]
    n_taken: int = 0

    def next_before(self, at_ns: int) -> Request | None:
        """Its next batch that nobody has got, if it was requested before a time."""
        if self.n_taken == len(self.batches) or self.batches[self.n_taken].start_ns >= at_ns:
            return None
        return self.batches[self.n_taken]


def requests_through_queues(
    gets: Sequence[QueueGet],
    read: Sequence[Sequence[Request]],
    works_ns: Sequence[int],
    over_ns: int,
    asks_ns: Sequence[int] = (),
) -> list[Request]:
    """The requests of a thread that trains on batches which other threads hand to it.

    Args:
        gets: What the thread got from queues, ascending by start.
        read: By thread, what it asked loaders for, ascending by start.
        works_ns: When the thread's own work began, ascending.
        over_ns: When the last that is known of it was over.
        asks_ns: When it asked loaders for something itself, ascending.

    Returns:
        A request for each batch, ascending by start, and one that finds nothing, or leaves the
        loop, where the batches of an iterator are over. Their episodes are numbered from -1
        downwards: numbers of iterators are not negative.
    """
    return _Handing(gets, read, works_ns, [*asks_ns, over_ns]).requests()


class _Handing:
    """Batches on their way from the threads that read them to the one that gets them."""

    def __init__(
        self,
        gets: Sequence[QueueGet],
        read: Sequence[Sequence[Request]],
        works_ns: Sequence[int],
        others_ns: Sequence[int],
    ) -> None:
        self._gets = gets
        self._works_ns = works_ns
        # when loops that go on are left at the latest, if they have been worked on
        self._others_ns = others_ns
        # those of no queue yet
        self._waiting = sorted(_sources(read), key=lambda source: source.batches[0].start_ns)
        self._filling: dict[int, _Source] = {}  # by queue, the iterator whose batches it brings
        self._episode: dict[int, int] = {}  # by queue, the episode of the loop in progress
        self._next_episode = -1
        self._requests: list[Request] = []

    def requests(self) -> list[Request]:
        """All of them, ascending by start; loops that go on are left where something else is got
        or, after work on the last batch, asked for."""
        for i, get in enumerate(self._gets):
            batch = self._batch(i, get)
            if batch is None:
                self._end(get, Kind.END)
                continue
            self._requests.append(
                replace(
                    batch, start_ns=get.start_ns, end_ns=get.end_ns, episode=self._episode_of(get)
                )
            )
        for queue, episode in list(self._episode.items()):
            last = next(
                request for request in reversed(self._requests) if request.episode == episode
            )
            left_ns = next(
                (get.start_ns for get in self._gets if get.start_ns > last.start_ns),
                self._others_ns[-1],
            )
            worked_ns = next((at_ns for at_ns in self._works_ns if at_ns > last.start_ns), left_ns)
            left_ns = min([left_ns, *(at_ns for at_ns in self._others_ns if at_ns > worked_ns)])
            self._end(QueueGet(queue, left_ns, left_ns), Kind.RELEASED)
        return sorted(self._requests, key=lambda request: request.start_ns)

    def _batch(self, i: int, get: QueueGet) -> Request | None:
        """The batch that a get brings; None for the word that there is no more."""
        source = self._filling.get(get.queue)
        batch = None if source is None else source.next_before(get.end_ns)
        if batch is None:
            source, batch = self._next_source(i, get)
            if source is None or not self._is_worked_on(i, get):
                return None
            self._end(get, Kind.RELEASED)
            self._filling[get.queue] = source
            self._waiting.remove(source)
        assert source is not None  # it has the batch
        source.n_taken += 1
        return batch

    def _next_source(self, i: int, get: QueueGet) -> tuple[_Source | None, Request | None]:
        """The iterator whose first batch a queue brings, when those of the one before are over: of
        the same thread, or, of a queue that has brought none yet, that for whose batch was waited,
        else the first that was read since the thread last worked (what was read before that may
        have come another way), else the first."""
        before = self._filling.get(get.queue)
        ready = [
            (source, batch)
            for source in self._waiting
            if (batch := source.next_before(get.end_ns)) is not None
        ]
        if before is not None:
            ready = [(source, batch) for source, batch in ready if source.thread == before.thread]
            if self._says_that_it_is_over(i, get.queue, before.thread):
                return None, None
        else:
            awaited = [
                (source, batch)
                for source, batch in ready
                if get.start_ns <= batch.end_ns <= get.end_ns
            ]
            worked = bisect_left(self._works_ns, get.start_ns)
            since_ns = self._works_ns[worked - 1] if worked else 0
            fresh = [(source, batch) for source, batch in ready if batch.end_ns > since_ns]
            ready = awaited[-1:] or fresh or ready
        return ready[0] if ready else (None, None)

    def _says_that_it_is_over(self, i: int, queue: int, thread: int) -> bool:
        """Whether a queue brings more than the batches that are still to come: a word at the end of
        each epoch."""
        n_to_come = sum(get.queue == queue for get in self._gets[i:])
        sizes = [len(source.batches) for source in self._waiting if source.thread == thread]
        return n_to_come == sum(sizes) + len(sizes) + 1

    def _is_worked_on(self, i: int, get: QueueGet) -> bool:
        """Whether the thread works before it gets anything else, but for more of what a queue
        begins with (batches in groups)."""
        is_new = get.queue not in self._filling
        until_ns = NEVER
        for k in range(i + 1, len(self._gets)):
            following = self._gets[k]
            if not is_new or following.queue != get.queue:
                until_ns = following.start_ns
                break
        return any_between(self._works_ns, get.end_ns, until_ns)

    def _episode_of(self, get: QueueGet) -> int:
        if get.queue not in self._episode:
            self._episode[get.queue] = self._next_episode
            self._next_episode -= 1
        return self._episode[get.queue]

    def _end(self, get: QueueGet, kind: Kind) -> None:
        episode = self._episode.pop(get.queue, None)
        if episode is None:
            return
        loader = next(
            request.loader for request in reversed(self._requests) if request.episode == episode
        )
        end_ns = get.end_ns if kind is Kind.END else get.start_ns
        self._requests.append(Request(kind, get.start_ns, end_ns, episode, loader))


def _sources(read: Sequence[Sequence[Request]]) -> Iterator[_Source]:
    for thread, requests in enumerate(read):
        by_episode: dict[int, list[Request]] = {}
        for request in requests:
            if request.kind is Kind.FETCH:
                by_episode.setdefault(request.episode, []).append(request)
        for batches in by_episode.values():
            yield _Source(thread, batches)
