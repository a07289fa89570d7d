"""The sizes of kernels' tiles, which dispatchers look at."""

from __future__ import annotations

import numpy as np
import pytest

from tests.contract.rule_samples import CUT_SAMPLES, sample_task
from tests.every_op import op_task
from tests.fakes import WIDE
from tuner.program.catalogue import OPS
from tuner.program.job.task import SearchTask
from tuner.program.language.dims import DimExpr, DimLike
from tuner.program.language.workload import ShapeVar
from tuner.schedule import default_kernel, rules_of, tiles_of
from tuner.schedule.cut.rule import Cut
from tuner.schedule.rules.conv import Conv
from tuner.schedule.serial import Serial

T, S = ShapeVar("T", range(1, 65)), ShapeVar("S", range(1, 65))
M, N = DimExpr.of("m"), DimExpr.of("n")


def task(op: str, args: dict[str, DimLike], threads: int = 1) -> SearchTask:
    return SearchTask(op, args, (T, S), target=WIDE, threads=threads)


def test_a_product_has_tiles_of_rows_and_of_columns_and_as_many_as_threads_take() -> None:
    of = task("matmul", {"m": 2 * T, "n": S, "k": 32}, threads=4)
    kernel = default_kernel(of)
    assert (kernel["mr"], kernel["nv"], kernel["tn"]) == (8, 3, 4)
    assert tiles_of(of, [kernel]) == {M: (8,), N: (16, 48, 192)}
    rule = next(rule for rule in rules_of(of) if isinstance(rule, Serial))
    alone = rule.default_kernel(of)
    assert tiles_of(of, [alone]) == {M: (8,), N: (16, 48)}
    assert tiles_of(of, [kernel, alone]) == {M: (8,), N: (16, 48, 192)}


def test_extents_that_do_not_change_have_no_tiles() -> None:
    of = SearchTask("dense", {"m": T, "n": 96, "k": 32}, (T,), target=WIDE)
    assert list(tiles_of(of, [default_kernel(of)])) == [M]


def test_rows_of_several_axes_are_tiled_together() -> None:
    of = SearchTask("conv2d", {"b": T, "c": 8, "h": 9, "w": 9, "o": 8, "r": 3, "s": 3}, (T,), target=WIDE)
    rng, space = np.random.default_rng(0), Conv().space(of)
    joined = next(kernel for kernel in (space.sample(rng) for _ in range(100)) if kernel["join"])
    (symbol,) = of.workload.symbols
    (extent,) = tiles_of(of, [joined])
    # The rows of a convolution are batches times positions, of which there are 7 x 7.
    assert extent == 49 * DimExpr.var(symbol)
    assert joined["mr"] in tiles_of(of, [joined])[extent] or joined["mr"] == 1


@pytest.mark.parametrize("op", sorted(OPS))
def test_every_rule_says_what_its_tiles_are(op: str) -> None:
    of = op_task(op, WIDE, threads=2)
    for rule in rules_of(of):
        tiles = tiles_of(of, [rule.default_kernel(of)])
        assert set().union(*(extent.variables for extent in tiles)) <= set(of.workload.symbols), rule.name
        assert all(list(sizes) == sorted(set(sizes)) and min(sizes, default=2) > 1 for sizes in tiles.values())


def test_a_program_in_pieces_has_the_tiles_of_all_pieces() -> None:
    of = sample_task(next(iter(CUT_SAMPLES.values())), WIDE, 1)
    cut = next(rule for rule in rules_of(of) if isinstance(rule, Cut))
    kernel = cut.default_kernel(of)
    together = tiles_of(of, [kernel])
    for number, _, own in cut.each(of):
        for extent, sizes in tiles_of(own, [cut.of_piece(kernel, number)]).items():
            assert set(sizes) <= set(together[extent])
