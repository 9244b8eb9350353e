"""Memory that creeps is told from memory that comes and goes."""

import numpy as np
import pytest

from voirkit.errors import PartFailures
from voirkit.findings import findings_of
from voirkit_instruments.monitor.analyse_growth import growth
from voirkit_instruments.monitor.rules import findings

GB = 1e9
SECONDS = np.arange(0.0, 600.0)
NOISE = np.random.default_rng(0).normal(0, 0.02 * GB, len(SECONDS))


def test_memory_that_grows_steadily_is_told_with_how_fast():
    found = growth(SECONDS, 2 * GB + SECONDS * 3e6 + NOISE)
    assert found["bytes_a_second"] == pytest.approx(3e6, rel=0.1)
    [finding] = findings({"monitor": {"rss": {"growth": found}}})
    assert finding.kind == "memory-creep"
    assert "10.8 GB an hour" in finding.because


@pytest.mark.parametrize(
    "held",
    [
        pytest.param(2 * GB + NOISE, id="noise"),
        pytest.param(2 * GB + np.minimum(SECONDS, 250) * 8e6 + NOISE, id="it grows at first"),
        pytest.param(2 * GB + (SECONDS % 60 < 45) * 3 * GB, id="workers come and go"),
        pytest.param(2 * GB + (SECONDS % 100) * 1e7, id="a saw"),
        pytest.param(2 * GB + (SECONDS > 450) * 2 * GB, id="one step"),
        pytest.param(2 * GB + SECONDS * 1e5, id="too little to matter"),
    ],
)
def test_what_does_not_grow_steadily_is_no_creep(held):
    assert growth(SECONDS, held) is None


def test_a_short_run_and_no_samples_tell_nothing():
    assert growth(SECONDS[:40], SECONDS[:40] * GB) is None
    assert growth(SECONDS[:0], SECONDS[:0]) is None


def test_memory_that_grows_with_the_steps_is_told_once():
    grows = {"monitor": {"rss": {"growth": growth(SECONDS, SECONDS * 3e6)}}}
    assert [finding.kind for finding in findings_of(grows, PartFailures())] == ["memory-creep"]
    with_steps = {
        **grows,
        "symptoms": {"memory": {"steps": 800, "eighths": [GB * n for n in range(1, 9)]}},
    }
    assert [finding.kind for finding in findings_of(with_steps, PartFailures())] == ["memory-grows"]


def test_a_long_run_is_looked_at_in_bounded_time():
    at_s = np.arange(0.0, 500_000.0)
    assert growth(at_s, at_s * 1e6)["bytes_a_second"] == pytest.approx(1e6)
