from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.durations import format_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ns"), (1.234e-9, "1.23 ns"), (12.34e-6, "12.3 µs"), (0.00123, "1.23 ms"), (1.0, "1.00 s"),
        (119.0, "119 s"), (120.0, "2 min 0 s"), (142.4, "2 min 22 s"), (3600.0, "1 h 0 min"), (90061.0, "25 h 1 min"),
    ],
)  # fmt: skip
def test_durations_have_three_digits_and_a_fitting_unit(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (7, "7 s"), (119.7, "2 min 0 s"), (130, "2 min 10 s"), (7380, "2 h 3 min")]
)
def test_whole_seconds(seconds: float, text: str) -> None:
    assert format_duration(seconds, whole=True) == text


@given(st.floats(0, 1e9), st.booleans())
def test_any_duration_is_short(seconds: float, whole: bool) -> None:
    assert len(format_duration(seconds, whole=whole)) <= 15
