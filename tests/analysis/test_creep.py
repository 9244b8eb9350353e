"""Memory that creeps is told from memory that comes and goes."""

import numpy as np
import pytest

from voirkit.analysis.summary import creep, memory_creep
from voirkit.findings import Finding

GB = 1e9
SECONDS = np.arange(0.0, 600.0)
NOISE = np.random.default_rng(0).normal(0, 0.02 * GB, len(SECONDS))


def test_memory_that_grows_steadily_is_told_with_how_fast():
    found = creep(SECONDS, 2 * GB + SECONDS * 3e6 + NOISE)
    assert found["kind"] == "memory-creep"
    assert found["evidence"]["bytes_per_s"] == pytest.approx(3e6, rel=0.1)
    assert "10.8 GB an hour" in found["because"]


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
    assert creep(SECONDS, held) is None


def test_a_short_run_and_no_samples_tell_nothing():
    assert creep(SECONDS[:40], SECONDS[:40] * GB) is None
    assert creep(SECONDS[:0], SECONDS[:0]) is None


def test_memory_that_a_finding_tells_of_is_told_once():
    class Monitored:
        def recorded(self, kind):
            raise AssertionError("nothing more is to be read")

    words = {"first_words": "1 GB", "last_words": "2 GB", "each_words": "1 MB", "kept_words": "", "look_words": ""}
    assert memory_creep(Monitored(), [Finding.of("memory-grows", words)]) is None


def test_a_long_run_is_looked_at_in_bounded_time():
    at_s = np.arange(0.0, 500_000.0)
    assert creep(at_s, at_s * 1e6)["evidence"]["bytes_per_s"] == pytest.approx(1e6)
