"""The estimate of products: what a core was measured to issue, what comes from memory, and in how many streams."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar
from tuner.program.target import Target
from tuner.program.target.rates import TYPICAL, Rates
from tuner.schedule import RULES, estimate_s, extents_of
from tuner.schedule.product.axes import OF_VECTORS, WIDE
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


def of_new_columns(n: int, k: int, program: str = "w[k, n]", **values: int) -> float:
    """Seconds of one row times columns that are new at each call, by a kernel that reads them as they lie."""
    extents: dict[str, int | str] = {"m": "M", "n": n, "k": k}
    target = Target.from_json({"kind": "llvm", "mcpu": "znver4", "num-cores": 1})
    workload = workload_from_json({"program": f"y[m, n] = sum(k) x[m, k] * {program}", "extents": extents})
    here = SearchTask(workload, None, (ShapeVar("M", (1,)),), (1,), target=target)
    [rule] = (rule for rule in RULES if rule.name == "x86_contraction")
    tile = {"mr": 1, "nv": 6, "mb": 1, "pack": 0, "kc": 0, "rows": 0, "tail": 0}
    kernel = rule.space(here).legal(dict(rule.default_kernel(here).values) | tile | values)
    assert kernel is not None
    return float(estimate_s(here, [kernel], extents_of(here.workload, [{"M": 1}]))[0, 0])


def test_a_core_follows_the_rows_of_a_short_chunk_from_memory() -> None:
    assert of_new_columns(8192, 8192, kc=32) > 1.5 * of_new_columns(8192, 8192, kc=16)
    # From L3 there is little to follow, and a chunk costs.
    assert of_new_columns(1000, 1024, kc=16) > of_new_columns(1000, 1024, kc=128)


def test_rows_that_fall_on_the_same_sets_need_wide_tiles() -> None:
    narrow, wide = (of_new_columns(1024, 1024, nv=nv) / of_new_columns(1040, 1024, nv=nv) for nv in (1, 6))
    assert narrow > 1.2
    assert wide < 1.1


def test_packing_all_columns_at_once_writes_them_to_memory() -> None:
    by_block = of_new_columns(8192, 8192, "w[n, k]", pack=1, mb=256, kc=256)
    assert of_new_columns(8192, 8192, "w[n, k]", pack=2, mb=256, kc=256) > 1.3 * by_block
    assert by_block > of_new_columns(8192, 8192, "w[n, k]")


def of_constant(m: int, k: int = 768, **values: int) -> float:
    """Seconds of m rows times columns of a constant that comes from memory, in panels a vector wide."""
    rows = ShapeVar("M", range(1, 4097))
    here = SearchTask("dense", {"m": "M", "n": 3072, "k": k}, (rows,), (m,), target=TARGET, cache="streamed")
    [rule] = (rule for rule in RULES if rule.name == "x86_contraction")
    tile = {"mr": 12, "nv": 2, "mb": 64, "kc": 0, "ku": 1, "near": 0, "rows": 0, "tail": 1, "panel": OF_VECTORS}
    kernel = rule.space(here).legal(dict(rule.default_kernel(here).values) | tile | values)
    assert kernel is not None
    return float(estimate_s(here, [kernel], extents_of(here.workload, [{"M": m}]))[0, 0])


@pytest.mark.parametrize(("m", "ahead"), [(24, 2), (48, 4), (96, 8)])
def test_tiles_over_a_panel_of_a_constant_hide_the_next_one_if_they_prefetch_all_of_it(m: int, ahead: int) -> None:
    prefetched = of_constant(m, ahead=ahead)
    assert of_constant(m, ahead=0) > 1.1 * prefetched
    # A part of the panel, or panels that are not the next.
    assert of_constant(m, ahead=4 * ahead) > 1.05 * prefetched
    assert of_constant(m, ahead=ahead // 2) > 1.01 * prefetched


def test_one_tile_over_a_panel_hides_nothing_by_prefetching_the_next_one() -> None:
    prefetched = [of_constant(12, ahead=ahead) for ahead in (1, 2, 4, 8)]
    assert of_constant(12, ahead=0) < min(prefetched)
    assert prefetched == sorted(prefetched, reverse=True)


def test_panels_that_l2_does_not_hold_beside_the_current_one_are_prefetched_in_vain() -> None:
    assert of_constant(24, k=8192, nv=1, ahead=2) < of_constant(24, k=8192, nv=1, ahead=0)
    assert of_constant(24, k=8192, ahead=2) > of_constant(24, k=8192, ahead=0)


def test_rows_beyond_a_tile_wait_for_panels_that_were_not_prefetched() -> None:
    assert of_constant(8, mr=8, nv=3, ahead=0) < 0.95 * of_constant(8, mr=4, nv=6, ahead=0)


def of_few_rows(m: int, panel: int, rates: Rates = TYPICAL, cache: str = "streamed") -> float:
    """Seconds of one tile of m rows in bfloat16 over panels of one vector, or as wide as the tile."""
    dims, rows = {"m": "M", "n": 3072, "k": 768}, ShapeVar("M", range(1, 4097))
    here = SearchTask("dense", dims, (rows,), (m,), target=TARGET, cache=cache, dtype="bfloat16").at_rates(rates)
    [rule] = (rule for rule in RULES if rule.name == "x86_contraction")
    tile = {"mr": 8, "nv": 3, "mb": 64, "kc": 0, "ku": 1, "near": 0, "rows": 0, "tail": 1, "group": 2, "panel": panel}
    kernel = rule.space(here).legal(dict(rule.default_kernel(here).values) | tile)
    assert kernel is not None
    return float(estimate_s(here, [kernel], extents_of(here.workload, [{"M": m}]))[0, 0])


@pytest.mark.parametrize("m", [1, 4, 8])
def test_panels_as_wide_as_the_tile_are_one_stream_where_each_is_read_once(m: int) -> None:
    steady = replace(TYPICAL, steady=0.001)
    assert 1.05 * of_few_rows(m, WIDE, steady) < of_few_rows(m, OF_VECTORS, steady)
    # Where a core reads several streams faster than one, it does not.
    assert of_few_rows(m, WIDE, replace(TYPICAL, steady=0.5)) > 1.05 * of_few_rows(m, OF_VECTORS)


def test_a_stream_that_further_tiles_interrupt_is_not_steady() -> None:
    steady = replace(TYPICAL, steady=0.001)
    assert of_few_rows(64, WIDE, steady) > of_few_rows(64, OF_VECTORS, steady)
    assert of_few_rows(64, WIDE, steady) == of_few_rows(64, WIDE)
    assert of_few_rows(4, WIDE, steady, "warm") == of_few_rows(4, WIDE, cache="warm")
