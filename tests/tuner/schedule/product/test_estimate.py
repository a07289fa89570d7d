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


def of_state(cache: str, m: int = 4, rates: Rates = TYPICAL, op: str = "dense") -> float:
    """Seconds of the default kernel of a product whose right operand takes 9 MB."""
    dims, rows = {"m": "M", "n": 3072, "k": 768}, ShapeVar("M", range(1, 4097))
    here = SearchTask(op, dims, (rows,), (m,), target=TARGET, cache=cache).at_rates(rates)
    [rule] = (rule for rule in RULES if rule.name == "x86_contraction")
    return float(estimate_s(here, [rule.default_kernel(here)], extents_of(here.workload, [{"M": m}]))[0, 0])


def test_flushed_operands_come_from_memory() -> None:
    read_s = 3072 * 768 * 4 / TYPICAL.memory_bytes / TYPICAL.clock_hz
    warm, streamed, cold = (of_state(cache) for cache in ("warm", "streamed", "cold"))
    assert warm < read_s < streamed < cold
    # Hidden behind the arithmetic of many rows, but for a share.
    assert of_state("streamed", 2048) < 1.1 * of_state("warm", 2048)
    slow = replace(TYPICAL, memory_bytes=TYPICAL.memory_bytes / 4)
    assert of_state("streamed", rates=slow) > 3 * streamed
    assert of_state("warm", rates=slow) == warm


def test_what_is_new_at_each_call_is_streamed_as_it_is_warm() -> None:
    assert of_state("streamed", op="matmul") == of_state("warm", op="matmul") < of_state("cold", op="matmul")


def test_fewer_multiply_adds_in_a_cycle_take_longer() -> None:
    slow = replace(TYPICAL, multiply_adds=0.1)
    assert seconds(kernel_of(1), slow) > 5 * seconds(kernel_of(1), TYPICAL)
