"""Which loader's batches a queue brings."""

from __future__ import annotations

from voirkit.analysis.queued_batches import QueueGet, requests_through_queues
from voirkit.analysis.segmentation import Kind, Request


def fetches(episode: int, *at_ns: int) -> list[Request]:
    return [Request(Kind.FETCH, at, at + 5, episode, episode) for at in at_ns]


def test_what_was_read_and_worked_on_before_is_not_what_a_new_queue_brings() -> None:
    """Batches that came another way (futures of a pool) are followed by work; then a queue is filled before it is first asked."""
    read = [fetches(0, 0, 20), fetches(1, 40, 50)]
    gets = [QueueGet(7, 60, 61), QueueGet(7, 80, 81)]
    found = requests_through_queues(gets, read, works_ns=[10, 30, 70, 90], over_ns=100)
    assert [(request.kind, request.loader) for request in found] == [
        (Kind.FETCH, 1),
        (Kind.FETCH, 1),
        (Kind.RELEASED, 1),
    ]
