"""From a search's knowledge to a library: the set, the dispatcher, and where it is verified."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.fakes import RATES, TASK, WIDE, measured
from tests.searching import small_models
from tuner.library.build import build_library
from tuner.library.dispatcher import Dispatcher, Leaf, Node, choose
from tuner.library.fitting import chosen
from tuner.library.package import KERNELS, check_files, kernel_scripts
from tuner.program.job.budget_plan import reference_work
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar
from tuner.schedule import default_kernel, layout_group, rule_of, rules_of, space_of
from tuner.schedule.serial import Serial
from tuner.schedule.space import MicroKernel
from tuner.search import finalize
from tuner.search.cost_model import PairCostModel
from tuner.search.finalize import choose_set, make_dispatcher
from tuner.search.observations import Measured, latency_table
from tuner.search.stopping import Cancelled
from tuner.search.verification import VERIFY_WORK, verified_at


def alone(task: SearchTask) -> Dispatcher:
    """A dispatcher to one kernel."""
    return Dispatcher(task, (default_kernel(task),), 0, Leaf(0))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_models(monkeypatch)


def known(count: int) -> tuple[PairCostModel, Measured, list[MicroKernel]]:
    """A model and the results of some kernels on every instance."""
    rng, space = np.random.default_rng(0), space_of(TASK)
    kernels = list(dict.fromkeys(space.sample(rng) for _ in range(count)))
    results = [result for kernel in kernels for result in measured(TASK, kernel, *TASK.instances)]
    model = PairCostModel(TASK)
    model.update(results)
    return model, Measured(results), kernels


def test_the_set_shares_a_layout_and_serves_better_than_its_first_kernel_alone() -> None:
    model, results, kernels = known(20)
    chosen = choose_set(TASK, model, results, kernels, 3)
    (alone,) = choose_set(TASK, model, results, kernels, 1)
    assert 1 <= len(chosen) <= 3
    assert len({layout_group(TASK, kernel) for kernel in chosen}) == 1

    def cost(result: list[MicroKernel]) -> float:
        times = [[results.latency_s(kernel, i.values) or np.inf for kernel in result] for i in TASK.instances]
        return float(np.min(times, axis=1).sum())

    assert cost(chosen) <= cost([alone]) * 1.02


ONE_DIM = SearchTask("dense", {"m": ShapeVar("T", range(1, 513)), "n": 768, "k": 768}, (ShapeVar("T", range(1, 513)),),
                     target=WIDE).at_rates(RATES)  # fmt: skip
M, N = ShapeVar("M", range(1, 193)), ShapeVar("N", range(1, 193))
TWO_DIMS = SearchTask("dense", {"m": M, "n": N, "k": 768}, (M, N), target=WIDE, threads=2)
Q, R = ShapeVar("Q", range(1, 97)), ShapeVar("R", range(1, 97))
ATTENTION = SearchTask("attention", {"b": 1, "h": 12, "i": Q, "j": R, "d": 64}, (Q, R), target=WIDE)
ROWS = {"kc": 0, "ku": 1, "fetch": 0, "pack": 0, "rows": 0, "tail": 1, "tb": 1, "tn": 1}
SETS = {
    "one dim": (ONE_DIM, [
        {**ROWS, "mr": mr, "nv": 2, "mb": mb, "nb": nb, "near": near, "ahead": ahead, "edge": 0}
        for mr, mb, nb, near, ahead in ((14, 64, 8, 16, 32), (14, 256, 1, 8, 8), (12, 256, 1, 8, 8), (9, 6, 16, 0, 1),
                                        (7, 16, 2, 0, 1))
    ]),
    "two dims": (TWO_DIMS, [
        {**ROWS, "mr": mr, "nv": 3, "mb": mb, "nb": nb, "near": 0, "ahead": ahead, "edge": 1}
        for mr, mb, nb, ahead in ((8, 2, 2, 2), (9, 4, 8, 4), (9, 1, 1, 4), (1, 64, 16, 1))
    ]),
    "attention": (ATTENTION, [
        {"cols": 0, "ev": ev, "ku": 1, "mr": mr, "nv": nv, "pack": pack, "rows": rows, "tail": tail}
        for ev, mr, nv, pack, rows, tail in ((2, 10, 2, 1, 16, 1), (4, 1, 1, 0, 2, 0), (2, 12, 1, 1, 16, 1),
                                             (4, 4, 3, 1, 8, 1))
    ]),
}  # fmt: skip
"""Sets as theory chooses them, written out; the last kernel of that of two dims is for one thread."""


def two_kernels() -> tuple[SearchTask, list[MicroKernel]]:
    """For two dims in a range of which there is a point for each step of what fits a dispatcher."""
    _, values = SETS["two dims"]
    m, n = ShapeVar("M", range(1, 97)), ShapeVar("N", range(1, 97))
    task = SearchTask("dense", {"m": m, "n": n, "k": 768}, (m, n), target=WIDE, threads=2)
    space = rule_of(default_kernel(task)).space(task)
    return task, [space.kernel({**each, "tail": int(each["mr"] > 1)}) for each in values[:2]]


def test_a_dispatcher_is_fitted_to_as_many_shapes_as_there_is_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    task, kernels = two_kernels()
    fitted, every = list[int](), len(task.shapes(10**6))

    def fit(dims: Sequence[str], points: NDArray[np.int64], *_: object) -> Leaf:
        fitted.append(len(points))
        return Leaf(0)

    monkeypatch.setattr(finalize, "fit", fit)
    for left_s in (0.0, math.inf):
        make_dispatcher(task, PairCostModel(task), Measured(), kernels, partial(float, left_s))
    assert fitted == [len(task.shapes()), every]
    assert fitted[0] < every


def test_a_small_range_is_predicted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    task, values = SETS["one dim"]
    kernel = rule_of(default_kernel(task)).space(task).kernel(values[0])
    asked = list[int]()

    def counted(*given: Any) -> Any:
        asked.append(len(given[-1]))
        return latency_table(*given)

    monkeypatch.setattr(finalize, "latency_table", counted)
    make_dispatcher(task, PairCostModel(task), Measured(), [kernel])
    assert asked == [len(task.shapes())] == [512]


class Seconds:
    """A clock that goes on by a second whenever it is asked, from so many that are left."""

    def __init__(self, left_s: float) -> None:
        self.left_s, self.asked = left_s, 0

    def __call__(self) -> float:
        self.asked += 1
        return self.left_s - self.asked


def test_a_dispatcher_that_takes_longer_than_expected_is_fitted_to_fewer_shapes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task, kernels = two_kernels()
    model, every = PairCostModel(task), len(task.shapes(10**6))
    # As if prediction had been quick, and each step of what follows takes a second.
    monkeypatch.setattr(finalize, "FITTED", 1e-6)
    few, many = (make_dispatcher(task, model, Measured(), kernels, partial(float, left_s)) for left_s in (0, math.inf))
    assert few.tree != many.tree
    clock = Seconds(2 + every / finalize.AT_ONCE + 5)
    assert make_dispatcher(task, model, Measured(), kernels, clock).tree == few.tree
    assert make_dispatcher(task, model, Measured(), kernels, Seconds(1e6)).tree == many.tree


@pytest.mark.parametrize("step", [1, 2, 3, 20])
def test_fitting_ends_where_the_search_is_to_stop(step: int) -> None:
    task, kernels = two_kernels()
    asked = itertools.count(1)

    def left_s() -> float:
        if next(asked) == step:
            raise Cancelled
        return math.inf

    with pytest.raises(Cancelled):
        make_dispatcher(task, PairCostModel(task), Measured(), kernels, left_s)
    assert next(asked) == step + 1


@pytest.mark.parametrize("name", SETS)
def test_regret_over_all_shapes_is_small_in_the_mean_and_at_worst(name: str) -> None:
    task, values = SETS[name]
    rule = rule_of(default_kernel(task))
    kernels = [rule.space(task).kernel({**each, "tail": int(each["mr"] > 1)}) for each in values]
    if name == "two dims":
        serial = next(rule for rule in rules_of(task) if isinstance(rule, Serial))
        kernels[-1] = serial.named(kernels[-1])
    model, shapes = PairCostModel(task), task.shapes(10**6)
    assert len(shapes) == np.prod([var.count for var in task.shape_vars])

    found = make_dispatcher(task, model, Measured(), kernels)

    points = np.array([list(task.workload.dims(shape).values()) for shape in shapes])
    latency_s = model.predict(kernels, shapes).latency_s
    served = latency_s[chosen(found.tree, task.workload.symbols, points), np.arange(len(shapes))]
    regret = served / latency_s.min(axis=0) - 1
    assert len(set(latency_s.argmin(axis=0).tolist())) > 2
    assert regret.mean() <= 0.01
    assert np.quantile(regret, 0.99) <= 0.04
    assert regret.max() <= 0.10


def test_a_dispatcher_covers_the_range_and_is_safe_beyond() -> None:
    model, results, kernels = known(20)
    chosen = choose_set(TASK, model, results, kernels, 4)
    result = make_dispatcher(TASK, model, results, chosen)
    assert result.kernels == tuple(chosen)
    assert [row.shape for row in result.table] == TASK.shapes()
    for instance in TASK.instances:
        (row,) = (row for row in result.table if row.shape == dict(instance.shape))
        assert row.measured_latency_s == results.latency_s(result.kernels[row.kernel], instance.values)
    assert result.kernel_for({"T": 129}) == result.kernel_for({"T": 0}) == result.kernels[result.default_kernel]


def test_a_library_is_compiled_and_packed() -> None:
    model, results, kernels = known(6)
    dispatcher = make_dispatcher(TASK, model, results, choose_set(TASK, model, results, kernels, 2))
    files = build_library(dispatcher, "job-9")
    scripts = kernel_scripts(files.files)
    assert set(scripts) == {kernel.id for kernel in dispatcher.kernels}
    assert all("@T.prim_func" in script and "T.handle" in script for script in scripts.values())
    assert build_library(dispatcher, "job-9").files[KERNELS] == files.files[KERNELS]
    assert check_files(files.files)["job_id"] == "job-9"
    assert files.files["library.so"].startswith(b"\x7fELF")


def test_verification_goes_past_the_largest_dim_even_where_it_shrinks_with_the_variable() -> None:
    t = ShapeVar("T", range(1, 101))
    for expr, most in ((2 * t, 200), (150 - t, 149)):
        task = SearchTask("dense", {"m": expr, "n": 8, "k": 8}, (t,), instances=[7], target=TASK.target)
        rows = [dims["m"] for dims in verified_at(alone(task)).all]
        assert {0, 1, 2, 7, most, most + 1, most + 13, task.workload.dims({"T": 7})["m"]} <= set(rows)
        assert len(rows) == len(set(rows))
        assert len(rows) > 40


def test_every_kernel_is_verified_however_much_work_that_is() -> None:
    t = ShapeVar("T", range(1, 1001))
    task = SearchTask("dense", {"m": 64 * t, "n": 4096, "k": 4096}, (t,), target=TASK.target)
    safe = default_kernel(task)
    tree = Node("m", 40_000, Leaf(0), Leaf(1))
    dims = verified_at(Dispatcher(task, (safe, safe), 0, tree)).all
    assert {choose(tree, point) for point in dims} == {0, 1}
    static = SearchTask("matmul", {"m": 4096, "n": 4096, "k": 4096}, target=TASK.target)
    assert verified_at(alone(static)).all == ({},)


def test_verification_stays_within_its_work() -> None:
    t = ShapeVar("T", range(1, 1001))
    task = SearchTask("dense", {"m": 64 * t, "n": 4096, "k": 4096}, (t,), target=TASK.target)
    dims = verified_at(alone(task)).all
    assert {"m": 1} in dims
    assert sum(reference_work(task.workload, row) for row in dims) <= VERIFY_WORK
