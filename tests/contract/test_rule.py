"""What every Rule does, for samples of the workloads that it takes (rule_samples)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiled import built_problems, shortest
from tests.contract.rule_samples import CUT_SAMPLES, RANGE, SAMPLES, sample_task
from tests.shares import shares
from tuner.measure.verification.inputs import random_inputs
from tuner.measure.verification.ragged import ragged_dims
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.language.workload import Workload
from tuner.program.target import Target, native
from tuner.schedule import RULES, NoMatch, Rule, TirRule, extents_of, layout_group, rule_of, rules_of
from tuner.schedule.layout import layout_from_json

TARGETS = [
    Target.from_json({"kind": "llvm", "mcpu": mcpu, "num-cores": 4})
    for mcpu in ("x86-64-v3", "sapphirerapids", "neoverse-n1")
]
WRITTEN = [rule for rule in RULES if isinstance(rule, TirRule)]
"""Those for CPUs; that for GPUs has samples of its own (tests/tuner/schedule/gpu)."""
RULE = {rule.name: rule for rule in WRITTEN}
CUT = "cut"
"""What programs in pieces are called here: each has a rule of its own."""


@dataclass(frozen=True)
class Asked:
    """A sample, for a target and so many threads. Only tests that run make a task of it."""

    name: str
    title: str
    target: Target
    threads: int

    @property
    def rule(self) -> Rule:
        return rules_of(self.task)[0] if self.name == CUT else RULE[self.name]

    @cached_property
    def task(self) -> SearchTask:
        return sample_task(EVERY[self.name][self.title], self.target, self.threads)


EVERY = {**SAMPLES, CUT: CUT_SAMPLES}
ALL = [(name, number, title) for name, samples in EVERY.items() for number, title in enumerate(samples)]
CASES = [
    pytest.param(
        Asked(name, title, target, threads),
        id=f"{name}-{title}-{target.mcpu}-{threads}",
        # Each sample for one of the targets: the samples of a rule are for all of them.
        marks=[] if (number + at) % len(TARGETS) == 0 else pytest.mark.soak,
    )
    for name, number, title in ALL
    for at, (target, threads) in enumerate(zip(TARGETS, (1, 4, 2), strict=True))
]
COMPILED = [
    pytest.param(
        Asked(name, title, native(), 1 + number // 2 % 2),
        number,
        id=f"{name}-{title}",
        # The code of all samples is among the golden, and the tests of each rule compile more of it.
        marks=pytest.mark.soak if number else [],
    )
    for name, number, title in ALL
]


def test_every_rule_has_samples_and_a_name_of_its_own() -> None:
    assert set(SAMPLES) == set(RULE)
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.version >= 1 for rule in RULES)
    assert RULES[-1].is_fallback


@pytest.mark.parametrize("case", CASES)
def test_every_axis_of_a_program_has_a_role(case: Asked) -> None:
    rule, task = case.rule, case.task
    roles = rule.match(task.workload, task.known_target)
    assert not isinstance(roles, NoMatch)
    assert set(roles) == set(task.workload.program.axes)
    assert all(roles.values())
    assert rule in rules_of(task) or rule.is_fallback


@cache
def sampled_workloads() -> list[Workload]:
    return [workload_from_json(sample) for samples in SAMPLES.values() for sample in samples.values()]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_program_that_is_not_taken_has_a_reason(rule: Rule) -> None:
    """Whatever the program and the target: a rule answers and does not raise."""
    targets = [*TARGETS, replace(TARGETS[0], kind="cuda")]
    answers = [rule.match(workload, target) for workload in sampled_workloads() for target in targets]
    refused = [answer for answer in answers if isinstance(answer, NoMatch)]
    assert len(refused) >= len(sampled_workloads())
    assert all(answer.reason for answer in refused)


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=3)
@given(seed=st.integers(0, 2**32 - 1))
def test_moves_of_the_space_are_legal_and_bear_the_rules_name(case: Asked, seed: int) -> None:
    rule, task = case.rule, case.task
    space, rng = rule.space(task), np.random.default_rng(seed)
    first, second = space.sample(rng), space.sample(rng)
    near = space.neighbours(first)
    for kernel in (first, second, space.mutate(first, rng), space.crossover(first, second, rng), *near):
        assert space.kernel(dict(kernel.values)) == kernel
        assert space.canonicalise(space.values_of(kernel)) == space.values_of(kernel)
        assert (kernel.rule, kernel.rule_version) == (rule.name, rule.version)
        assert rule_of(kernel) == rule
    assert first not in near


@pytest.mark.parametrize("case", CASES)
def test_the_space_does_not_depend_on_the_instances(case: Asked) -> None:
    rule, task = case.rule, case.task
    narrow = tuple(ShapeVar(var.name, (3, 5)) for var in task.shape_vars)
    other = SearchTask(task.workload, shape_vars=narrow, target=task.target, threads=task.threads)
    spaces = rule.space(task), rule.space(other)
    assert spaces[0].axes == spaces[1].axes
    drawn = [[space.sample(np.random.default_rng(0)) for _ in range(5)] for space in spaces]
    assert drawn[0] == drawn[1]
    assert rule.default_kernel(task) == rule.default_kernel(other)


@pytest.mark.parametrize("case", CASES)
def test_the_safe_kernel_is_of_the_space(case: Asked) -> None:
    rule, task = case.rule, case.task
    kernel = rule.default_kernel(task)
    assert rule.space(task).kernel(dict(kernel.values)) == kernel


@pytest.mark.parametrize("case", CASES)
def test_theory_and_features_answer_for_every_shape(case: Asked) -> None:
    rule, task = case.rule, case.task
    shapes = task.shapes(16)
    extents = extents_of(task.workload, shapes)
    kernels = [rule.space(task).sample(np.random.default_rng(seed)) for seed in range(8)]
    prior, features = rule.estimate_s(task, kernels, extents), rule.features(task, kernels, extents)
    assert prior.shape == features.shape[:2] == (len(kernels), len(shapes))
    assert np.isfinite(prior).all()
    assert (prior > 0).all()
    assert features.dtype == np.float32
    assert np.isfinite(features).all()
    both = rule.theory(task, kernels, extents)
    assert np.array_equal(both.latency_s, prior)
    assert np.array_equal(both.features(), features)
    # What is said of a pair does not depend on what else is asked.
    at = min(7, len(shapes) - 1)
    alone = extents_of(task.workload, shapes[at : at + 1])
    assert rule.estimate_s(task, kernels[3:4], alone) == pytest.approx(prior[3:4, at : at + 1])
    assert rule.features(task, kernels[3:4], alone) == pytest.approx(features[3:4, at : at + 1])


@pytest.mark.parametrize("case", CASES)
def test_shapes_without_elements_have_a_theory_too(case: Asked) -> None:
    rule, task = case.rule, case.task
    shapes = [{var.name: size for var in task.shape_vars} for size in (0, 1, 2)]
    # Of a window of an image, both empty, there is no size.
    least = next(shape for shape in shapes if min(task.workload.dims(shape).values(), default=0) >= 0)
    extents = extents_of(task.workload, [least])
    kernels = [rule.default_kernel(task)]
    prior = rule.estimate_s(task, kernels, extents)
    assert np.isfinite(prior).all()
    assert (prior > 0).all()
    assert np.isfinite(rule.features(task, kernels, extents)).all()


@pytest.mark.parametrize("name", SAMPLES)
def test_features_are_as_many_for_every_workload(name: str) -> None:
    lengths = defaultdict(list)
    for title, sample in SAMPLES[name].items():
        for threads in (1, 4):
            task = sample_task(sample, TARGETS[0], threads)
            extents = extents_of(task.workload, task.shapes(4))
            lengths[RULE[name].features(task, [RULE[name].default_kernel(task)], extents).shape[2]].append(title)
    assert len(lengths) == 1, dict(lengths)


@pytest.mark.parametrize("case", CASES)
def test_layouts_are_of_constants_and_pack_them(case: Asked) -> None:
    rule, task = case.rule, case.task
    kernel = rule.default_kernel(task)
    layouts = rule.layouts(task, kernel)
    assert set(layouts) <= set(task.workload.constants)
    assert hash(layout_group(task, kernel)) is not None
    dims = dict.fromkeys(task.workload.symbols, RANGE[4])
    arrays = dict(zip(task.workload.program.inputs, random_inputs(task.workload, dims), strict=True))
    for name, layout in layouts.items():
        packed = layout.pack(arrays[name])
        assert packed.shape == layout.packed_shape(arrays[name].shape)
        assert packed.dtype == arrays[name].dtype
        assert packed.flags.c_contiguous
        assert layout_from_json(layout.to_json()) == layout


@pytest.mark.parametrize("case", [*CASES[:1], *CASES[-3:]])
def test_the_code_takes_every_operand_and_symbol(case: Asked) -> None:
    rule, task = case.rule, case.task
    function = rule.emit(task, rule.default_kernel(task), "kernel_7")
    assert len(function.params) == len(task.workload.operands) + len(task.workload.symbols)


@pytest.mark.parametrize(("case", "number"), COMPILED)
@shares(3)
def test_the_code_computes_what_the_reference_does(share: int, case: Asked, number: int) -> None:
    """`make test` compiles the safe kernel of each rule's first sample; kernels that are drawn are golden."""
    rule, task = case.rule, case.task
    if (number + share) % 2 == 0:
        kernel = rule.default_kernel(task)
    else:
        rng = np.random.default_rng(0)
        kernel = shortest(rule.space(task).sample(rng) for _ in range(1 if share else 6))
    assert built_problems(task, kernel, ragged_dims(task.workload)) == [], kernel
