"""Figures of devices."""

from __future__ import annotations

import json

import pytest

from tuner.figures import Reading, Span, device_drift, device_use, document
from tuner.figures.thinning import MAX_POINTS


def at(second: int) -> str:
    return f"2026-01-01T{second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}+00:00"


def test_a_bar_lasts_as_long_as_the_job_had_the_device() -> None:
    spans = [Span("cpu-1", "j2", "二<script>", at(60), at(90)), Span("cpu-0", "j1", "one", at(0), at(30))]
    result = device_use(spans)
    first, second = result.data
    assert (first.base, first.x, first.y, first.customdata) == ((at(0),), (30_000.0,), ("cpu-0",), ("j1",))
    assert second.name == "二&lt;script&gt;"
    assert first.marker.pattern.shape != second.marker.pattern.shape
    assert result.layout.showlegend
    assert result.layout.xaxis.type == "date"


def test_of_very_many_spans_the_latest_are_shown() -> None:
    result = device_use([Span("cpu", f"j{n}", "job", at(n), at(n + 1)) for n in range(5000)])
    starts = [start for trace in result.data for start in trace.base]
    assert (len(starts), max(starts), min(starts)) == (MAX_POINTS, at(4999), at(3000))
    assert not result.layout.showlegend
    assert len(result.data) <= 6


def test_drift_is_percent_against_each_devices_own_median() -> None:
    readings = [
        Reading(device, at(n), scale * us * 1e-6)
        for device, scale in (("a", 1), ("<b>", 7))
        for n, us in enumerate((2.0, 2.2, 2.0, 1.9))
    ]
    result = device_drift(readings[::-1])
    assert [trace.name for trace in result.data] == ["&lt;b&gt;", "a"]
    for trace in result.data:
        assert trace.x == tuple(at(n) for n in range(4))
        assert trace.y == pytest.approx((0, 10, 0, -5), abs=1e-6)


def test_a_slow_moment_survives_thinning() -> None:
    readings = [Reading("a", at(n), 4e-6 if n == 31_337 else 2e-6) for n in range(50_000)]
    (trace,) = device_drift(readings).data
    assert len(trace.y) <= MAX_POINTS
    assert max(trace.y) == 100


def test_nothing_is_said_to_be_nothing() -> None:
    for result in (device_use([]), device_drift([]), device_drift([Reading("a", at(0), 0.0)])):
        assert result.layout.annotations[0].text
        json.dumps(document(result))
