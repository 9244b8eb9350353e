"""Garbage collections in training loops: voirkit causes none, and those that there are have a part of their own."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from phases import Watched, watched

from tests.instruments.unchanged import environment, run
from voirkit.analysis.phases import Records, ranks
from voirkit.analysis.steps import GC
from voirkit_instruments.steps.record_phases import LEAST_NS
from voirkit_instruments.steps.record_plain import IDLE, SUPPRESSED

pytestmark = pytest.mark.long

MS = 1_000_000


@pytest.fixture
def watch(engine: str) -> Iterator[Watched]:
    with watched() as watch:
        yield watch


def pause() -> None:
    """A full collection of what takes longer than the least that is recorded."""
    held = [[] for _ in range(200_000)]
    gc.collect()
    del held


def test_a_pause_is_recorded_with_its_generation_and_its_length(watch: Watched) -> None:
    gc.disable()
    try:
        pause()
    finally:
        gc.enable()
    assert watch.kept.generations() == [2]
    ((_, began, ended, *_),) = watch.kept.pauses
    assert ended - began >= LEAST_NS


def test_short_collections_are_not_recorded(watch: Watched) -> None:
    gc.collect()
    before = len(watch.kept.pauses)
    for _ in range(20):
        gc.collect(0)
    assert len(watch.kept.pauses) == before


def test_a_process_that_was_forked_to_load_data_records_none(watch: Watched) -> None:
    assert watch.steps._torch is not None
    hot = watch.steps._torch.recording.hot
    hot.everywhere(SUPPRESSED)
    try:
        pause()
    finally:
        hot.everywhere(IDLE)
    assert not watch.kept.pauses


def test_the_callback_is_the_first_and_goes_with_the_run() -> None:
    def own(phase: str, info: dict[str, int]) -> None:
        pass

    before = list(gc.callbacks)
    gc.callbacks.append(own)
    try:
        with watched():
            assert gc.callbacks[1:] == [*before, own]
        assert gc.callbacks == [*before, own]
        with watched():
            gc.callbacks.clear()
        assert not gc.callbacks
    finally:
        gc.callbacks[:] = before


def test_a_collection_in_a_phase_is_the_collectors_time_and_not_the_phases() -> None:
    names = [
        ("dataloader", "fetch"),
        ("compute", "forward"),
        ("compute", "backward"),
        ("compute", "step"),
        ("gc", "collect"),
    ]
    rows = []
    for i in range(4):
        at = i * 20 * MS
        spans = [(0, 0, 4), (1, 4, 3), (2, 7, 5), (3, 12, 2)]
        if i == 2:
            spans.append((4, 1, 2))  # while a batch is made
        rows += [(at + start * MS, duration * MS, name) for name, start, duration in spans]
    rows.sort()
    n = len(rows)
    start, duration, name = (np.array(column) for column in zip(*rows, strict=True))
    zeros = np.zeros(n, np.int64)
    records = Records(
        start,
        duration,
        name,
        zeros,
        np.where(name == 0, 4, -1),
        zeros,
        zeros,
        names,
        [{"episode": 0, "loader": 0}],
        [(0, "host", 1)],
    )
    (rank,) = ranks(records)
    table = rank.steps.train
    assert table.phase_ns("wait").tolist() == [4 * MS, 4 * MS, 2 * MS]
    assert table.own_ns[:, GC].tolist() == [0, 0, 2 * MS]


SCRIPT = """
    import gc, json
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters())
    data = TensorDataset(torch.randn(1600, 8), torch.randint(0, 4, (1600,)))
    full, young = [gc.get_stats()[i]["collections"] for i in (2, 0)]
    for _ in range(4):
        for x, y in DataLoader(data, batch_size=16):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    after = gc.get_stats()
    gc.collect()
    objects = len(gc.get_objects())
    print(json.dumps([after[2]["collections"] - full, after[0]["collections"] - young, objects]))
"""


def test_a_loop_has_the_full_collections_that_it_has_under_python(tmp_path: Path) -> None:
    """What decides when one comes is how many objects have come to stay: a quarter more than at the last, some 60,000 with torch."""
    (tmp_path / "main.py").write_text(dedent(SCRIPT))
    env = environment("C")
    plain, recorded = (
        json.loads(run(tmp_path, sys.executable, *words, "main.py", env=env)[1])
        for words in ([], ["-m", "voirkit", "--quiet", "--run-dir", "run"])
    )
    assert recorded[0] == plain[0]
    assert abs(recorded[1] - plain[1]) <= 1
    # Since 3.14 each annotated function has a second one, which makes its annotations: 1,236 of voirkit's.
    assert recorded[2] - plain[2] < (5500 if sys.version_info < (3, 14) else 7000)
