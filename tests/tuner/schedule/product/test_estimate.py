"""The estimate of products takes what a core was measured to issue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar
from tuner.program.target import Target
from tuner.program.target.rates import TYPICAL, Rates
from tuner.schedule import RULES, estimate_s, extents_of
from tuner.schedule.space import MicroKernel

TARGET = Target.from_json({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 1})


def task(rates: Rates) -> SearchTask:
    rows, dims = ShapeVar("M", range(1, 4097)), {"m": "M", "n": 512, "k": 512}
    return SearchTask("dense", dims, (rows,), (4096,), target=TARGET, dtype="bfloat16").at_rates(rates)


def seconds(kernel: MicroKernel, rates: Rates) -> float:
    here = task(rates)
    return float(estimate_s(here, [kernel], extents_of(here.workload, [{"M": 4096}]))[0, 0])


def kernel_of(group: int) -> MicroKernel:
    """A kernel whose time is that of its instructions."""
    [rule] = (rule for rule in RULES if rule.name == "x86_contraction")
    here = task(TYPICAL)
    kernel = rule.space(here).legal(dict(rule.default_kernel(here).values) | {"group": group})
    assert kernel is not None
    assert kernel["group"] == group
    return kernel


@pytest.mark.parametrize(("group", "name"), [(2, "dpbf16ps"), (32, "tdpbf16ps")])
def test_a_slower_instruction_takes_longer_and_leaves_the_others_alone(group: int, name: str) -> None:
    slow = replace(TYPICAL, issue=((name, 400.0),))
    assert seconds(kernel_of(group), slow) > 5 * seconds(kernel_of(group), TYPICAL)
    assert seconds(kernel_of(1), slow) == seconds(kernel_of(1), TYPICAL)


def test_fewer_multiply_adds_in_a_cycle_take_longer() -> None:
    slow = replace(TYPICAL, multiply_adds=0.1)
    assert seconds(kernel_of(1), slow) > 5 * seconds(kernel_of(1), TYPICAL)
