"""Figures of axes: importance, slices, and the data of parallel coordinates."""

from __future__ import annotations

from dataclasses import replace

from tests.fakes import TASK
from tests.tuner.figures.searches import finished
from tuner.figures import SearchView, figure, view_of
from tuner.figures.axes import coordinates, meanings_of
from tuner.schedule import space_of
from tuner.schedule.space import DEFAULT_CHOICE
from tuner.search.importance import AxisImportance, Importance
from tuner.storage import NewEvent

FOUND = Importance("x86_contraction", 99, 0.9, (AxisImportance("ku", 0.2, 0.8), AxisImportance("mr", 0.05, 0.2)))
VIEW = replace(finished(), importance=FOUND)


def test_importance_is_read_from_the_last_event_of_the_task() -> None:
    older = replace(FOUND, pairs=1)
    events = [NewEvent("importance", found.to_json() | {"position": position})
              for found, position in ((older, 0), (FOUND, 0), (older, 1))]  # fmt: skip
    assert view_of(TASK, (), events).importance == FOUND
    assert view_of(TASK, (), [NewEvent("importance", {"position": 0, "axes": 3})]).importance is None


def test_bars_have_readable_names_and_meanings() -> None:
    [bars] = figure("axis_importance", VIEW).data
    assert list(bars.y) == ["m_tile", "unroll"]
    assert list(bars.x) == [20.0, 80.0]
    docs = {axis.name: axis.doc for axis in space_of(TASK).spaces[0].axes}
    assert list(bars.customdata) == [docs["mr"], docs["ku"]]
    unsure = figure("axis_importance", replace(VIEW, importance=replace(FOUND, explained=0.05)))
    assert "uncertain" in unsure.layout.title.text


def test_slices_stand_in_the_order_of_importance() -> None:
    drawn = figure("slices", VIEW)
    titles = [axis.title.text for axis in drawn.select_xaxes()]
    assert titles[:2] == ["unroll<br>(choice)", "m_tile<br>(choice)"]
    assert len(titles) == 6
    dots = [trace for trace in drawn.data if trace.mode == "markers"]
    assert max(max(trace.y) for trace in dots) > 85


def test_coordinates_have_every_measured_kernel_with_its_choices() -> None:
    data = coordinates(VIEW)
    assert [axis["name"] for axis in data["axes"]][:2] == ["unroll", "m_tile"]
    assert all(axis["doc"] for axis in data["axes"])
    speeds = [kernel["speed"] for kernel in data["kernels"]]
    assert speeds == sorted(speeds, reverse=True)
    by_id = {kernel.id: kernel for kernel in VIEW.columns.kernels}
    for kernel in data["kernels"]:
        values = by_id[kernel["id"]].named
        for axis, choice in zip(data["axes"], kernel["choices"], strict=True):
            assert axis["choices"][choice] == values.get(axis["name"], DEFAULT_CHOICE)
    assert coordinates(SearchView(TASK))["axes"] == []


def test_meanings_are_those_of_the_space() -> None:
    space = space_of(TASK).spaces[0]
    assert meanings_of(TASK)[space.rule] == {axis.name: axis.doc for axis in space.axes}
