"""What each figure of a search shows: the numbers in its traces."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from tests.fakes import TASK, latency_s
from tests.searching import known
from tests.tuner.figures.searches import THREE, TWO, finished, library, sampled
from tuner.figures import COMPARABLE, FIGURES, SearchView, UnknownFigure, compare, figure, kernel_times
from tuner.figures.kernels import MAX_KERNELS
from tuner.figures.model import spearman
from tuner.program.job.build import make_workload
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar
from tuner.program.target.calibration import Level, Levels
from tuner.records import Baseline, Baselines, ErrorKind, MeasureResult, Phase, Roof
from tuner.schedule.space import readable
from tuner.search.summary import SearchSummary


@pytest.fixture(scope="module")
def view() -> SearchView:
    return finished()


def named(found: go.Figure, name: str) -> Any:
    (trace,) = [trace for trace in found.data if trace.name == name]
    return trace


# -- how the search went ----------------------------------------------------------------------------------------------
def test_the_best_falls_from_the_default_over_time_and_over_trials(view: SearchView) -> None:
    last = view.progress[-1]
    for name, against in (("best_over_time", last.elapsed_s), ("best_over_trials", last.trials)):
        result = figure(name, view)
        best = named(result, "best so far")
        assert best.x[-1] == pytest.approx(against, rel=1e-4)
        assert best.y[-1] == pytest.approx(1e3 * known(last.objective_s), rel=1e-4)
        assert best.line.shape == "hv"
        default = named(result, "default (theory)")
        assert default.y[0] == default.y[1] == pytest.approx(1e3 * view.columns.default[1].sum(), rel=1e-4)
        assert best.y[0] == default.y[0], "the default is where the curve begins"


def test_the_best_never_rises_and_the_range_of_its_readings_is_drawn() -> None:
    """It rose from 9.0 to 11.1 ms where a lucky reading was taken back by later ones."""
    first, lucky = sampled(TASK, 2)
    results = [MeasureResult(first, at, 2e-3, phase=Phase.THEORY) for at in TASK.instances]
    results += [MeasureResult(lucky, at, 1e-3, round=1) for at in TASK.instances]
    results += [MeasureResult(lucky, at, 1.9e-3, round=1, attempt=again) for again in (1, 2) for at in TASK.instances]
    trials = (5, 10, 15, 20)
    told = [0.010, 0.005, 0.00725, 0.0095]
    progress = [
        SearchSummary("search" if count > 5 else "theory", trials=count, objective_s=best_s, default_objective_s=0.010)
        for count, best_s in zip(trials, told, strict=True)
    ]
    result = figure("best_over_trials", SearchView(TASK, results, progress))
    best = named(result, "best so far")
    assert list(best.y) == sorted(best.y, reverse=True)
    assert (best.y[0], best.y[-1]) == (10, 9.5), "of the median of all readings, at once"
    assert named(result, "default (theory)").y[0] == best.y[0]
    band = named(result, "range of its readings")
    assert (min(band.y), max(band.y)) == (9.5, 10) and band.fill == "tonexty"
    (lower,) = [trace for trace in result.data if trace.name is None]
    assert min(lower.y) == 5
    # Of progress alone, too.
    alone = named(figure("best_over_trials", SearchView(TASK, (), progress)), "best so far")
    assert list(alone.y) == sorted(alone.y, reverse=True)


def test_what_comes_before_the_default_is_whole_is_left_out() -> None:
    def at(trials: int, phase: str, objective_s: float | None) -> SearchSummary:
        return SearchSummary(phase, trials=trials, objective_s=objective_s, default_objective_s=objective_s)

    progress = [at(1, "theory", None), at(2, "theory", 1.0), at(3, "theory", 5.0), at(4, "search", 4.0)]
    best = named(figure("best_over_trials", SearchView(TASK, (), progress)), "best so far")
    assert (best.x, best.y) == ((3, 4), (5000, 4000))
    alone = named(figure("best_over_trials", SearchView(TASK, (), progress[:2])), "best so far")
    assert (alone.x, alone.y, alone.mode) == ((2,), (1000,), "lines+markers")


def test_what_earlier_searches_had_found_is_where_the_curve_begins() -> None:
    def at(trials: int, phase: str, best_s: float | None, default_s: float | None = None) -> SearchSummary:
        return SearchSummary(phase, trials=trials, objective_s=best_s, default_objective_s=default_s)

    progress = [at(1, "known", None), at(2, "known", 3.0), at(3, "theory", 1.0, 2.0), at(4, "theory", 3.0, 6.0)]
    result = figure("best_over_trials", SearchView(TASK, (), progress))
    best = named(result, "best so far")
    assert (best.x[0], best.y[0], best.text[0]) == (2, 3000, "known")
    assert set(best.y) == {3000}
    assert named(result, "default (theory)").y[0] == 6000
    alone = figure("best_over_trials", SearchView(TASK, (), progress[:2]))
    assert [trace.name for trace in alone.data] == ["best so far"]


def test_numpy_is_a_line_where_it_was_timed_at_every_instance(view: SearchView) -> None:
    uneven = weighted(view)
    result = named(figure("best_over_time", uneven), "NumPy")
    times = {point.instance.values: point.latency_s for point in view.baselines.points}
    total = sum(instance.weight * times[instance.values] for instance in uneven.task.instances)
    assert result.y[0] == pytest.approx(1e3 * total, rel=1e-4)
    fewer = replace(view, baselines=Baselines(view.baselines.points[1:]))
    assert "NumPy" not in [trace.name for trace in figure("best_over_time", fewer).data]


def weighted(view: SearchView) -> SearchView:
    """The same search where the first instance weighs five times as much as the others."""
    first, *rest = TASK.instances
    instances = [replace(first, weight=5.0), *rest]
    return replace(view, task=SearchTask(TASK.workload, shape_vars=TASK.shape_vars, instances=instances))


def test_failures_are_counted_by_round_and_kind() -> None:
    kernel, instance = sampled(TASK, 1)[0], TASK.instances[0]
    kinds = [(0, ErrorKind.CRASH), (2, ErrorKind.CRASH), (2, ErrorKind.CRASH), (2, ErrorKind.BUILD_TIMEOUT)]
    result = figure(
        "failures", SearchView(TASK, [MeasureResult(kernel, instance, error_kind=k, round=r) for r, k in kinds])
    )
    assert result.layout.barmode == "stack"
    assert named(result, "crash").y == (1, 0, 2)
    assert named(result, "build timeout").y == (0, 0, 1)
    assert len({trace.marker.pattern.shape for trace in result.data}) == 2


def test_many_rounds_share_bars_and_lose_no_failure() -> None:
    kernel, instance = sampled(TASK, 1)[0], TASK.instances[0]
    results = [MeasureResult(kernel, instance, error_kind=ErrorKind.CRASH, round=n) for n in range(1001)]
    (bars,) = figure("failures", SearchView(TASK, results)).data
    assert len(bars.y) <= 200
    assert sum(bars.y) == 1001


# -- latencies --------------------------------------------------------------------------------------------------------
def test_latency_by_shape_shows_the_library_its_rivals_and_its_regret(view: SearchView) -> None:
    result = figure("latency_by_shape", view)
    assert view.dispatcher is not None
    expected = named(result, "library, expected")
    assert expected.x == tuple(range(1, 129))
    row = view.dispatcher.table[63]
    assert expected.y[63] == pytest.approx(1e6 * row.predicted_latency_s, rel=1e-4)
    assert expected.customdata[63] == view.dispatcher.kernels[row.kernel].id
    measured, default = named(result, "library, measured"), named(result, "default (theory)")
    assert measured.x == default.x == (1, 7, 24, 61, 128)
    assert default.y == pytest.approx(1e6 * view.columns.default[1], rel=1e-4)
    assert named(result, "NumPy").y == pytest.approx([1e6 * p.latency_s for p in view.baselines.points], rel=1e-4)
    regret = named(result, "regret")
    assert regret.yaxis == "y2"
    assert regret.y == pytest.approx(
        [100 * (1e-6 * y / best - 1) for y, best in zip(measured.y, view.columns.best_s, strict=True)], abs=0.02
    )
    assert len({measured.marker.symbol, default.marker.symbol, named(result, "NumPy").marker.symbol}) == 3
    assert result.layout.yaxis.type == "log"
    assert result.layout.hovermode == "x unified"


def test_several_variables_are_told_by_the_work_of_a_call() -> None:
    view = finished(TWO)
    result = figure("latency_by_shape", view)
    measured = named(result, "library, measured")
    work = {f"{instance}": TWO.workload.flops(TWO.workload.dims(instance.shape)) / 1e6 for instance in TWO.instances}
    shapes = [text.partition(", ")[0] for text in measured.text]
    assert measured.x == pytest.approx([work[shape] for shape in shapes], rel=1e-4)
    assert measured.text[0].startswith("S=1,T=1, k")
    assert result.layout.xaxis2.title.text == "Work of a call (MFLOP)"
    assert result.layout.hovermode == "closest"
    assert named(result, "library, expected").mode == "markers"


def test_before_there_is_a_library_the_best_so_far_stands_for_it(view: SearchView) -> None:
    result = figure("latency_by_shape", replace(view, dispatcher=None))
    assert named(result, "best so far, measured").y == pytest.approx(1e6 * view.columns.best_s, rel=1e-4)
    assert set(named(result, "regret").y) == {0.0}


def test_one_kernel_stands_beside_the_best_and_the_default(view: SearchView) -> None:
    kernel = view.columns.kernels[3]
    result = kernel_times(view, kernel.id)
    own = named(result, view.label(kernel))
    at = view.task.instances[-1]
    assert own.y[-1] == pytest.approx(1e6 * latency_s(TASK, kernel, at.shape), rel=0.2)
    assert set(own.customdata) == {kernel.id}
    assert named(result, "best measured").y == pytest.approx(1e6 * view.columns.best_s, rel=1e-4)
    assert named(result, "default (theory)").y == pytest.approx(1e6 * view.columns.default[1], rel=1e-4)
    assert "No kernel" in kernel_times(view, "0" * 12).layout.annotations[0].text


# -- kernels ----------------------------------------------------------------------------------------------------------
def test_the_heat_map_has_the_chosen_first_and_1_for_the_best(view: SearchView) -> None:
    (heat,) = figure("kernels_by_shape", view).data
    assert heat.y[: len(view.chosen)] == tuple(view.labels.values())
    assert heat.x == ("T=1", "T=7", "T=24", "T=61", "T=128")
    values = np.array(heat.z, float)
    assert np.nanmin(values) == 1.0
    assert heat.customdata[0][0] == view.chosen[0].id
    assert "weight 1" in heat.hovertext[0][0]
    assert len(heat.y) <= MAX_KERNELS


def test_the_heat_map_says_the_weights_where_they_differ(view: SearchView) -> None:
    (heat,) = figure("kernels_by_shape", weighted(view)).data
    assert heat.x[:2] == ("T=1<br>w 5", "T=7<br>w 1")


def test_tile_parameters_are_lines_over_the_axes_that_vary(view: SearchView) -> None:
    result = figure("tile_parameters", view)
    columns, speed = view.columns, view.columns.relative()
    kernels = {k.id: k for k, sound in zip(columns.kernels, columns.sound, strict=True) if sound}
    names = sorted({name for kernel in kernels.values() for name, _ in kernel.values})
    axes = tuple(name for name in names if len({kernel.get(name) for kernel in kernels.values()}) > 1)
    assert result.layout.xaxis.ticktext == tuple(readable(name) for name in axes)
    *classes, ticks = result.data
    assert {name for trace in classes for name in trace.customdata} == set(kernels)
    best = columns.kernels[int(np.nanargmax(speed))]
    start = classes[-1].customdata.index(best.id)
    shown = {(x, y): text for x, y, text in zip(ticks.x, ticks.y, ticks.text, strict=True)}
    for axis, name in enumerate(axes):
        at = classes[-1].y[start + axis]
        nearest = min((y for x, y in shown if x == axis), key=lambda y: abs(y - at))
        assert shown[axis, nearest] == str(best.get(name))
    assert classes[-1].y[start + len(axes)] is None


def test_tile_parameters_tell_classes_apart_by_colour_and_width(view: SearchView) -> None:
    *classes, _ = figure("tile_parameters", view).data
    assert classes[0].name.endswith("% of the best's speed") or classes[0].name.endswith("%")
    fastest = 100 * np.nanmax(view.columns.relative())
    least, most = map(int, re.findall(r"\d+", classes[-1].name))
    assert least <= fastest <= most
    assert len({trace.line.color for trace in classes}) == len(classes)
    assert classes[-1].line.width > classes[0].line.width


# -- dispatch ---------------------------------------------------------------------------------------------------------
def test_bands_cover_the_range_of_one_variable(view: SearchView) -> None:
    pool = sampled(TASK, 4)
    dispatcher = library(TASK, pool)
    result = figure("dispatch", replace(view, dispatcher=dispatcher))
    covered: dict[int, str] = {}
    for bars in result.data:
        for base, width, kernel in zip(bars.base, bars.x, bars.customdata, strict=True):
            covered |= dict.fromkeys(range(round(base + 0.5), round(base + width + 0.5)), kernel)
    assert covered == {t: dispatcher.kernel_for({"T": t}).id for t in range(1, 129)}


@pytest.mark.parametrize("values", [range(8, 129, 8), (1, 2, 4, 8, 16, 32, 64, 128), (5,)])
def test_bars_of_a_range_with_gaps_meet_halfway(values: range | tuple[int, ...]) -> None:
    task = SearchTask("dense", {"m": "T", "n": 96, "k": 32}, (ShapeVar("T", values),), target=TASK.target)
    result = figure("dispatch", SearchView(task, dispatcher=library(task, sampled(task, 4))))
    bars = sorted((base, base + width) for bar in result.data for base, width in zip(bar.base, bar.x, strict=True))
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(bars))
    assert bars[0][0] < min(values) <= max(values) < bars[-1][1]


def test_two_variables_are_a_grid_with_every_kernel_named() -> None:
    dispatcher = library(TWO, sampled(TWO, 4))
    result = figure("dispatch", SearchView(TWO, dispatcher=dispatcher))
    (cells,) = result.data
    for row, t in enumerate(cells.y):
        for column, s in enumerate(cells.x):
            assert cells.customdata[row][column] == dispatcher.kernel_for({"T": t, "S": s}).id
    assert (result.layout.xaxis.title.text, result.layout.yaxis.title.text) == (
        "S (shape variable)",
        "T (shape variable)",
    )
    shown = {number for row in cells.z for number in row}
    assert {note.text for note in result.layout.annotations} == {f"k{number + 1}" for number in shown}


def test_a_third_variable_is_held_at_the_middle_and_told() -> None:
    result = figure("dispatch", SearchView(THREE, dispatcher=library(THREE, sampled(THREE, 3))))
    assert result.layout.title.text == "at B = 2"
    assert result.layout.xaxis.title.text == "S (shape variable)"


# -- the model --------------------------------------------------------------------------------------------------------
def test_calibration_is_predicted_against_measured_by_round(view: SearchView) -> None:
    results = figure("calibration", view)
    trials, ranks = named(results, "trial"), named(results, "rank correlation")
    compared = [r for r in view.results if r.ok]
    assert len(trials.x) == len(compared)
    assert sorted(trials.x) == pytest.approx(sorted(1e6 * (r.predicted_s or 0) for r in compared), rel=1e-4)
    assert results.layout.xaxis.type == results.layout.yaxis.type == "log"
    first = [r for r in compared if r.round == 0]
    expected = by_hand([r.predicted_s or 0 for r in first], [r.latency_s or 0 for r in first])
    assert (ranks.x[0], ranks.y[0]) == (0, pytest.approx(expected, abs=1e-3))
    assert set(trials.marker.color) == {result.round for result in compared}


def by_hand(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation by its definition: a value's rank is the mean place of all that are equal to it."""

    def ranks(values: Sequence[float]) -> list[float]:
        return [sum(o < v for o in values) + (1 + sum(o == v for o in values)) / 2 for v in values]

    return float(np.corrcoef(ranks(first), ranks(second))[0, 1])


@pytest.mark.parametrize("seed", range(5))
def test_rank_correlation_is_spearmans_with_ties_averaged(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = rng.integers(0, 6, 30).astype(float), rng.integers(0, 6, 30).astype(float)
    assert spearman(first, second) == pytest.approx(by_hand(first.tolist(), second.tolist()))
    assert np.isnan(spearman(first, np.ones(30)))


# -- the roofline -----------------------------------------------------------------------------------------------------
def test_the_roofline_has_the_work_over_what_must_be_moved(view: SearchView) -> None:
    result = figure("roofline", view)
    points, roof = named(result, "library, measured"), named(result, "roof")
    at = TASK.instances[-1]
    place = points.text.index(next(text for text in points.text if text.startswith(f"{at},")))
    flops, moved = 2 * 128 * 96 * 32, 4 * (128 * 32 + 96 * 32 + 128 * 96)
    assert points.x[place] == pytest.approx(flops / moved, rel=1e-4)
    kernel = next(k for k in view.chosen if k.id == points.customdata[place])
    latency = view.columns.table(view.columns.index_of([kernel]))[0, -1]
    assert points.y[place] == pytest.approx(1e-9 * flops / latency, rel=1e-4)
    assert roof.y[1] == roof.y[2] == pytest.approx(110)
    assert "110 GFLOP/s, 12 GB/s" in roof.hovertemplate
    fast = named(figure("roofline", replace(view, baselines=Baselines(roof=Roof(110e9, 1e12)))), "roof")
    assert fast.y[0] / fast.x[0] == pytest.approx(1000, rel=1e-3) and "raised" not in fast.hovertemplate
    assert "roof" not in [t.name for t in figure("roofline", replace(view, baselines=Baselines())).data]


def test_no_dot_stands_above_the_roof(view: SearchView) -> None:
    """Dots at 140 GFLOP/s stood over a roof of 66 that was measured while a neighbour was busy."""
    low = replace(view, baselines=replace(view.baselines, roof=Roof(1e6, 1e6, 2e-6)))
    result = figure("roofline", low)
    roof = named(result, "roof")
    dots = [(x, y) for trace in result.data if trace is not roof for x, y in zip(trace.x, trace.y, strict=True)]
    peak, slope = max(roof.y), roof.y[0] / roof.x[0]
    assert dots and all(y <= 1.001 * min(peak, slope * x) for x, y in dots)
    assert "raised to the fastest kernel" in roof.hovertemplate
    assert "0.001 GFLOP/s" in roof.hovertemplate, "what was measured is told as well"


def test_the_roofline_of_a_calibrated_device_has_a_line_for_each_level_up_to_the_peak(view: SearchView) -> None:
    known = Levels(110e9, (Level("L1", 2**14, 400e9), Level("L2", 2**19, 100e9), Level("memory", 2**27, 12e9)))
    names = [trace.name for trace in figure("roofline", view).data]
    result = figure("roofline", replace(view, levels=known))
    assert [trace.name for trace in result.data] == [*names, "L1", "L2", "memory"]
    for level in known.levels:
        line = named(result, level.name)
        slopes = [y / x for x, y in zip(line.x, line.y, strict=True)]
        assert slopes == pytest.approx([1e-9 * level.bytes_per_s] * 2, rel=1e-3)
        assert line.y[-1] == pytest.approx(110, rel=1e-3)
        assert line.x[0] < line.x[-1]


def test_an_epilogues_operands_are_moved_too() -> None:
    bare = make_workload("dense", {"m": "T", "n": 8, "k": 4})
    biased = make_workload("dense", {"m": "T", "n": 8, "k": 4}, epilogue=["bias"])
    assert bare.bytes_moved(bare.dims({"T": 2})) == 4 * (8 + 32 + 16)
    assert biased.bytes_moved(biased.dims({"T": 2})) - bare.bytes_moved(bare.dims({"T": 2})) == 4 * 8


# -- by name ----------------------------------------------------------------------------------------------------------
def test_every_figure_has_a_title_and_says_how_to_read_it() -> None:
    for name, spec in FIGURES.items():
        assert spec.name == name
        assert spec.title
        assert spec.caption.endswith(".")


def test_names_that_are_none_are_told_with_those_that_are(view: SearchView) -> None:
    with pytest.raises(UnknownFigure, match="no figure 'best'; there are: best_over_time,"):
        figure("best", view)
    with pytest.raises(UnknownFigure, match="latency_by_shape"):
        compare({"a": view}, "failures")


@pytest.mark.parametrize("name", sorted(COMPARABLE.keys() - {"speedup_by_shape"}))
def test_two_searches_are_told_apart_by_name_colour_and_dash(view: SearchView, name: str) -> None:
    result = compare({"<b>old</b>": view, "新": finished(seed=2)}, name)
    lines = [trace for trace in result.data if trace.mode == "lines" and trace.line.width >= 2]
    assert len(lines) == 2
    assert lines[0].name.startswith("&lt;b&gt;old&lt;/b&gt;: ")
    assert lines[1].name.startswith("新: ")
    assert lines[0].line.color != lines[1].line.color
    assert lines[0].line.dash != lines[1].line.dash


def test_other_libraries_are_drawn_by_their_name(view: SearchView) -> None:
    point = Baseline("<i>mkl</i>", TASK.instances[0], 1e-6)
    result = figure("latency_by_shape", replace(view, baselines=Baselines((point,))))
    assert named(result, "&lt;i&gt;mkl&lt;/i&gt;").y == (1.0,)


def test_a_range_of_single_values_is_drawn_at_them() -> None:
    few = ShapeVar("T", (3, 9, 27))
    task = SearchTask("dense", {"m": few, "n": 96, "k": 32}, (few,), target=TASK.target)
    view = finished(task)
    assert named(figure("latency_by_shape", view), "library, expected").x == (3, 9, 27)


def test_without_any_regret_there_is_one_panel_and_its_axis_has_a_title(view: SearchView) -> None:
    alone = figure("latency_by_shape", replace(view, results=()))
    both = figure("latency_by_shape", view)
    assert named(alone, "library, expected").yaxis is None and "yaxis2" not in alone.layout
    assert (alone.layout.xaxis.title.text, both.layout.xaxis2.title.text) == ("T (shape variable)",) * 2
    assert alone.layout.height < both.layout.height


def test_between_powers_of_ten_a_logarithmic_axis_has_numbers_and_not_digits(view: SearchView) -> None:
    axis = figure("calibration", view).layout.yaxis
    assert (axis.type, axis.tickformat) == ("log", "~g")
