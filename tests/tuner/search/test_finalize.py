"""From a search's knowledge to a library: the set, the dispatcher, and where it is verified."""

from __future__ import annotations

import numpy as np

from tests.fakes import TASK, measured
from tuner.library.build import build_library
from tuner.library.dispatcher import Dispatcher, Leaf, Node, choose
from tuner.library.package import KERNELS, check_files, kernel_scripts
from tuner.program.job.budget_plan import reference_work
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar
from tuner.schedule import default_kernel, layout_group, space_of
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import PairCostModel
from tuner.search.finalize import choose_set, make_dispatcher
from tuner.search.observations import Measured
from tuner.search.verification import VERIFY_WORK, verified_at


def alone(task: SearchTask) -> Dispatcher:
    """A dispatcher to one kernel."""
    return Dispatcher(task, (default_kernel(task),), 0, Leaf(0))


def known(count: int) -> tuple[PairCostModel, Measured, list[MicroKernel]]:
    """A model and the results of some kernels on every instance."""
    rng, space = np.random.default_rng(0), space_of(TASK)
    kernels = list(dict.fromkeys(space.sample(rng) for _ in range(count)))
    results = [result for kernel in kernels for result in measured(TASK, kernel, *TASK.instances)]
    model = PairCostModel(TASK)
    model.update(results)
    return model, Measured(results), kernels


def test_the_set_shares_a_layout_and_serves_better_than_its_first_kernel_alone() -> None:
    model, results, kernels = known(40)
    chosen = choose_set(TASK, model, results, kernels, 3)
    (alone,) = choose_set(TASK, model, results, kernels, 1)
    assert 1 <= len(chosen) <= 3
    assert len({layout_group(TASK, kernel) for kernel in chosen}) == 1

    def cost(result: list[MicroKernel]) -> float:
        times = [[results.latency_s(kernel, i.values) or np.inf for kernel in result] for i in TASK.instances]
        return float(np.min(times, axis=1).sum())

    assert cost(chosen) <= cost([alone]) * 1.02


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
