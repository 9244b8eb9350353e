"""How late the first batches of loops are."""

from __future__ import annotations

import numpy as np
import pytest

from voirkit.analysis.phases import Records
from voirkit.analysis.script_facts import first_batches

MS = 1_000_000


def late_ms(*loops: list[float], collecting: dict[int, float] | None = None) -> float:
    """What first batches of loops are late, from the waits of each for its batches; garbage is collected in some loop's first."""
    names = [("dataloader", "iter"), ("dataloader", "fetch"), ("gc", "collect")]
    rows = []
    now = 0.0
    for episode, waits in enumerate(loops):
        rows.append((0, now, 0.0, episode))
        for k, wait in enumerate(waits):
            rows.append((1, now, wait, episode))
            if k == 0 and collecting and episode in collecting:
                rows.append((2, now + 0.1, collecting[episode], len(loops)))
            now += wait + 1
    name, start, duration, args = (np.array(column) for column in zip(*rows, strict=True))
    start_ns, duration_ns = ((times * MS).astype(np.int64) for times in (start, duration))
    none = np.zeros(len(name), np.int64)
    arguments = [*({"episode": episode} for episode in range(len(loops))), {}]
    records = Records(
        start_ns, duration_ns, name, args, none, none, none, names, arguments, [(0, "here", 1)]
    )
    return first_batches(records, np.flatnonzero(name < 2), range(len(loops)))["late_s"] * 1e3


def test_a_batch_that_is_late_in_each_loop_is_late_by_what_it_takes_longer() -> None:
    assert late_ms([100, 4, 4], [90, 4, 4], [110, 4, 4]) == pytest.approx(288)
    assert late_ms([100, 4, 4]) == pytest.approx(96)


def test_loops_whose_first_batches_are_longer_here_and_shorter_there_are_not_late() -> None:
    waits = [0.5, 0.7, 0.9, 0.7] * 30
    assert late_ms(*([first, 0.6, 0.7, 0.8, 9.0] for first in waits)) == pytest.approx(0)


def test_loops_over_loaders_of_which_one_is_slower_are_each_held_against_their_own_later_batches() -> (
    None
):
    assert late_ms(*[[0.2, 0.2, 0.2, 0.2], [17, 17, 17]] * 20) == pytest.approx(0)


def test_a_single_loop_that_is_late_says_nothing_of_the_others() -> None:
    assert late_ms([300, 4, 4], [4, 4, 4], [4, 4, 4]) == pytest.approx(0)


def test_garbage_that_is_collected_in_a_first_batch_makes_none_late() -> None:
    assert late_ms([354, 4, 4], collecting={0: 350}) == pytest.approx(0)
