"""Figures as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voirkit.units import duration, figure, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 µs"), (4.56e-7, "0.456 µs"), (9.99e-4, "999 µs"), (9.996e-4, "1 ms"), (0.9996, "1 s"), (119.4, "119 s"), (119.96, "2 min"),
        (7190.0, "120 min"), (7200.0, "2 h"), (172_000.0, "47.8 h"), (172_800.0, "2 d"), (86_400e3, "1,000 d"),
    ],
)  # fmt: skip
def test_a_duration_is_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("bytes_", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (999.9, "1 kB"),
        (131e9, "131 GB"),
        (999.7e9, "1 TB"),
        (3.2e15, "3,200 TB"),
    ],
)
def test_bytes_are_in_the_unit_that_fits(bytes_: float, text: str) -> None:
    assert size(bytes_) == text


def test_a_number_has_thousands_apart_and_the_digits_that_count() -> None:
    assert [figure(value) for value in (0.12345, 12.345, 99.96, 123.4, 12_345.6)] == [
        "0.123",
        "12.3",
        "100",
        "123",
        "12,346",
    ]
    assert [figure(value, 4) for value in (2.30259, 123.456, 999.96, 1234.5, 12_345.6)] == [
        "2.303",
        "123.5",
        "1,000",
        "1,234",
        "12,346",
    ]


@given(st.floats(1e-3, 1e14), st.sampled_from([duration, size, figure]))
def test_no_figure_has_a_power_of_ten(value: float, written: object) -> None:
    assert callable(written)
    for signed in (value, -value):
        assert "e" not in written(signed).partition(" ")[0]


@given(st.floats(1e-9, 1e9))
def test_a_duration_is_true_to_three_digits(seconds: float) -> None:
    units = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
    number, unit = duration(seconds).replace(",", "").split()
    assert float(number) * units[unit] == pytest.approx(seconds, rel=5.01e-3)
