"""The rules together: which take a task, what they offer in common, and that every kernel stays with its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.fakes import TASK, V3
from tests.rival import Rival, registered
from tuner.errors import IllegalKernel, InvalidInput
from tuner.program.job.build import make_workload, workload_from_json
from tuner.program.job.task import SearchTask
from tuner.schedule import (
    RULES,
    NoMatch,
    by_rule,
    default_kernel,
    estimate_s,
    explain,
    extents_of,
    is_current,
    layout_group,
    layouts_of,
    rule_of,
    rules_for,
    rules_of,
    space_of,
)
from tuner.schedule.space import MicroKernel

SOFTMAX = make_workload("softmax", {"m": "T", "n": 16})


def names(rules: tuple[object, ...]) -> list[str]:
    return [str(getattr(rule, "name", rule)) for rule in rules]


def test_a_fallback_is_asked_only_where_no_other_rule_matches() -> None:
    assert names(rules_of(TASK)) == ["x86_contraction"]
    scan = workload_from_json({"program": "out[i] = prod(j) x[j, 2*i]", "extents": {"i": "T", "j": 4}})
    assert names(rules_for(scan, V3)) == ["fallback"]
    assert [rule.name for rule in RULES if rule.is_fallback] == ["fallback"]


def test_every_rule_says_what_it_thinks_of_a_workload() -> None:
    answers = explain(TASK.workload, V3)
    assert list(answers) == names(RULES)
    assert answers["x86_contraction"] == {"m": "m", "n": "n", "k": "k"}
    refused = explain(SOFTMAX, V3)["x86_contraction"]
    assert isinstance(refused, NoMatch)
    assert refused.reason


def test_a_target_of_no_rule_is_refused_with_every_reason() -> None:
    with pytest.raises(InvalidInput, match="no schedule rule takes softmax") as caught:
        rules_for(SOFTMAX, replace(V3, kind="metal"))
    assert caught.value.field == "workload"
    assert all(f"{rule.name}: " in caught.value.remedy for rule in RULES)


def test_two_rules_that_match_share_a_task() -> None:
    rival = Rival()
    with registered(rival):
        assert names(rules_of(TASK)) == ["rival", "x86_contraction"]
        # The preferred one's default is the library's.
        assert default_kernel(TASK) == rival.default_kernel(TASK)
        space = space_of(TASK)
        assert space.size == sum(rule.space(TASK).size for rule in rules_of(TASK))
        drawn = [space.sample(np.random.default_rng(seed)) for seed in range(40)]
        assert {kernel.rule for kernel in drawn} == {"rival", "x86_contraction"}
        assert all(rule_of(kernel).name == kernel.rule for kernel in drawn)
        assert all(is_current(kernel) for kernel in drawn)
    assert names(rules_of(TASK)) == ["x86_contraction"]


def test_each_kernel_is_judged_by_its_own_rule() -> None:
    rival = Rival()
    with registered(rival):
        space = space_of(TASK)
        kernels = [space.sample(np.random.default_rng(seed)) for seed in range(12)]
        extents = extents_of(TASK.workload, [instance.shape for instance in TASK.instances])
        together = estimate_s(TASK, kernels, extents)
        for rule, rows in by_rule(kernels):
            own = [kernels[row] for row in rows]
            assert {kernel.rule for kernel in own} == {rule.name}
            assert (together[rows] == rule.estimate_s(TASK, own, extents)).all()
        assert sorted(row for _, rows in by_rule(kernels) for row in rows) == list(range(12))
        packed = next(kernel for kernel in kernels if kernel.rule == "x86_contraction")
        plain = next(kernel for kernel in kernels if kernel.rule == "rival")
        assert set(layouts_of(TASK, packed)) == {"w"}
        assert layouts_of(TASK, plain) == {}
        assert layout_group(TASK, packed) != layout_group(TASK, plain) == ()


def test_a_kernel_of_no_rule_is_told_the_rules_that_there_are() -> None:
    stranger = MicroKernel("stranger", 1, ())
    with pytest.raises(IllegalKernel, match="rule 'stranger' is not known; this version has x86_contraction"):
        rule_of(stranger)
    assert not is_current(stranger)


def test_a_kernel_of_another_version_is_not_current() -> None:
    kernel = default_kernel(TASK)
    assert is_current(kernel)
    assert not is_current(replace(kernel, rule_version=kernel.rule_version - 1))


def test_a_workload_without_symbols_has_a_theory() -> None:
    task = SearchTask("dense", {"m": 3, "n": 16, "k": 8}, target=V3)
    assert estimate_s(task, [default_kernel(task)], extents_of(task.workload, [{}])).shape == (1, 1)
