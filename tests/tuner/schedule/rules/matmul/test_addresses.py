"""Rows that lie a dynamic distance apart: tiles whose addresses and vectors fit in registers, and no spills in them."""

from __future__ import annotations

import pytest

from tests.compiled import spills
from tests.fakes import V3, WIDE, T
from tuner.errors import IllegalKernel
from tuner.program.job.task import SearchTask
from tuner.program.target import Target
from tuner.schedule import space_of
from tuner.schedule.space import MicroKernel, SearchSpace

ARM = Target.from_json({"kind": "llvm", "mcpu": "neoverse-n1", "num-cores": 2})
VALUES = {
    "mr": 14, "nv": 2, "mb": 24, "kc": 0, "ku": 2, "near": 0, "ahead": 0, "fetch": 0, "rows": 0, "tail": 0, "edge": 0,
    "pack": 0, "tb": 1, "tn": 1,
}  # fmt: skip


def space(target: Target, k: object = T) -> SearchSpace:
    task = SearchTask("matmul", {"m": T, "n": T, "k": k}, (T,), target=target)
    return next(each for each in space_of(task).spaces if each.rule == "x86_contraction")


@pytest.mark.parametrize("change", [{}, {"mr": 12}, {"mr": 12, "ku": 4}, {"ku": 1, "pack": 2, "ahead": 4}])
def test_unrolled_steps_of_many_rows_are_refused_where_k_is_dynamic(change: dict[str, int]) -> None:
    with pytest.raises(IllegalKernel, match="rows a dynamic distance apart need turns of one step"):
        space(WIDE).kernel(VALUES | change)


@pytest.mark.parametrize("change", [{"ku": 1}, {"rows": 1}, {"mr": 10}, {"nv": 1}, {"mr": 6, "nv": 4}])
def test_others_are_not(change: dict[str, int]) -> None:
    assert space(WIDE).kernel(VALUES | change)["mr"] == (VALUES | change)["mr"]


def test_where_k_is_a_constant_rows_have_one_address() -> None:
    assert space(WIDE, 64).kernel(VALUES)["ku"] == 2


def test_aarch64_has_registers_for_all_addresses() -> None:
    assert space(ARM).kernel(VALUES)["ku"] == 2


def test_sixteen_vector_registers_are_the_limit_before_addresses_are() -> None:
    with pytest.raises(IllegalKernel, match="needs 31 vector registers, there are 16"):
        space(V3).kernel(VALUES)
    with pytest.raises(IllegalKernel, match="holds 25 vectors in a turn of 2 steps, limit 16"):
        space(V3).kernel(VALUES | {"mr": 12, "nv": 1})


@pytest.mark.parametrize(("mr", "nv", "ku"), [(14, 2, 1), (12, 2, 1), (10, 2, 4), (8, 3, 4), (6, 4, 8)])
def test_large_tiles_of_the_space_keep_their_accumulators_in_registers(mr: int, nv: int, ku: int) -> None:
    task = SearchTask("matmul", {"m": T, "n": T, "k": T}, (T,), target=WIDE)
    # One store each would be of a tile that is put down between two chunks of k.
    assert spills(task, space(WIDE).kernel(VALUES | {"mr": mr, "nv": nv, "ku": ku})) < mr * nv


def test_the_count_of_spills_sees_them() -> None:
    task = SearchTask("matmul", {"m": T, "n": T, "k": T}, (T,), target=WIDE)
    refused = MicroKernel("x86_contraction", space(WIDE).rule_version, tuple(VALUES.items()))
    assert spills(task, refused) > VALUES["mr"] * VALUES["nv"]
