"""A search shown in a notebook, and outside of one."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

import shapewright as sw
from tuner.search.summary import SearchSummary, Stage

RUNNING = SearchSummary(
    Stage.SEARCH, trials=32, trials_budget=256, elapsed_s=20.0, seconds_budget=180.0,
    objective_s=1e-4, default_objective_s=1.42e-4, speedup_vs_default=1.42,
)  # fmt: skip
BUILDING = SearchSummary(Stage.BUILD, trials=256, trials_budget=256, step=3, steps=8)


class Shell:
    """What IPython says of a notebook."""

    kernel = object()


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a notebook shows, each time that it changes."""
    result: list[str] = []

    class Handle:
        def update(self, value: Any) -> None:
            result.append(value._repr_html_())

    def display(value: Any, *, display_id: bool) -> Handle:
        assert display_id
        result.append(value._repr_html_())
        return Handle()

    ipython, displays = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    monkeypatch.setattr(ipython, "get_ipython", Shell, raising=False)
    monkeypatch.setattr(displays, "display", display, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", displays)
    return result


def test_a_notebook_shows_a_search_in_its_place(shown: list[str]) -> None:
    progress = sw.Progress()
    assert "waiting" in progress._repr_html_()
    progress(RUNNING.to_json())
    progress(BUILDING.to_json())
    searching, building = shown
    for part in ("searching", "32 of 256 trials", "1.42x over the default", "2 min 20 s left", "<progress"):
        assert part in searching
    assert "building 3 of 8" in building
    assert "left" not in building
    assert '<progress max="8" value="3">' in building


def test_elsewhere_a_search_is_lines_at_changes_of_phase(capsys: pytest.CaptureFixture[str]) -> None:
    progress = sw.Progress(clock=lambda: 0.0)
    for summary in (RUNNING, RUNNING, BUILDING):
        progress(summary.to_json())
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["searching", "building 3 of 8"]


def test_what_a_failure_says_is_text(shown: list[str]) -> None:
    progress = sw.Progress()
    progress(SearchSummary("<b>odd</b>").to_json())
    assert "&lt;b&gt;odd" in shown[0]
