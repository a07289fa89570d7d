"""Turns of the loop over k whose accumulators the compiler keeps on the stack are no part of the space."""

from __future__ import annotations

import re

import pytest

from tests.compiled import assembly, spills
from tests.fakes import V3, WIDE, T
from tuner.errors import IllegalKernel
from tuner.program.job.task import SearchTask
from tuner.program.target import Target
from tuner.schedule import space_of
from tuner.schedule.product.axes import OF_VECTORS
from tuner.schedule.space import MicroKernel, SearchSpace

VALUES = {
    "mr": 8, "nv": 3, "mb": 8, "kc": 0, "ku": 1, "near": 0, "ahead": 0, "fetch": 0, "rows": 0, "tail": 0, "edge": 0,
    "pack": 0, "tb": 1, "tn": 1, "panel": OF_VECTORS,
}  # fmt: skip


def dense(target: Target, threads: int = 1) -> SearchTask:
    return SearchTask("dense", {"m": T, "n": 192, "k": 64}, (T,), target=target, threads=threads)


def space(target: Target) -> SearchSpace:
    return next(each for each in space_of(dense(target)).spaces if each.rule == "x86_contraction")


@pytest.mark.parametrize(
    ("target", "mr", "nv", "ku", "ahead", "problem"),
    [
        (WIDE, 9, 3, 2, 0, "leaves 5 registers in turns of two steps"),
        (WIDE, 5, 5, 1, 2, "leaves 7 registers"),
        (WIDE, 14, 2, 2, 2, "leaves 4 registers"),
        (V3, 10, 1, 2, 0, "leaves 6 registers"),
        (WIDE, 14, 2, 4, 8, "ahead=8 ku=4 nv=2 spills accumulators: ahead=4 or 16"),
        (WIDE, 8, 2, 8, 16, "ahead=16 ku=8 nv=2"),
        (WIDE, 8, 3, 4, 8, "ahead=8 ku=4 nv=3 spills accumulators"),
    ],
)
def test_turns_that_spill_are_refused(target: Target, mr: int, nv: int, ku: int, ahead: int, problem: str) -> None:
    with pytest.raises(IllegalKernel, match=problem):
        space(target).kernel(VALUES | {"mr": mr, "nv": nv, "ku": ku, "ahead": ahead})


@pytest.mark.parametrize(
    ("mr", "nv", "ku", "ahead"), [(14, 2, 2, 0), (8, 3, 2, 2), (8, 3, 4, 16), (9, 3, 1, 0), (10, 2, 4, 16)]
)
def test_others_are_not(mr: int, nv: int, ku: int, ahead: int) -> None:
    assert space(WIDE).kernel(VALUES | {"mr": mr, "nv": nv, "ku": ku, "ahead": ahead})["ku"] == ku


@pytest.mark.parametrize(("mr", "nv", "ku", "ahead"), [(9, 3, 2, 0), (8, 3, 4, 8), (14, 2, 4, 8)])
def test_what_is_refused_does_spill(mr: int, nv: int, ku: int, ahead: int) -> None:
    values = VALUES | {"mr": mr, "nv": nv, "ku": ku, "ahead": ahead}
    refused = MicroKernel("x86_contraction", space(WIDE).rule_version, tuple(values.items()))
    assert spills(dense(WIDE), refused) >= mr * nv


@pytest.mark.parametrize(("mr", "nv", "ku", "ahead"), [(8, 3, 4, 16), (9, 3, 1, 0), (14, 2, 4, 0)])
def test_neighbours_keep_their_accumulators_in_registers(mr: int, nv: int, ku: int, ahead: int) -> None:
    kernel = space(WIDE).kernel(VALUES | {"mr": mr, "nv": nv, "ku": ku, "ahead": ahead})
    assert spills(dense(WIDE), kernel) < mr * nv


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("target", "mr", "nv", "ahead", "register", "alignment"),
    [(WIDE, 14, 2, 8, "zmm", 64), (V3, 10, 1, 0, "ymm", 32)],
)
def test_spilled_vectors_lie_within_cache_lines(
    target: Target, mr: int, nv: int, ahead: int, register: str, alignment: int, threads: int
) -> None:
    # Some accumulators of both are spilled; those of one of two threads in a function of its own.
    values = VALUES | {"mr": mr, "nv": nv, "ku": 2, "ahead": ahead, "tail": 1, "tn": threads}
    kernel = MicroKernel("x86_contraction", space(target).rule_version, tuple(values.items()))
    code = assembly(dense(target, threads), kernel)
    stores = re.findall(rf"\t(vmov\w+)\t%{register}\d+, -?\d*\(%rsp\)", code)
    assert stores and set(stores) == {"vmovaps"}
    assert f"\tandq\t$-{alignment}, %rsp" in code
