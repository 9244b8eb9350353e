"""What the acceptance of planted truth makes of a figure that is off: tests/left_out.py."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest

pytest.importorskip("torch")
import left_out
from left_out import figures_off, is_left_out, measured

PRINTED = """
pipeline: FAIL 8.0 s, 9.0 s
pipeline loader: Jitter.total_s 0.2587, should be 0.2498 within 3%; Jitter.median_s 0.00108, should be 0.00104 within 3%
16 passed, 1 failed
"""
SCRIPT = """
import time
import torch

class Nap:
    def __call__(self, sample):
        begin = time.perf_counter()
        time.sleep(0.001)
        taken = time.perf_counter() - begin
        time.sleep(0.001)
        sample[-1][0] = taken
        return sample

nap = Nap()
for _ in range(3):
    nap((torch.zeros(1), torch.zeros(1, dtype=torch.float64)))
"""


def test_figures_of_transforms_alone_are_looked_at() -> None:
    assert figures_off(PRINTED) == [
        ("Jitter", "total_s", 0.2587, 0.2498, 0.03),
        ("Jitter", "median_s", 0.00108, 0.00104, 0.03),
    ]
    assert figures_off(f"{PRINTED}pipeline seconds: other 0.37, should be 0.32 within 13%\n") == []
    assert figures_off("pipeline loader: no operation Jitter; there are []\n") == []


def test_what_a_script_leaves_out_is_measured_from_outside(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(SCRIPT)
    calls = measured(str(script))["Nap"]
    assert len(calls) == 3
    assert all(whole_s > own_s + 0.0009 for whole_s, own_s in calls)


@pytest.mark.parametrize(("whole_s", "code"), [(1.03, 0), (1.0, 1)])
def test_a_figure_that_is_wrong_stays_wrong(
    monkeypatch: pytest.MonkeyPatch, whole_s: float, code: int
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO(PRINTED))
    monkeypatch.setattr(left_out, "measured", lambda script: {"Jitter": [(whole_s, 1.0)]})
    assert left_out.main("pipeline.py") == code


def test_the_tolerance_is_that_of_the_check() -> None:
    assert is_left_out(0.206, 0.2, 0.03, ratio=1.0)
    assert not is_left_out(0.208, 0.2, 0.03, ratio=1.0)
    assert is_left_out(0.208, 0.2, 0.03, ratio=1.02)
