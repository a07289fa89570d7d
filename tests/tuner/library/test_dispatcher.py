"""Dispatchers: total, cheap in regret, and the same after JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.earlier import RELEASE, library_of
from tests.tuner.strategies import KERNELS, tasks
from tuner.errors import ShapewrightError
from tuner.library.dispatcher import (
    EXTENTS_FORMAT,
    FORMAT,
    Dispatcher,
    Leaf,
    Node,
    TableRow,
    Tree,
    bounded,
    choose,
    is_within,
    kernel_json,
    symbol_bounds,
)
from tuner.library.fitting import TOLERATED_REGRET, chosen, features_of, fit, leaves
from tuner.program.job.task import SearchTask
from tuner.program.language.dims import DimExpr
from tuner.program.language.workload import JsonObject, ShapeVar
from tuner.schedule.space import MicroKernel

Floats = NDArray[np.float64]
T = ShapeVar("T", range(1, 129))
TASK = SearchTask("dense", {"m": 16 * T, "n": 8, "k": 8}, (T,))
A, B, C = (MicroKernel("r", 1, (("a", value),)) for value in (1, 2, 3))


def depth(tree: Tree) -> int:
    return 0 if isinstance(tree, Leaf) else 1 + max(depth(tree.then), depth(tree.otherwise))


def regret(tree: Tree, dims: tuple[str, ...], points: NDArray[np.int64], latency_s: Floats) -> float:
    chosen = [choose(tree, dict(zip(dims, map(int, point), strict=True))) for point in points]
    return float((latency_s[np.arange(len(points)), chosen] / latency_s.min(axis=1) - 1).mean())


@st.composite
def latencies(draw: st.DrawFn, dims: int) -> tuple[NDArray[np.int64], Floats]:
    """Some shapes and the latencies of some kernels there: smooth in the shape, with noise, and with steps."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, kernels = draw(st.integers(1, 60)), draw(st.integers(1, 5))
    points = np.unique(rng.integers(0, 200, (count, dims)), axis=0)
    slopes, base = rng.random((kernels, dims)), rng.random(kernels) * 50 + 1
    smooth = points @ slopes.T + base
    steps = 1 + draw(st.sampled_from([0.0, 0.3])) * ((points.sum(axis=1)[:, None] % rng.integers(2, 20, kernels)) > 1)
    noise = np.exp(draw(st.sampled_from([0.0, 0.01, 0.3])) * rng.normal(size=smooth.shape))
    return points, smooth * steps * noise


@given(latencies(1))
def test_regret_is_within_what_is_tolerated_in_one_dim(found: tuple[NDArray[np.int64], Floats]) -> None:
    points, latency_s = found
    assert regret(fit(["m"], points, latency_s), ("m",), points, latency_s) <= TOLERATED_REGRET + 1e-9


@given(latencies(2))
def test_regret_is_within_what_is_tolerated_in_two_dims(found: tuple[NDArray[np.int64], Floats]) -> None:
    points, latency_s = found
    assert regret(fit(["m", "n"], points, latency_s), ("m", "n"), points, latency_s) <= TOLERATED_REGRET + 1e-9


@given(latencies(2), st.lists(st.integers(2, 20), max_size=3, unique=True))
def test_what_is_chosen_of_many_shapes_is_what_is_chosen_of_each(
    found: tuple[NDArray[np.int64], Floats], sizes: list[int]
) -> None:
    points, latency_s = found
    features = features_of(["m", "n"], {DimExpr.of(name): sizes for name in "mn"})
    tree = fit(["m", "n"], points, latency_s, features)
    assert regret(tree, ("m", "n"), points, latency_s) <= TOLERATED_REGRET + 1e-9
    one_by_one = [choose(tree, {"m": int(m), "n": int(n)}) for m, n in points]
    assert chosen(tree, ["m", "n"], points).tolist() == one_by_one


def test_rests_of_tiles_need_few_comparisons() -> None:
    points = np.arange(1, 513)[:, None]
    ragged = points[:, 0] % 14 > 5
    latency_s = np.stack([np.where(ragged, 2.0, 1.0), np.where(ragged, 1.0, 2.0)], axis=1)
    features = features_of(["m"], {DimExpr.of("m"): (8, 14)})
    assert features == ["m%8", "m%14"]
    assert fit(["m"], points, latency_s, features) == Node("m%14", 5, Leaf(0), Leaf(1))
    assert leaves(fit(["m"], points, latency_s)) > 70


def test_features_are_of_two_dims_and_of_their_tiles() -> None:
    tiles = {DimExpr.of("m"): (8,), DimExpr.of("n"): (16,), DimExpr.of("4*n"): (2,)}
    assert features_of(["m", "n"], tiles) == [
        "m%8",
        "n%16",
        "m*n",
        "((m+7)//8)*((n+15)//16)",
        "((4*n+1)//2)*((m+7)//8)",
        "((4*n+1)//2)*((n+15)//16)",
    ]


def test_a_large_regret_counts_for_more_than_many_small_ones() -> None:
    """A leaf for one shape of 2,000 costs less than nothing in the mean."""
    points = np.arange(1, 2001)[:, None]
    latency_s = np.stack([np.where(points[:, 0] == 77, 1.5, 1.0), np.where(points[:, 0] == 77, 1.0, 1.2)], axis=1)
    assert [choose(fit(["m"], points, latency_s), {"m": m}) for m in (76, 77, 78)] == [0, 1, 0]


def test_an_interval_inside_another_kernels_is_found() -> None:
    points = np.arange(1, 129)[:, None]
    inside = (points[:, 0] > 40) & (points[:, 0] <= 60)
    latency_s = np.stack([np.where(inside, 2.0, 1.0), np.where(inside, 1.0, 2.0)], axis=1)
    tree = fit(["m"], points, latency_s)
    assert [choose(tree, {"m": int(m)}) for m in points[:, 0]] == inside.astype(int).tolist()
    assert depth(tree) <= 4


def test_kernels_that_alternate_are_all_served() -> None:
    points = np.arange(1, 65)[:, None]
    even = points[:, 0] % 2 == 0
    latency_s = np.stack([np.where(even, 2.0, 1.0), np.where(even, 1.0, 2.0)], axis=1)
    tree = fit(["m"], points, latency_s)
    assert regret(tree, ("m",), points, latency_s) <= TOLERATED_REGRET


def test_a_difference_that_costs_nothing_is_no_split() -> None:
    points = np.arange(1, 129)[:, None]
    latency_s = np.stack([np.ones(128), np.where(points[:, 0] > 64, 0.9995, 1.0)], axis=1)
    assert isinstance(fit(["m"], points, latency_s), Leaf)


def test_shapes_between_two_known_ones_go_to_the_nearer() -> None:
    tree = fit(["m"], np.array([[10], [20]]), np.array([[1.0, 2.0], [2.0, 1.0]]))
    assert [choose(tree, {"m": m}) for m in (0, 14, 16, 10**9)] == [0, 0, 1, 1]


def test_a_workload_without_dynamic_dims_has_one_kernel() -> None:
    assert fit([], np.zeros((1, 0), np.int64), np.array([[3.0, 1.0, 2.0]])) == Leaf(1)


SIZES = st.lists(st.integers(2, 12), max_size=2, unique=True)


@st.composite
def dispatchers(draw: st.DrawFn) -> Dispatcher:
    task = draw(tasks())
    kernels = tuple(draw(st.lists(KERNELS, min_size=1, max_size=4, unique=True)))
    shapes = task.shapes(32)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    latency_s = np.exp(rng.normal(size=(len(shapes), len(kernels))))
    names = task.workload.symbols
    points = np.array([[task.workload.dims(shape)[name] for name in names] for shape in shapes], np.int64)
    safe = draw(st.integers(0, len(kernels) - 1))
    features = features_of(names, {DimExpr.of(name): draw(SIZES) for name in names})
    tree = fit(names, points, latency_s, features)
    bare = Dispatcher(task, kernels, safe, bounded(tree, symbol_bounds(task), safe))
    rows = [
        TableRow(shape, bare.index_for(task.workload.dims(shape)), 1e-6 * (index + 1), 2e-6 if index % 2 else None)
        for index, shape in enumerate(shapes)
    ]
    return Dispatcher(task, kernels, safe, bare.tree, tuple(rows))


@settings(max_examples=60)
@given(dispatchers(), st.data())
def test_a_dispatcher_comes_back_from_json_and_answers_alike(found: Dispatcher, data: st.DataObject) -> None:
    again = Dispatcher.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found
    assert json.dumps(again.to_json(), sort_keys=True) == json.dumps(found.to_json(), sort_keys=True)
    names = list(found.task.ranges)
    beyond = st.fixed_dictionaries({name: st.integers(0, 10**6) for name in names})
    for shape in [*found.task.shapes(16), data.draw(beyond)]:
        kernel = found.kernel_for(shape)
        assert kernel in found.kernels
        assert again.kernel_for(shape) == kernel
        assert found.kernels[choose(found.tree, found.task.workload.dims(shape))] == kernel
        dims = found.task.workload.dims(shape)
        assert is_within(dims, again.bounds) == is_within(dims, found.bounds)
        assert again.predicted_latency_s(dims) == found.predicted_latency_s(dims)
    assert all(is_within(found.task.workload.dims(shape), found.bounds) for shape in found.task.shapes(16))


@settings(max_examples=60)
@given(dispatchers(), st.integers(1, 10**6))
def test_dims_beyond_their_bounds_get_the_safe_kernel(found: Dispatcher, extra: int) -> None:
    most = {name: high for name, (_, high) in found.bounds.items()}
    assert set(most) == set(found.task.workload.symbols)
    for name, (least, _) in found.bounds.items():
        for outside in [most[name] + extra, *([least - 1] if least else [])]:
            assert not is_within(most | {name: outside}, found.bounds)
            assert found.index_for(most | {name: outside}) == found.default_kernel


def _dispatcher() -> Dispatcher:
    tree = bounded(Node("m", 160, Leaf(1), Leaf(2)), {"m": (16, 2048)}, 0)
    rows = (TableRow({"T": 1}, 1, 1e-6), TableRow({"T": 10}, 1, 8e-6, 7e-6), TableRow({"T": 128}, 2, 1e-4))
    return Dispatcher(TASK, (A, B, C), 0, tree, rows)


def test_what_would_run_is_told_inside_the_range_and_outside() -> None:
    result = _dispatcher()
    assert [result.kernel_for({"T": t}) for t in (0, 1, 10, 11, 128, 129)] == [A, B, B, C, C, A]
    assert [is_within({"m": m}, result.bounds) for m in (15, 16, 17, 2048, 2049)] == [False, True, True, True, False]
    assert result.index_for({"m": 2047}) == 2
    assert str(result).splitlines()[1] == "T=10 -> a=2"


def test_expected_latencies_come_from_the_nearest_row_scaled_by_the_work() -> None:
    result = _dispatcher()
    assert result.predicted_latency_s({"m": 160}) == 8e-6
    near = result.predicted_latency_s({"m": 176})
    assert near is not None
    assert near == pytest.approx(8.8e-6, rel=1e-3)
    beyond = result.predicted_latency_s({"m": 16 * 256})
    assert beyond == pytest.approx(2e-4, rel=1e-3)
    assert result.predicted_latency_s({"m": 0}) is not None
    assert Dispatcher(TASK, (A,), 0, Leaf(0)).predicted_latency_s({"m": 3}) is None


def test_a_dispatch_table_has_the_contracts_fields() -> None:
    data = _dispatcher().to_json()
    assert data["format"] == FORMAT
    assert data["workload_key"] == TASK.workload.key
    assert (data["dims"], data["threads"], data["safe_kernel"]) == (["m"], 1, 0)
    assert data["bounds"] == {"m": [16, 2048]}
    assert data["shape_vars"] == {"T": {"min": 1, "max": 128}}
    assert data["kernels"][1] == kernel_json(B) == {"id": B.id, "name": "a=2", "kernel": B.to_json()}
    inner = {"dim": "m", "at_most": 160, "then": {"kernel": 1}, "else": {"kernel": 2}}
    upper = {"dim": "m", "at_most": 2048, "then": inner, "else": {"kernel": 0}}
    assert data["tree"] == {"dim": "m", "at_most": 15, "then": {"kernel": 0}, "else": upper}
    assert data["table"][1] == {
        "shape": {"T": 10},
        "kernel": 1,
        "predicted_latency_s": 8e-6,
        "measured_latency_s": 7e-6,
    }


@pytest.mark.parametrize("dim", ["k", "m%k", "m//0", "m**2", "m m", "len(m)", "", "m%" + "9" * 300, 5, None, ["m"]])
def test_what_is_no_feature_of_the_symbols_is_refused(dim: object) -> None:
    data = _dispatcher().to_json()
    node = {"dim": dim, "at_most": 1, "then": {"kernel": 0}, "else": {"kernel": 1}}
    with pytest.raises((ValueError, TypeError)):
        Dispatcher.from_json(data | {"tree": node})


def test_a_table_of_extents_alone_is_read() -> None:
    data = _dispatcher().to_json() | {"format": EXTENTS_FORMAT}
    assert Dispatcher.from_json(json.loads(json.dumps(data))) == _dispatcher()


def test_another_format_is_refused() -> None:
    with pytest.raises(ShapewrightError, match="format 99"):
        Dispatcher.from_json(_dispatcher().to_json() | {"format": 99})


# -- what earlier releases wrote --------------------------------------------------------------------------------------
def of_format_1(found: Dispatcher, axes: dict[str, str]) -> JsonObject:
    """The table as earlier releases wrote it: dims by the axes of the operator. ``axes``: by symbol."""

    def renamed(tree: JsonObject) -> JsonObject:
        if "kernel" in tree:
            return tree
        return {**tree, "dim": axes[tree["dim"]], "then": renamed(tree["then"]), "else": renamed(tree["else"])}

    data = found.to_json()
    del data["bounds"]
    return {**data, "format": 1, "dims": [axes[name] for name in data["dims"]], "tree": renamed(data["tree"])}


@pytest.mark.parametrize(
    ("op", "args", "axes"),
    [
        ("dense", {"m": "16*T", "n": "S", "k": 8}, {"m": "m", "n": "n"}),
        ("matmul", {"m": 8, "n": "S", "k": "T"}, {"n": "n", "k": "k"}),
        ("batch_matmul_nt", {"b": "T", "m": 8, "n": 8, "k": "S"}, {"m": "b", "a3": "k"}),
        ("batch_matmul_nn", {"b": 2, "m": "T", "n": "S", "k": "T"}, {"n": "m", "k": "n"}),
    ],
)
def test_a_table_by_axes_is_read_as_one_by_symbols(op: str, args: dict[str, object], axes: dict[str, str]) -> None:
    variables = (T, ShapeVar("S", range(1, 9)))
    task = SearchTask(op, args, variables)
    first, second = task.workload.symbols
    tree = bounded(Node(first, 40, Node(second, 4, Leaf(0), Leaf(1)), Leaf(2)), symbol_bounds(task), 0)
    result = Dispatcher(task, (A, B, C), 0, tree, (TableRow({"T": 1, "S": 1}, 0, 1e-6),))

    again = Dispatcher.from_json(json.loads(json.dumps(of_format_1(result, axes))))

    assert again == result


@pytest.mark.parametrize("op", ["dense", "batch_matmul_nt", "matmul"])
def test_a_table_of_release_0_1_serves_every_shape(op: str, tmp_path: Path) -> None:
    data = json.loads((library_of(RELEASE, op, tmp_path) / "dispatch.json").read_text())

    result = Dispatcher.from_json(data)

    assert data["format"] == 1
    names = result.task.workload.symbols
    assert names == (("n",) if op.startswith("batch") else ("m",))
    for row in result.table:
        dims = result.task.workload.dims(row.shape)
        assert is_within(dims, result.bounds)
        assert result.index_for(dims) == row.kernel
        assert result.predicted_latency_s(dims) == row.predicted_latency_s
    assert result.index_for(dict.fromkeys(names, 10**6)) == result.default_kernel
    assert Dispatcher.from_json(result.to_json()) == result
