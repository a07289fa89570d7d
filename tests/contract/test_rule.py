"""What every ScheduleRule does, for the workloads that it takes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tuner.program.ops import OPS

from tuner.program.target import Target
from tuner.program.task import SearchTask
from tuner.program.workload import ShapeVar, Workload
from tuner.rules import RULES, ScheduleRule
from tuner.rules.layout import PanelLayout
from tuner.search.cost_model import extents_of

TARGETS = [Target.from_json({"kind": "llvm", "mcpu": mcpu, "num-cores": 4}) for mcpu in ("x86-64-v3", "sapphirerapids")]
T = ShapeVar("T", range(0, 65))


def _tasks(rule: ScheduleRule) -> list[SearchTask]:
    """A small task for each operator that the rule takes, target, and number of threads."""
    found = []
    for name, op in OPS.items():
        args = dict.fromkeys(op.args, 33) | {op.args[0]: T}
        if rule.refuses(Workload.of(name, args)) is None:
            found += [
                SearchTask(name, args, (T,), target=target, threads=threads) for target in TARGETS for threads in (1, 2)
            ]
    return found


CASES = [pytest.param(rule, task, id=f"{rule.name}-{task.workload.op}") for rule in RULES for task in _tasks(rule)]


def test_every_rule_takes_something_and_has_a_name_of_its_own() -> None:
    assert all(_tasks(rule) for rule in RULES)
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.version >= 1 for rule in RULES)


@pytest.mark.parametrize(("rule", "task"), CASES)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1))
def test_moves_of_the_space_are_legal_and_bear_the_rules_name(rule: ScheduleRule, task: SearchTask, seed: int) -> None:
    space, rng = rule.space(task), np.random.default_rng(seed)
    first, second = space.sample(rng), space.sample(rng)
    for kernel in (first, second, space.mutate(first, rng), space.crossover(first, second, rng)):
        assert space.kernel(dict(kernel.values)) == kernel
        assert (kernel.rule, kernel.rule_version) == (rule.name, rule.version)


@pytest.mark.parametrize(("rule", "task"), CASES)
def test_the_space_does_not_depend_on_the_instances(rule: ScheduleRule, task: SearchTask) -> None:
    narrow = ShapeVar("T", (3, 5))
    other = SearchTask(task.workload, shape_vars=(narrow,), instances=[5], target=task.target, threads=task.threads)
    spaces = rule.space(task), rule.space(other)
    assert spaces[0].axes == spaces[1].axes
    drawn = [[space.sample(np.random.default_rng(0)) for _ in range(20)] for space in spaces]
    assert drawn[0] == drawn[1]
    assert rule.safe_kernel(task) == rule.safe_kernel(other)


@pytest.mark.parametrize(("rule", "task"), CASES)
def test_the_safe_kernel_is_of_the_space(rule: ScheduleRule, task: SearchTask) -> None:
    kernel = rule.safe_kernel(task)
    assert rule.space(task).kernel(dict(kernel.values)) == kernel


@pytest.mark.parametrize(("rule", "task"), CASES)
def test_theory_and_features_answer_for_every_shape(rule: ScheduleRule, task: SearchTask) -> None:
    shapes = task.shapes()
    extents = extents_of(task.workload, shapes)
    kernels = [rule.space(task).sample(np.random.default_rng(seed)) for seed in range(20)]
    prior, features = rule.prior_latency_s(task, kernels, extents), rule.features(task, kernels, extents)
    assert prior.shape == features.shape[:2] == (len(kernels), len(shapes))
    assert np.isfinite(prior).all()
    assert (prior > 0).all()
    assert features.dtype == np.float32
    assert np.isfinite(features).all()
    # What is said of a pair does not depend on what else is asked.
    alone = extents_of(task.workload, shapes[7:8])
    assert rule.prior_latency_s(task, kernels[3:4], alone) == pytest.approx(prior[3:4, 7:8])
    assert rule.features(task, kernels[3:4], alone) == pytest.approx(features[3:4, 7:8])


@pytest.mark.parametrize(("rule", "task"), CASES)
def test_constant_operands_have_a_layout_and_others_have_none(rule: ScheduleRule, task: SearchTask) -> None:
    layout = rule.layout(task, rule.safe_kernel(task))
    if any(operand.constant for operand in task.workload.operands):
        assert layout is not None
        assert PanelLayout.from_json(layout.to_json()) == layout
    else:
        assert layout is None


@pytest.mark.parametrize(("rule", "task"), CASES[:2])
def test_the_code_takes_every_operand_and_dim(rule: ScheduleRule, task: SearchTask) -> None:
    function = rule.emit(task, rule.safe_kernel(task), "kernel_7")
    assert len(function.params) == len(task.workload.operands) + len(task.workload.dynamic_dims)
