"""What is measured of a CPU, and which rates it determines.

Kernels of matrix products at several sizes, drawn by seed, tell most of them. The multiply-adds and the other
instructions that a core issues, its nearest cache and its memory are measured by themselves (``Levels``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from tuner.calibration.kind import DeviceKind, Probe
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar
from tuner.program.target import Target
from tuner.program.target.calibration import MEMORY, STREAMS, Levels
from tuner.program.target.rates import TYPICAL, Rates
from tuner.schedule import Rule, estimate_s, extents_of, rules_of
from tuner.schedule.product import atoms
from tuner.schedule.product.rule import ProductRule
from tuner.schedule.space import MicroKernel

LAYERS = ((768, 768), (3072, 768), (768, 3072), (1024, 1024), (2304, 768))
"""(n, k) of layers of which some stay in L2 and some do not."""
ROWS = (1, 4, 16, 64, 256)
"""Few rows tell how a constant streams, many what the multiply-add units do."""
SQUARES = ("out[m, n] = sum(k) x[m, k] * w[k, n]", "out[m, n] = sum(k) x[m, k] * w[n, k]")
"""Products whose operands are all new at each call, and all of whose sizes are dynamic: what copying and transposing
panels at the call cost, and not to pack them."""
SIZES = (40, 127, 256, 448, 768)
TILES = (1024, 2048)
"""(n, k) of layers that are multiplied in the tiles of a matrix unit, where there is one: of the first instruction for
floats, and of that for bytes."""
GROUP = 128
"""Weights of four bits that share a scale: their sums leave the tiles for each."""
KERNELS = 9
"""Kernels that are measured of each product."""
RANDOM = 1 / 3
"""The share of kernels from all of the space. The others are from the half that theory expects to be faster: what is
fitted there tells apart what a search chooses among."""
DRAWN = 64
"""Random kernels of which the better half is taken by theory."""
MAX_DRAWN = 40 * DRAWN
"""Of which not all are in tiles, where these are measured."""
BATCH = 3
"""Kernels that are built and measured before the next product's: if time ends, it ends for all of them alike."""
RATED = ("x86_contraction", "x86_quantized")
"""The rules whose theory the rates are fitted for. The second one alone has its sums leave tiles in groups."""
FITTED = (
    "clock_hz", "fma_latency", "loads", "decode", "l2_bytes", "l3_bytes", "l2_exposed", "stream_exposed",
    "near_exposed", "ahead_exposed", "too_soon", "asked", "single", "tile", "turn", "store", "again", "fetched", "copy",
    "transpose", "call", "block", "fork",
)  # fmt: skip
"""What theory reads of rates for products of matrices."""
FITTED_TO_TILES = ("tile_rows", "drained")
"""What it reads beside these for products in tiles."""
MIN_STEADY = 1e-3
"""What one stream costs beyond several where it is as fast: rates are positive."""


def probes(target: Target, threads: int, seed: int = 0) -> Iterator[Probe]:
    """Batches in the order in which they are measured: one of each product, then a second one of each, and so on."""
    tasks = products(target, threads)
    drawn = [_kernels(task, np.random.default_rng([seed, number])) for number, task in enumerate(tasks)]
    for start in range(0, KERNELS, BATCH):
        for task, kernels in zip(tasks, drawn, strict=True):
            yield Probe(task, tuple(kernels[start : start + BATCH]))


def products(target: Target, threads: int) -> list[SearchTask]:
    """What is multiplied: those of new operands between the layers, so that a few batches hold both, and those in
    tiles last."""
    layers = [layer(n, k, target, threads) for n, k in LAYERS]
    squares = [square(text, target, threads) for text in SQUARES]
    return [*layers[:1], *squares, *layers[1:], *in_tiles(target, threads)]


def in_tiles(target: Target, threads: int) -> list[SearchTask]:
    """Layers of which the kernels in tiles are measured: of floats, of weights of four bits beside these, and of bytes.
    None where the target has no matrix unit."""
    n, k = TILES
    units = [atom for atom in atoms.ATOMS if atom.unit is not None and atom.is_on(target.hardware)]
    found: list[SearchTask] = []
    for total in ("float32", "int32"):
        for atom in [each for each in units if each.total == total][:1]:
            (left,), (right,) = atom.left, atom.right
            types = {"x": left, "w": right, "out": left if total == "float32" else total}
            found.append(_tiled("dense", {"n": n, "k": k}, types, target, threads))
            if left == "bfloat16":
                args = {"n": n, "k": k, "group": GROUP}
                found.append(_tiled("dense_int4", args, {"x": left, "out": left}, target, threads))
    return found


def is_in_tiles(task: SearchTask) -> bool:
    """Whether a product is one of which the kernels in tiles are measured."""
    return task in in_tiles(task.known_target, task.threads)


def _tiled(op: str, args: Mapping[str, int], dtype: Mapping[str, str], target: Target, threads: int) -> SearchTask:
    rows = ShapeVar("M", range(1, ROWS[-1] + 1))
    workload = workload_from_json({"op": op, "args": {"m": "M", **args}, "dtype": dict(dtype)})
    return SearchTask(workload, shape_vars=(rows,), instances=ROWS, target=target, threads=threads)


def square(text: str, target: Target, threads: int) -> SearchTask:
    """The product of that notation with m = n = k, at SIZES."""
    size = ShapeVar("S", range(1, SIZES[-1] + 1))
    workload = workload_from_json({"program": text, "extents": {"m": "S", "n": "S", "k": "S"}})
    return SearchTask(workload, shape_vars=(size,), instances=SIZES, target=target, threads=threads)


def layer(n: int, k: int, target: Target, threads: int) -> SearchTask:
    """``out[M, n] = x[M, k] . w[n, k]^T`` at ROWS."""
    rows = ShapeVar("M", range(1, ROWS[-1] + 1))
    return SearchTask("dense", {"m": "M", "n": n, "k": k}, (rows,), ROWS, target=target, threads=threads)


def _kernels(task: SearchTask, rng: np.random.Generator) -> list[MicroKernel]:
    """Kernels in random order: which are measured, if time ends, must not depend on what theory expects of them."""
    rule = next(rule for rule in rules_of(task) if rule.name in RATED)
    space, count = rule.space(task), round(KERNELS * RANDOM)
    units = _units(rule, task)
    drawn = (space.sample(rng) for _ in range(MAX_DRAWN))
    fitting = (kernel for kernel in drawn if not units or kernel.get("group") in units)
    pool = list(dict.fromkeys(islice(fitting, DRAWN)))
    chosen, rest = pool[:count], pool[count:]
    better = _ranked(task, rest)[: max(1, len(rest) // 2)]
    chosen += [better[index] for index in rng.permutation(len(better))[: KERNELS - count]]
    return [chosen[index] for index in rng.permutation(len(chosen))]


def _units(rule: Rule, task: SearchTask) -> frozenset[int]:
    """By depth the instructions of a matrix unit for a product. Of one that has any, only these are measured."""
    if not isinstance(rule, ProductRule):
        return frozenset()
    known = rule.product(task.workload).atoms(task.known_target.hardware)
    return frozenset(depth for depth, atom in known.items() if atom.unit is not None)


def _ranked(task: SearchTask, kernels: Sequence[MicroKernel]) -> list[MicroKernel]:
    """The best by theory first, by the mean logarithm over the row counts."""
    latency = estimate_s(task, kernels, extents_of(task.workload, [each.shape for each in task.instances]))
    return [kernels[index] for index in np.log(latency).mean(axis=1).argsort(kind="stable")]


def issuing(levels: Levels | None, target: Target, threads: int) -> Rates:
    """The typical rates, with what the core issues in a cycle where the device measured it."""
    if levels is None or levels.clock_hz is None:
        return TYPICAL
    hardware = target.hardware
    multiply_adds_per_s = levels.flops_per_s / (2 * hardware.lanes() * threads)
    issue = {name: multiply_adds_per_s / rate for name, rate in sorted(levels.issued_per_s.items())}
    share = multiply_adds_per_s / levels.clock_hz / hardware.fma_per_cycle
    return replace(TYPICAL, multiply_adds=share, issue=tuple(issue.items()))


def reading(rates: Rates, levels: Levels | None, threads: int) -> Rates:
    """Rates that products do not determine, but reading does."""
    read = _read(rates, levels, threads)
    return replace(rates, l1_bytes=read.l1_bytes, memory_bytes=read.memory_bytes, steady=read.steady)


def of_levels(levels: Levels, target: Target, threads: int) -> Rates:
    """The typical rates, with what the core issues and reads: of a device of which nothing else was measured."""
    if levels.clock_hz is None:
        return TYPICAL
    rates = replace(issuing(levels, target, threads), clock_hz=levels.clock_hz)
    return _read(rates, levels, threads)


def _read(rates: Rates, levels: Levels | None, threads: int) -> Rates:
    """``rates`` with those at which a core reads each level, in bytes per cycle, where that was measured."""
    found = {each.name: each.bytes_per_s / threads / rates.clock_hz for each in (levels.levels if levels else ())}
    return replace(
        rates,
        l1_bytes=found.get("L1", rates.l1_bytes),
        l2_bytes=found.get("L2", rates.l2_bytes),
        l3_bytes=found.get("L3", rates.l3_bytes),
        memory_bytes=found.get(MEMORY, rates.memory_bytes),
        steady=max(found[STREAMS] / found[MEMORY] - 1, MIN_STEADY) if STREAMS in found else rates.steady,
    )


CPU = DeviceKind(probes, FITTED, FITTED_TO_TILES, is_in_tiles, issuing, reading, of_levels)
