"""A thousand inputs that are nearly right for each reader of other people's files; ``make fuzz`` gives a million."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from fuzz.run import Fuzzing, by_mutations, edited, edited_tree
from fuzz.targets import TARGETS, outcome
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

NAMES = [name for name in TARGETS if name != "report"]  # which takes 14 ms an input


@pytest.mark.parametrize("name", NAMES)
def test_what_is_nearly_right_is_read_or_refused(name: str, tmp_path: Path) -> None:
    fuzzing = Fuzzing(name, tmp_path)
    fuzzing.run(fuzzing.target.seeds[0])  # what is imported is there
    by_mutations(fuzzing, 900, seed=0)
    assert fuzzing.defects == {}


@pytest.mark.parametrize("name", NAMES)
def test_what_hypothesis_makes_of_it_is_read_or_refused(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    edit = st.tuples(
        st.integers(0, 6),
        st.integers(0, 1 << 16),
        st.integers(0, 1 << 16),
        st.sampled_from(target.words),
    )

    @settings(
        max_examples=100,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(target.seeds), st.lists(edit, max_size=6))
    def read(seed: bytes, edits: list[tuple[int, int, int, bytes]]) -> None:
        outcome(target, edited(seed, edits), tmp_path)

    read()


@pytest.mark.parametrize("name", NAMES)
def test_much_of_the_same_takes_no_second(name: str, tmp_path: Path) -> None:
    fuzzing = Fuzzing(name, tmp_path)
    seed = fuzzing.target.seeds[0]
    fuzzing.run(seed)
    for word in fuzzing.target.words:
        fuzzing.run(edited(seed, [(7, len(seed) // 2, 0, word)]))
    assert fuzzing.defects == {}


def test_a_report_of_a_damaged_summary_is_drawn(tmp_path: Path) -> None:
    target = TARGETS["report"]
    for number in range(30):
        outcome(target, edited_tree(target.seeds[0], random.Random(number)), tmp_path)
