"""Threads that share a batch: of the first and the last product a share may have some of the panels."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiled import built_problems, shortest
from tests.contract.rule_samples import SAMPLES, sample_task
from tests.contract.test_rule import RULE
from tests.shares import chosen, every
from tests.tuner.schedule.product import test_amx
from tests.tuner.schedule.product.test_amx import unit  # noqa: F401
from tests.tuner.schedule.product.test_parts import hold_everywhere
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import Target, native
from tuner.schedule import Rule, estimate_s, extents_of, rules_of
from tuner.schedule.space import MicroKernel

SKYLAKE = Target.from_json({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 8})


def batched(name: str, title: str) -> bool:
    task = sample_task(SAMPLES[name][title], native(), 2)
    return any(axis.name == "tb" and 2 in axis.choices for axis in RULE[name].space(task).axes)


CASES = [(name, title) for name in ("x86_contraction", "x86_gathered") for title in SAMPLES[name]]
CASES = [case for case in CASES if batched(*case)]
QUICK = [("x86_contraction", "batch_matmul_nn"), ("x86_gathered", "conv2d")]


def kernels_that_share(rule: Rule, task: SearchTask, **values: int) -> list[MicroKernel]:
    """The shortest kernel of narrow panels, which are many, for each way to pack them."""
    space, random, found = rule.space(task), np.random.default_rng(0), dict[int, list[MicroKernel]]()
    for _ in range(4000):
        kernel = space.legal({**space.values_of(space.sample(random)), "nv": 1, "split_k": 1, **values})
        if kernel is not None and all(kernel.get(axis) == value for axis, value in values.items()):
            found.setdefault(kernel["pack"], []).append(kernel)
    return [shortest(kernels) for kernels in found.values()]


@pytest.mark.parametrize("threads", [2, pytest.param(4, marks=pytest.mark.soak)])
@pytest.mark.parametrize("case", chosen(QUICK, CASES), ids="-".join)
def test_every_share_of_a_batch_is_right(case: tuple[str, str], threads: int) -> None:
    name, title = case
    task = sample_task(SAMPLES[name][title], native(), threads)
    kernels = kernels_that_share(RULE[name], task, tb=2, tn=threads // 2)
    assert kernels
    for kernel in kernels:
        hold_everywhere(task, kernel)


@pytest.mark.usefixtures("unit")
@pytest.mark.parametrize("unit", ["emulated", "real"], indirect=True)
@pytest.mark.parametrize("name", every(2, ["batched", "batched, rows"]))
def test_shares_in_tiles_of_a_matrix_unit_are_right(name: str) -> None:
    """Two products are shared by four threads."""
    task = test_amx.task_of(name, threads=4)
    kernel = test_amx.blocked(task, tb=4, tn=1, nv=1)
    assert built_problems(task, kernel, [dict.fromkeys(task.workload.symbols, size) for size in (1, 17, 70)]) == []


def expected_s(columns: int) -> list[float]:
    """What theory expects of one to four products, in panels of 32 columns, that two threads share."""
    batch = ShapeVar("b", range(1, 9))
    args = {"b": "b", "m": 64, "n": columns, "k": 64}
    task = SearchTask("batch_matmul_nt", args, (batch,), target=SKYLAKE, threads=2)
    rule = rules_of(task)[0]
    plain = dict(rule.default_kernel(task).values)
    kernel = rule.space(task).legal({**plain, "mr": 8, "nv": 2, "tb": 2, "tn": 1})
    assert kernel is not None
    at = extents_of(task.workload, [{"b": size} for size in (1, 2, 3, 4)])
    return [float(each) for each in estimate_s(task, [kernel], at)[0]]


def test_an_odd_batch_is_shared_evenly() -> None:
    one, two, three, four = expected_s(256)
    assert one < 0.7 * two and three < 0.85 * four


def test_a_narrow_last_panel_is_no_share() -> None:
    """A thread that had it alone would read all rows for a few columns."""
    one, two, three, four = expected_s(33)
    assert one == two and three == four
