from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from shapewright.cli.display import JobView, PlainDisplay, panel, sparkline
from shapewright.cli.outcomes import trials_of
from tuner.search.summary import SearchSummary

PROGRESS: dict[str, Any] = {
    "position": 0,
    "round": 3,
    "trials": 32,
    "trials_budget": 256,
    "elapsed_s": 20.0,
    "seconds_budget": 180.0,
    "speedup_vs_default": 1.42,
    "objective_s": 1e-4,
    "failed": 1,
    "phase": "search",
}


def view(**changes: Any) -> JobView:
    result = JobView("job-1", "qkv")
    result.apply("state", {"state": "RUNNING"})
    result.apply("progress", PROGRESS | changes)
    return result


def test_a_line_tells_state_trials_speedup_and_time_left() -> None:
    assert view().line() == (
        "RUNNING searching  32/256 trials (1 failed)  1.42x over the default (best so far in the search)  "
        "2 min 20 s left"
    )


def test_once_there_is_a_library_the_figures_are_its_own() -> None:
    result = view(phase="done", default_objective_s=1.42e-4, library_objective_s=2e-4)
    assert "0.71x over the default (library, timed at the end)" in result.line()


@pytest.mark.parametrize(
    ("ended_by", "said"), [(None, ""), ("trials", ""), ("seconds", "out of time"), ("cancelled", "cancelled")]
)
def test_why_a_search_ended_is_said(ended_by: str | None, said: str) -> None:
    summary = SearchSummary(trials=35, trials_budget=128, ended_by=ended_by)
    assert summary.ending == said
    assert trials_of(summary) == "35 of 128" + (f", {said}" if said else "")


def test_workloads_of_one_job_have_a_row_each_and_a_total() -> None:
    tasks = [{"position": place, "workload": f"w{place}", "count": 1 + 2 * place} for place in range(20)]
    result = JobView.of({"id": "job-1", "name": "model", "state": "RUNNING", "tasks": tasks})
    for place in (0, 1):
        result.apply("progress", PROGRESS | {"position": place})
    rows = result.rows()
    assert [row[1] for row in rows] == [*(f"w{place}" for place in range(20)), "of 2 of 20 workloads"]
    assert rows[0][-3:] == ("1.42x", "-", "best so far in the search")
    assert rows[2][3:] == ("-",) * 5
    assert rows[-1][2:6] == ("400", "64", "400 µs", "1.42x")
    console = Console(width=140, file=io.StringIO(), record=True)
    console.print(panel(result))
    assert console.export_text().count("w1") == 3, "w1, w10 and w11, and no more"


def test_time_left_is_what_comes_first_the_clock_or_the_last_trial() -> None:
    assert view(elapsed_s=20.0, seconds_budget=180.0).summary.remaining_s == pytest.approx(140.0)
    assert view(elapsed_s=179.0, seconds_budget=180.0).summary.remaining_s == pytest.approx(1.0)
    assert view(seconds_budget=None, trials_budget=None).summary.remaining_s is None
    assert view(seconds_budget=10.0).summary.remaining_s == 0.0


def test_before_the_first_progress_a_line_promises_nothing() -> None:
    assert JobView("job-1").line() == "WAITING"


def test_an_ended_job_has_no_time_left_and_tells_its_error() -> None:
    result = view()
    result.apply("state", {"state": "FAILED", "error": "the device burnt down"})
    assert "left" not in result.line()
    assert result.line().endswith("the device burnt down")


def test_search_tasks_of_one_job_are_kept_apart() -> None:
    result = view()
    result.apply("progress", PROGRESS | {"position": 1, "trials": 2, "speedup_vs_default": None})
    assert "search task 2  2/256 trials" in result.line()
    assert "over the default" not in result.line()
    assert result.tasks[0].summary == view().summary


def test_kinds_that_are_not_known_change_nothing() -> None:
    result = view()
    before = result.line()
    result.apply("a kind of a later version", {"state": "ODD"})
    assert result.line() == before


def test_a_panel_shows_the_same_with_a_sparkline() -> None:
    result = view()
    result.apply("progress", PROGRESS | {"speedup_vs_default": 2.0})
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(panel(result))
    text = console.export_text()
    for part in ("qkv", "RUNNING (searching)", "32/256 trials (1 failed)", "2 min 20 s", "2.00x over the default"):
        assert part in text
    assert "▁█" in text


def test_plain_lines_come_at_changes_and_otherwise_seldom() -> None:
    now = 0.0
    stream = io.StringIO()
    display = PlainDisplay(stream, clock=lambda: now)
    result = view()
    for trials in range(32, 42):
        now += 0.5
        result.apply("progress", PROGRESS | {"trials": trials})
        display.show(result)
    lines = stream.getvalue().splitlines()
    assert [line.split()[3] for line in lines] == ["32/256", "36/256", "40/256"]
    result.apply("progress", PROGRESS | {"phase": "verify"})
    display.show(result)
    assert "verifying" in stream.getvalue().splitlines()[-1]


def test_a_message_stands_on_one_line_alone() -> None:
    now = 0.0
    stream = io.StringIO()
    display = PlainDisplay(stream, clock=lambda: now)
    result = view()
    for message in ("calibrating device a", "calibrating device a", "device a is calibrated"):
        now += 5.0
        result.apply("log", {"message": message})
        result.apply("progress", PROGRESS | {"trials": int(now)})
        display.show(result)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert ["calibrating" in line for line in lines] == [True, False, False]
    assert lines[2].endswith("device a is calibrated")


def test_nothing_new_is_no_line() -> None:
    now = 0.0
    stream = io.StringIO()
    display = PlainDisplay(stream, clock=lambda: now)
    for _ in range(10):
        now += 60.0
        display.show(view())
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize("phase", ["build", "verify", "done"])
def test_after_the_last_trial_there_is_no_time_left_to_tell(phase: str) -> None:
    assert "left" in view(phase="select").line()
    assert "left" not in view(phase=phase).line()


@pytest.mark.parametrize(
    ("values", "bars"), [([], ""), ([1.0], "▁"), ([1.0, 1.0], "▁▁"), ([1.0, 1.5, 2.0], "▁▅█"), ([2.0, 1.0], "█▁")]
)
def test_sparklines(values: list[float], bars: str) -> None:
    assert sparkline(values) == bars


def test_a_sparkline_shows_the_last_values() -> None:
    assert sparkline([9.0, 1.0, 2.0], width=2) == "▁█"


def test_the_parts_of_a_phase_are_counted() -> None:
    result = view(phase="build", step=3, steps=8)
    assert "RUNNING building 3 of 8  32/256" in result.line()
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(panel(result))
    assert "RUNNING (building 3 of 8)" in console.export_text()
    assert view(phase="plan", trials=0).line().startswith("RUNNING planning  0/256")
