"""The words in which numbers and times are shown."""

from __future__ import annotations

from service.dashboard.templating import clock, count, ratio, seconds
from service.times import between_s


def test_what_is_not_known_is_a_dash() -> None:
    assert (seconds(None), ratio(None), count(None), clock(None)) == ("–",) * 4
    assert (seconds(12.34e-6), ratio(1.618), count(12345.0)) == ("12.3 µs", "1.62x", "12,345")


def test_times_of_either_database_are_understood() -> None:
    start, end = "2026-01-02T03:04:05.000Z", "2026-01-02T03:04:06.500000Z"
    assert between_s(start, end) == 1.5
    assert between_s(end, start) == 0.0
    assert between_s(None, end) is None
    assert clock(start) == "2026-01-02 03:04:05 UTC"
