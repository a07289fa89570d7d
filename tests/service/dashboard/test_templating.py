"""The words in which numbers and times are shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.dashboard.templating import clock, count, ratio, seconds
from service.times import between_s


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (0.0, "0 ns"), (1.234e-9, "1.23 ns"), (12.34e-6, "12.3 µs"), (0.00123, "1.23 ms"), (1.0, "1.00 s"),
        (119.0, "119 s"), (120.0, "2 min 0 s"), (142.4, "2 min 22 s"), (3600.0, "1 h 0 min"), (90061.0, "25 h 1 min"),
    ],
)  # fmt: skip
def test_times_have_three_digits_and_a_fitting_unit(value: float | None, text: str) -> None:
    assert seconds(value) == text


@given(st.floats(0, 1e9))
def test_any_time_can_be_shown(value: float) -> None:
    assert len(seconds(value)) <= 15


def test_what_is_not_known_is_a_dash() -> None:
    assert (ratio(None), count(None), clock(None)) == ("–", "–", "–")
    assert (ratio(1.618), count(12345.0)) == ("1.62×", "12,345")


def test_times_of_either_database_are_understood() -> None:
    start, end = "2026-01-02T03:04:05.000Z", "2026-01-02T03:04:06.500000Z"
    assert between_s(start, end) == 1.5
    assert between_s(end, start) == 0.0
    assert between_s(None, end) is None
    assert clock(start) == "2026-01-02 03:04:05 UTC"
