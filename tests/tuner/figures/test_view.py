"""Putting a view together from what is stored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes import TASK
from tests.tuner.figures.searches import finished, library, numpy_times, sampled, searched, told
from tuner.errors import ShapewrightError
from tuner.figures import SearchView, view_of
from tuner.figures.view import progress_of
from tuner.storage import NewEvent


def test_a_view_is_what_was_stored_at_one_speed() -> None:
    results, pool = searched(), sampled(TASK, 3)
    slower = [replace(r, latency_s=r.latency_s and 1.25 * r.latency_s, anchor_s=2.5e-6) for r in results[1:]]
    events = [NewEvent("progress", summary.to_json()) for summary in told(TASK, results)]
    disturbed = numpy_times(TASK).to_json()
    for point in disturbed["points"]:
        point["anchor_s"] = 4e-6
    disturbed["roof"]["anchor_s"] = 1e-6
    view = view_of(TASK, [results[0], *slower], events, library(TASK, pool).to_json(), disturbed)
    for result, expected in zip(view.results, results, strict=True):
        assert result.latency_s == pytest.approx(expected.latency_s)
    assert view.progress == told(TASK, results)
    assert view.dispatcher is not None
    assert view.dispatcher.kernels == tuple(pool)
    usual = numpy_times(TASK)
    for point, before in zip(view.baselines.points, usual.points, strict=True):
        assert point.latency_s == pytest.approx(before.latency_s / 2)
    assert view.baselines.roof is not None
    assert usual.roof is not None
    assert view.baselines.roof.flops_per_s == pytest.approx(usual.roof.flops_per_s / 2)


def test_nothing_stored_is_an_empty_view() -> None:
    assert view_of(TASK, []) == SearchView(TASK, [], [], None)


def test_a_table_of_another_format_is_refused() -> None:
    with pytest.raises(ShapewrightError, match="format 99"):
        view_of(TASK, [], (), {"format": 99})


def test_events_belong_to_the_task_that_they_name() -> None:
    named = [NewEvent("progress", {"position": p, "trials": t}) for p, t in ((1, 1), (0, 2), (1, 3))]
    named.append(NewEvent("log", {"position": 1}))
    assert [summary.trials for summary in progress_of(named, 1)] == [1, 3]


def test_kernels_are_called_by_their_number_in_the_library_and_their_id() -> None:
    view = finished()
    chosen = view.chosen[0]
    assert view.label(chosen) == f"k1 · {chosen.id[:6]}"
    other = next(kernel for kernel in view.columns.kernels if kernel not in view.chosen)
    assert view.label(other) == other.id[:6]


def test_before_there_is_a_library_the_fastest_are_the_chosen() -> None:
    view = replace(finished(), dispatcher=None)
    best = [view.columns.kernels[index] for index in view.columns.fastest[0]]
    assert list(view.chosen) == list(dict.fromkeys(best))
    assert SearchView(TASK).chosen == ()
