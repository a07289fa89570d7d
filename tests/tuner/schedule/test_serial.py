"""In the space of a task for several threads there are kernels for one: dispatched where waking others takes longer."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiled import assembly, built_problems
from tests.contract.rule_samples import CUT_SAMPLES, SAMPLES, sample_task
from tuner.errors import IllegalKernel
from tuner.measure.verification.ragged import ragged_dims
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import Target, native
from tuner.schedule import extents_of, is_current, rule_of, rules_of, space_of
from tuner.schedule.described import explained
from tuner.schedule.rule import TirRule
from tuner.schedule.serial import Serial
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import PairCostModel
from tuner.search.policy.theory import TheorySettings, theory_set

TARGET = Target.from_json({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 4})


def dense(threads: int, target: Target = TARGET, size: int = 64) -> SearchTask:
    rows = ShapeVar("T", range(1, 257))
    return SearchTask("dense", {"m": "T", "n": size, "k": size}, (rows,), [1, 16, 256], target=target, threads=threads)


def test_only_a_task_for_several_threads_has_them() -> None:
    assert [rule.name for rule in rules_of(dense(1))] == ["x86_contraction"]
    assert [rule.name for rule in rules_of(dense(2))] == ["x86_contraction", "serial:x86_contraction"]
    cut = sample_task(CUT_SAMPLES["softmax"], TARGET, 2)
    several, one = rules_of(cut)
    assert one.name == f"serial:{several.name}"


def test_they_are_what_a_task_for_one_thread_has() -> None:
    two, one = dense(2), dense(1)
    (own,), (_, serial) = rules_of(one), rules_of(two)
    kernels = [own.space(one).sample(np.random.default_rng(seed)) for seed in range(5)]
    named = [MicroKernel(serial.name, serial.version, kernel.values) for kernel in kernels]
    assert all(serial.space(two).kernel(dict(kernel.values)) == kernel for kernel in named)
    extents = extents_of(two.workload, two.shapes(8))
    assert np.array_equal(serial.estimate_s(two, named, extents), own.estimate_s(one, kernels, extents))
    assert np.array_equal(serial.features(two, named, extents), own.features(one, kernels, extents))
    assert serial.layouts(two, named[0]) == own.layouts(one, kernels[0])


def test_theory_takes_one_thread_for_a_few_rows_and_all_for_many() -> None:
    task = dense(4)
    model, settings = PairCostModel(task), TheorySettings(samples=500)
    chosen = theory_set(task, space_of(task), model, np.random.default_rng(0), settings)
    few, many = (chosen[int(model.predict(chosen, [{"T": rows}]).latency_s.argmin())] for rows in (1, 256))
    assert (few.rule, many.rule) == ("serial:x86_contraction", "x86_contraction")


def test_they_start_no_threads() -> None:
    task = dense(2, native())
    forks = [assembly(task, rule.default_kernel(task)).count("TVMBackendParallelLaunch") for rule in rules_of(task)]
    assert forks[0] > 0
    assert forks[1] == 0


@pytest.mark.parametrize("name", ["x86_contraction", "row_reduction"])
def test_they_are_right(name: str) -> None:
    task = sample_task(next(iter(SAMPLES[name].values())), native(), 2)
    rule = next(rule for rule in rules_of(task) if rule.name == f"serial:{name}")
    assert built_problems(task, rule.default_kernel(task), ragged_dims(task.workload)) == []


def test_records_name_them() -> None:
    task = dense(2)
    serial = rules_of(task)[1]
    kernel = MicroKernel.from_json(serial.default_kernel(task).to_json())
    parallel = rules_of(task)[0]
    assert isinstance(parallel, TirRule)
    assert rule_of(kernel) == serial == Serial(parallel)
    assert is_current(kernel)
    assert explained(task)["rules"][1]["why"].endswith("; on one thread")
    for unknown in ("serial:", "serial:unknown", "serial:serial:x86_contraction"):
        with pytest.raises(IllegalKernel):
            rule_of(MicroKernel(unknown, 1, ()))
