"""Requests for batches that come through a ``queue.Queue``, which another thread fills from a
loader: each ``get`` from the queue counts as a request.

The batch that a get returns is inferred from times, on the assumption that one thread fills a
queue, epoch after epoch, in order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from voirkit.analysis.segmentation import Kind, Request
from voirkit.analysis.work_times import NEVER, any_between


@dataclass(frozen=True)
class QueueGet:
    """A ``get`` from a queue that returned an object; times in ns on the process's clock."""

    queue: int  # number that identifies the queue
    start_ns: int
    end_ns: int


@dataclass
class _Source:
    """An iterator over a loader that another thread reads."""

    thread: int
    batches: list[Request]
    n_taken: int = 0  # number of the iterator's batches that gets have returned

    def next_before(self, at_ns: int) -> Request | None:
        """Return the iterator's first batch that no get has returned yet, if it was requested
        before a time; otherwise None."""
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
    """Return the requests of a thread that trains on batches from other threads.

    Args:
        gets: The gets of the thread from queues, ascending by start.
        read: The requests of each other thread to loaders, ascending by start.
        works_ns: Starts of the thread's own model calls, backward passes and optimizer steps,
            ascending.
        over_ns: End of the thread's last recorded span.
        asks_ns: Times of the thread's own requests to loaders, ascending.

    Returns:
        A request for each batch, ascending by start, and an ``END`` or ``RELEASED`` request after
        the last batch of an iterator. Episodes are numbered from -1 downwards, since the numbers of
        iterators are not negative.
    """
    return _Handing(gets, read, works_ns, [*asks_ns, over_ns]).requests()


class _Handing:
    """Assigns the batches that some threads read to the gets of the thread that trains."""

    def __init__(
        self,
        gets: Sequence[QueueGet],
        read: Sequence[Sequence[Request]],
        works_ns: Sequence[int],
        others_ns: Sequence[int],
    ) -> None:
        self._gets = gets
        self._works_ns = works_ns
        # Times of the thread's requests to loaders, and the end of its last span. A loop whose end
        # is not recorded is left at the first of these times after the work on its last batch, or
        # earlier.
        self._others_ns = others_ns
        # the iterators of which no get has returned a batch yet
        self._waiting = sorted(_sources(read), key=lambda source: source.batches[0].start_ns)
        self._filling: dict[int, _Source] = {}  # queue -> the iterator that fills it
        self._episode: dict[int, int] = {}  # queue -> the episode of the loop in progress
        self._next_episode = -1
        self._requests: list[Request] = []

    def requests(self) -> list[Request]:
        """Return all requests, ascending by start. A loop without a recorded end is left at the
        next get; or, after work on its last batch, at the next request to a loader if that is
        earlier."""
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
        """Return the batch that a get returns; None if it returns no batch but a mark that there
        are no more."""
        source = self._filling.get(get.queue)
        batch = None if source is None else source.next_before(get.end_ns)
        if batch is None:
            source, batch = self._next_source(i, get)
            if source is None or not self._is_worked_on(i, get):
                return None
            self._end(get, Kind.RELEASED)
            self._filling[get.queue] = source
            self._waiting.remove(source)
        assert source is not None  # a batch always comes with its source
        source.n_taken += 1
        return batch

    def _next_source(self, i: int, get: QueueGet) -> tuple[_Source | None, Request | None]:
        """Return the iterator that fills a queue next, after the batches of the last one are used
        up, and its first batch; (None, None) if there is none.

        It is the next iterator of the thread that fills the queue. For a queue that has returned no
        batch yet, it is the iterator whose batch arrived during the get. Otherwise it is the first
        with a batch since the thread's last work, as earlier batches may have come another way.
        Otherwise it is the first of all."""
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
        """True if the remaining gets are as many as the remaining batches plus one mark for the end
        of each epoch: then this get returns such a mark."""
        n_to_come = sum(get.queue == queue for get in self._gets[i:])
        sizes = [len(source.batches) for source in self._waiting if source.thread == thread]
        return n_to_come == sum(sizes) + len(sizes) + 1

    def _is_worked_on(self, i: int, get: QueueGet) -> bool:
        """True if the thread works on a model before its next get. For a queue that has returned no
        batch yet, further gets from it do not count, as batches may be taken in groups."""
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
