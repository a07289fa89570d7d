"""Panels that are packed ahead are one vector wide, so that kernels of any width read them: a library has them all. Or
they are as wide as the tile, where they come from memory as one stream."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.contract.rule_samples import SAMPLES, sample_task
from tests.contract.test_rule import RULE, TARGETS
from tuner.program.job.task import SearchTask
from tuner.program.target.rates import TYPICAL
from tuner.schedule import estimate_s, extents_of, layout_group
from tuner.schedule.product.axes import WIDE, packed_vectors
from tuner.schedule.space import MicroKernel

WITH_PANELS = [
    ("x86_contraction", "dense-epilogue"),
    ("x86_chain", "fixed"),
    ("x86_gathered", "conv2d-nhwc"),
    ("x86_quantized", "int4-groups"),
    ("x86_grouped", "moe_dense"),
]


@pytest.mark.parametrize(("name", "title"), WITH_PANELS)
def test_kernels_of_any_width_read_panels_of_one_vector(name: str, title: str) -> None:
    rule, task = RULE[name], sample_task(SAMPLES[name][title], TARGETS[1], 1)
    space, rng = rule.space(task), np.random.default_rng(0)
    kernels = [space.sample(rng) for _ in range(40)]
    forms = {choice: {layout_group(task, each) for each in some} for choice, some in _alike(kernels)}
    assert len({kernel["nv"] for kernel in kernels}) > 2
    assert {len(each) for each in forms.values()} == {1}


@pytest.mark.parametrize(("name", "title"), WITH_PANELS)
def test_a_kernel_may_have_wide_panels(name: str, title: str) -> None:
    rule, task = RULE[name], sample_task(SAMPLES[name][title], TARGETS[1], 1)
    space, default = rule.space(task), rule.default_kernel(task)
    stored = space.kernel(dict(default.values) | {"panel": WIDE})
    assert "panel" not in dict(stored.values)
    assert space.has_axes_of(stored)
    assert layout_group(task, stored) != layout_group(task, default)
    assert space.legal(space.values_of(stored)) == default


@pytest.mark.parametrize(("name", "title"), WITH_PANELS)
def test_wide_panels_are_drawn_of_plain_products_whose_constants_come_from_memory(name: str, title: str) -> None:
    given = sample_task(SAMPLES[name][title], TARGETS[1], 1)
    for cache in ("warm", "streamed", "cold"):
        task = SearchTask(given.workload, shape_vars=given.shape_vars, target=given.target, cache=cache)
        space, rng = RULE[name].space(task), np.random.default_rng(0)
        drawn = {packed_vectors(space.sample(rng)) for _ in range(40)}
        assert (len(drawn) > 1) is (name == "x86_contraction" and cache != "warm")


def test_theory_of_decoded_weights_knows_no_steady_stream() -> None:
    name, title = "x86_quantized", "int4-groups"
    given = sample_task(SAMPLES[name][title], TARGETS[1], 1)
    task = SearchTask(given.workload, shape_vars=given.shape_vars, target=given.target, cache="streamed")
    space, rng = RULE[name].space(task), np.random.default_rng(0)
    kernels, extents = [space.sample(rng) for _ in range(20)], extents_of(task.workload, task.shapes(4))
    one, other = (estimate_s(task.at_rates(replace(TYPICAL, steady=each)), kernels, extents) for each in (0.001, 0.5))
    assert (one == other).all()


def _alike(kernels: list[MicroKernel]) -> list[tuple[tuple[int, ...], list[MicroKernel]]]:
    """The kernels by their instruction, how axes are joined, and how wide panels are: these have packed forms of their
    own."""

    def choice(kernel: MicroKernel) -> tuple[int, ...]:
        return kernel.get("group"), kernel.get("join"), packed_vectors(kernel)

    return [(key, list(some)) for key, some in itertools.groupby(sorted(kernels, key=choice), choice)]
