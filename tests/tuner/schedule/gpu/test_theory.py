"""What theory expects of kernels on a GPU, against what an H200 and an H100 measured (docs/measurements)."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.gpu import times
from tests.tuner.schedule.gpu.timed import products, programs
from tests.tuner.schedule.gpu.timed.blocks import Block
from tests.tuner.schedule.gpu.timed.products import FLOAT16, FMA, TF32X3
from tuner.program.job.build import workload_from_json
from tuner.program.language.workload import Workload
from tuner.program.target.cuda import PRODUCTS
from tuner.schedule import extents_of
from tuner.schedule.gpu.axes import choices_of
from tuner.schedule.gpu.contraction import contractions
from tuner.schedule.gpu.plan import Choices
from tuner.schedule.gpu.program import program_of
from tuner.schedule.gpu.rows import RowTile
from tuner.schedule.gpu.theory import Problem, estimate_s, occupancy, problem_of
from tuner.schedule.gpu.tiling import Tiling
from tuner.schedule.space import MicroKernel

MEASURED = Path(__file__).parents[4] / "docs" / "measurements" / "h200-emitted.json.gz"


@cache
def runs() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress(MEASURED.read_bytes()))["runs"]
    return found


def measured(part: str) -> list[dict[str, Any]]:
    """The blocks of a part of the first run."""
    return [block for block in runs()[0]["blocks"] if block["part"] == part]


def problem(block: dict[str, Any], dtype: str, size: int) -> Problem:
    n, k = (int(number) for number in re.findall(r"[nk]=(\d+)", block["title"]))
    return Problem(block["symbols"][0], n, k, dtype, size)


@pytest.mark.parametrize(
    ("part", "kernels", "dtype", "size", "share"),
    [
        ("dense16", FLOAT16, "float16", 2, 1.05),
        ("dense32", TF32X3, "tf32", 4, 1.12),
        ("dense32", FMA, "float32", 4, 1.08),
    ],
    ids=["float16", "tf32x3", "fma"],
)
def test_theory_ranks_what_was_measured(
    part: str, kernels: dict[str, Choices], dtype: str, size: int, share: float
) -> None:
    """Its choice takes no more than ``share`` of the best on average, and the best is among its first five."""
    losses, among_five = [], []
    for block in measured(part):
        us = {name: value for name, value in times(block).items() if name in kernels}
        found = [estimate_s(PRODUCTS["h200"], kernels[name].product, [problem(block, dtype, size)])[0] for name in us]
        taken = np.array(list(us.values()))[np.argsort(found)]
        losses.append(taken[0] / taken.min())
        among_five.append(taken[:5].min() / taken.min())
    assert len(losses) == 64
    assert np.exp(np.mean(np.log(losses))) < share
    assert np.exp(np.mean(np.log(among_five))) < 1.01


PARTS: dict[str, tuple[Callable[[], Iterable[Block]], float]] = {
    "attention": (programs.attention, 1.15),
    "rows": (programs.rows, 1.08),
    "conv": (programs.convolutions, 1.06),
    "experts": (programs.experts, 1.11),
    "quantized": (programs.quantized, 1.15),
    "others": (programs.others, 1.20),
    "batched": (products.batched, 1.11),
    "large": (products.large, 1.10),
    "bfloat16": (products.bfloat16, 1.05),
}
"""By part of the measurements its blocks, and what theory's choice may take over the best, on average."""


def blocks_of(part: str) -> Iterator[tuple[Block, dict[str, float]]]:
    """The blocks of both runs, with the microseconds of each of their kernels."""
    known = {title_of(block): block for block in PARTS[part][0]()}
    for run in runs()[:2]:
        for each in run["blocks"]:
            block = known.get(each["title"])
            us = {} if block is None else {name: us for name, us in times(each).items() if name in block.kernels}
            if block is not None and len(us) > 1:
                yield block, us


def title_of(block: Block) -> str:
    shape = ",".join(f"{name}={value}" for name, value in block.shape.items())
    limit = " tf32" if block.limit == "tf32" else ""
    return f"{block.part} {block.workload} {block.workload.inputs[0].dtype} {shape}{limit}"


@pytest.mark.parametrize("part", PARTS)
def test_theory_chooses_well_among_all_kinds_of_programs(part: str) -> None:
    """Products are among what it was fitted to, the other programs are not."""
    losses = []
    for block, us in blocks_of(part):
        workload = block.workload
        extents = extents_of(workload, [block.shape])
        kernels = [block.kernels[name] for name in us]
        found = program_of(workload).seconds(PRODUCTS["h200"], kernels, extents, is_flushed=False)
        taken = np.array(list(us.values()))[np.argsort(np.sum(list(found.values()), axis=0)[:, 0])]
        losses.append(taken[0] / taken.min())
    assert len(losses) > 5
    assert np.exp(np.mean(np.log(losses))) < PARTS[part][1]


def kernels_timed(file: str) -> Iterator[tuple[Workload, NDArray[np.float64], NDArray[np.float64]]]:
    """For each workload and shape of a file what theory expects of kernels, and what a device timed."""
    for each in json.loads(gzip.decompress(MEASURED.with_name(file).read_bytes()))["workloads"]:
        workload = workload_from_json(each["workload"])
        by_dims: dict[str, dict[MicroKernel, list[float]]] = defaultdict(lambda: defaultdict(list))
        for values, dims, us in each["trials"]:
            kernel = MicroKernel("gpu", 1, tuple(zip(each["axes"], values, strict=True)))
            by_dims[json.dumps(dims)][kernel].append(us)
        for text, timed in by_dims.items():
            extents = {axis: np.array([size.evaluate(json.loads(text))]) for axis, size in workload.sizes.items()}
            choices = [choices_of(kernel, PRODUCTS["h100"]) for kernel in timed]
            found = program_of(workload).seconds(PRODUCTS["h100"], choices, extents, is_flushed=False)
            medians = np.array([np.median(readings) for readings in timed.values()])
            yield workload, np.sum(list(found.values()), axis=0)[:, 0], medians


@pytest.mark.parametrize(
    ("file", "share", "of_three"), [("trials", 1.08, 1.02), ("bundles", 1.09, 1.04), ("searched", 1.08, 1.04)]
)
def test_theory_ranks_what_an_h100_timed(file: str, share: float, of_three: float) -> None:
    """Products, whose kernels searches tried and bundles had, as a device times them; they were fitted to."""
    losses, first = [], []
    for workload, expected, timed in kernels_timed(f"h100-{file}.json.gz"):
        if program_of(workload).products and len(timed) > 1:
            taken = timed[np.argsort(expected)]
            losses.append(taken[0] / taken.min())
            first.append(taken[:3].min() / taken.min())
    assert len(losses) > 70
    assert np.exp(np.mean(np.log(losses))) < share
    assert np.exp(np.mean(np.log(first))) < of_three


def test_rows_that_are_read_again_cost_memory_where_l2_does_not_hold_them() -> None:
    """RMS norm of 512 MB: rows in a loop take longer than rows in one tile, which are read once."""
    workload = workload_from_json({"op": "rms_norm", "args": {"m": "T", "n": 4096}, "dtype": "float16"})
    kernels = [Choices(rows=RowTile(1, 4096, 4)), Choices(rows=RowTile(4, 1024, 4))]
    extents = extents_of(workload, [{"T": 65536}])
    whole, looped = program_of(workload).seconds(PRODUCTS["h100"], kernels, extents, is_flushed=False)["rows"][:, 0]
    assert 1.1 < looped / whole < 1.5


def test_the_precision_of_float32_is_nothing_to_other_dtypes() -> None:
    """A kernel has one, whether its program multiplies float32 or not."""
    gpu, tile = PRODUCTS["h100"], Tiling(128, 128, 64, descriptors=True)
    halves, floats = Problem(2048, 2304, 768, "float16", 2), Problem(2048, 2304, 768, "tf32", 4)
    split = replace(tile, precision="tf32x3")
    assert estimate_s(gpu, split, [halves])[0] == estimate_s(gpu, tile, [halves])[0]
    assert estimate_s(gpu, split, [floats])[0] > estimate_s(gpu, tile, [floats])[0]


def test_shares_of_k_cost_their_bytes() -> None:
    """What a second kernel reads of them, whose time passes that of the product where results are many."""
    gpu, tile = PRODUCTS["h100"], Tiling(64, 64, 64, descriptors=True)
    few, many = Problem(16, 768, 3072, "float16", 2), Problem(16384, 2304, 768, "float16", 2)
    whole, shared = (estimate_s(gpu, replace(tile, split_k=count), [few, many]) for count in (1, 8))
    assert shared[0] < 2 * whole[0]
    assert shared[1] > 2 * whole[1]


def test_what_does_not_fit_is_no_candidate() -> None:
    gpu, small = PRODUCTS["h100"], PRODUCTS["rtx4090"]
    wide = Tiling(256, 256, 128, num_warps=8, num_stages=5)
    assert occupancy(gpu, wide, 2) == 0
    assert np.isinf(estimate_s(gpu, wide, [Problem(1024, 1024, 1024, "float16", 2)])).all()
    assert np.isfinite(estimate_s(small, Tiling(64, 64, 32), [Problem(1024, 1024, 1024, "float16", 2)])).all()


def test_a_contraction_is_a_problem_of_its_groups() -> None:
    args = {"b": "T", "c": 64, "h": 28, "w": 28, "o": 32, "r": 3, "s": 3, "pad": 1, "layout": "nhwc"}
    workload = workload_from_json({"op": "conv2d", "args": args, "dtype": "float16"})
    (product,) = contractions(workload)
    assert problem_of(product, Tiling(), {"m": 2}) == Problem(2 * 28 * 28, 32, 9 * 64, "float16", 2)
