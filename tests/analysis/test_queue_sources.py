"""Which thread's batches a queue brings: never those that another thread has trained on itself."""

from __future__ import annotations

import numpy as np

from voirkit.analysis.phases import Records, ranks

MAIN, ASIDE, FEEDER = 1, 2, 3
NAMES = [("dataloader", name) for name in ("iter", "fetch", "end", "queue")] + [
    ("compute", name) for name in ("forward", "backward", "step")
]
ARGUMENTS = [
    {"loader": 0, "episode": 0},
    {"loader": 1, "episode": 1},
    {"queue": 0},
    {"training": True, "grad": True},
    {},
]
OPTIMIZERS = [{"which": 0}, {"which": 1}]
Row = tuple[int, str, int, int, int]  # thread, what, when, arguments, value


def step(thread: int, at: int) -> list[Row]:
    """A step on the batch that came before."""
    return [
        (thread, "forward", at, 3, 0),
        (thread, "backward", at + 2, 4, 0),
        (thread, "step", at + 4, 5 + (thread == ASIDE), 0),
    ]


def records(rows: list[Row]) -> Records:
    tid, what, start, args, value = zip(*sorted(rows, key=lambda row: row[2]), strict=True)
    name = [[one for _, one in NAMES].index(each) for each in what]
    n = len(rows)
    columns = (start, [2] * n, name, args, value, [0] * n, tid)
    arguments = [*ARGUMENTS, *OPTIMIZERS]
    return Records(
        *(np.array(column, dtype=np.int64) for column in columns),
        NAMES,
        arguments,
        [(0, "here", 1)],
        [1],
    )


def test_a_queue_that_is_full_before_it_is_read_brings_none_of_a_thread_that_trains_beside() -> (
    None
):
    aside: list[Row] = [(ASIDE, "iter", 0, 0, 0), (ASIDE, "end", 200, 0, 0)]
    for at in (10, 111, 131, 151):
        aside += [(ASIDE, "fetch", at, 0, 8), *step(ASIDE, at + 2)]
    fed: list[Row] = [
        (FEEDER, "iter", 20, 1, 0),
        *((FEEDER, "fetch", at, 1, 4) for at in (22, 24, 26)),
        (FEEDER, "end", 28, 1, 0),
    ]
    got: list[Row] = []
    for at in (110, 130, 150):
        got += [(MAIN, "queue", at, 2, 1), *step(MAIN, at + 2)]
    got.append((MAIN, "queue", 170, 2, 1))
    known = ranks(records([*aside, *fed, *got]))
    assert sorted(rank.steps.train.items.tolist() for rank in known) == [[4, 4, 4], [8, 8, 8, 8]]
