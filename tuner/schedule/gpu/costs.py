"""What theory expects of attention, row-wise programs and other stages on a GPU: work by the tile of each kind."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tuner.program.language.dtypes import DTYPES
from tuner.program.language.expr import Expr, Read, axes_of, reads
from tuner.program.language.notation import Stage
from tuner.program.language.workload import Workload
from tuner.program.target.cuda import WARP, Gpu
from tuner.schedule.gpu.attention import MAX_KEPT, ROWS_OF_WARP, SHORT, AttentionTile
from tuner.schedule.gpu.plan import Choices, Found
from tuner.schedule.gpu.pricing import Dims, Priced, column, operand_bytes, operations, seconds_of, size_of
from tuner.schedule.gpu.stages import Blocks, is_unrolled
from tuner.schedule.gpu.theory import FMA_SHARE, OTHER_REGISTERS, TF32X3_SHARE
from tuner.schedule.gpu.work import (
    BYTES_PER_CYCLE,
    CACHED_SHARE,
    LINES_STORED,
    MAX_REGISTERS,
    STEP_S,
    TILES_STORED,
    Floats,
    Work,
    programs_at_once,
)
from tuner.schedule.rule import Extents
from tuner.schedule.rules.attention.visible import visible

EXPONENTS_PER_CYCLE = 16.0
"""Exponentials of an SM in a cycle: of a softmax the rest runs beside them."""
MIXED_SHARE, ATTENTION_HEAD_S = 0.5, 2.0e-6
"""Of the rate of tensor cores where scores are needed before anything is multiplied by them; what attention takes to
bring its rows, and to divide them in the end."""
CROSSING_S, LEAST_COLUMNS = 0.3e-6, 32
"""Of a step whose rows several warps share, which reduce them through shared memory; columns below which an instruction
waits for its rows. Not fitted: no such kernel was timed."""
LIVE, FEW_REGISTERS = 3.0, 24
"""Values of an element that elementwise code keeps at once, and registers of a thread beside those."""
REDUCED_BYTES = 1024
"""Shared memory of a reduction across warps."""


def _bytes(workload: Workload, reads: Iterable[Read]) -> float:
    """Bytes of an element of each of these."""
    return float(sum(DTYPES[workload.tensors[read.tensor].dtype].bytes for read in reads))


def _read_bytes(workload: Workload, bodies: Iterable[Expr]) -> float:
    """Bytes of all that is read at an element, but for what the program computes before."""
    found = dict.fromkeys(read for body in bodies for read in reads(body))
    return _bytes(workload, (read for read in found if read.tensor not in workload.program.stage))


def _stored_bytes(workload: Workload, stages: Iterable[Stage]) -> float:
    written = (stage.tensor for stage in stages if stage.tensor in workload.program.outputs)
    return float(sum(DTYPES[workload.tensors[name].dtype].bytes for name in written))


class Attention(Priced):
    """Attention with an online softmax."""

    kind = "attention"

    def __init__(self, found: Found) -> None:
        assert found.chain is not None
        self.workload, self.chain = found.workload, found.chain
        workload, chain = self.workload, self.chain
        self.d, self.e = (workload.sizes[chain.axis[name]].constant for name in "de")
        self.keeps_q = self.d is not None and self.d <= MAX_KEPT
        keys = {workload.tensors[read.tensor].dtype for read in (chain.q, chain.k)}
        self.multiplied = keys.pop() if len(keys) == 1 and keys <= set(SHORT) else "float32"
        values = workload.tensors[chain.v.tensor].dtype
        self.weighted = values if values in SHORT else "float32"
        self.mixings = 2.0 if found.splits_weights else 1.0

    @property
    def is_float32(self) -> bool:
        return "float32" in (self.multiplied, self.weighted)

    def depth(self, tile: AttentionTile) -> int:
        return max(16, 1 << (self.d - 1).bit_length()) if self.d is not None and self.keeps_q else tile.depth

    def width(self, tile: AttentionTile) -> int:
        return min(tile.values, max(16, 1 << (self.e - 1).bit_length())) if self.e is not None else tile.values

    def _flops_s(self, gpu: Gpu, dtype: str, tile: AttentionTile) -> float:
        """Of an SM."""
        if dtype == "float32" and tile.precision == "ieee":
            return gpu.fma_flops_s() * FMA_SHARE / gpu.sms
        share = MIXED_SHARE * (TF32X3_SHARE if dtype == "float32" and tile.precision == "tf32x3" else 1.0)
        return gpu.tensor_flops_s("tf32" if dtype == "float32" else dtype) * share / gpu.sms

    def _at_once(self, gpu: Gpu, tile: AttentionTile) -> int:
        depth, width, threads = self.depth(tile), self.width(tile), tile.num_warps * WARP
        keys, values = DTYPES[self.multiplied].bytes, DTYPES[self.weighted].bytes
        sums = tile.rows * (width + 2 * tile.columns) / threads
        shared = tile.columns * (depth * keys + width * values) * max(tile.num_stages, 1) + tile.rows * depth * keys
        return programs_at_once(gpu, tile.num_warps, int(sums) + OTHER_REGISTERS, int(shared))

    def seconds(
        self, gpu: Gpu, choices: Sequence[Choices], dims: Dims, extents: Extents, is_flushed: bool
    ) -> Floats:  # fmt: skip
        chain, tiles = self.chain, [each.attention for each in choices]
        i, j, e, d = (np.asarray(extents[chain.axis[name]], np.float64) for name in "ijed")
        batch = size_of((self.workload.sizes[chain.axis[name]] for name in chain.batch), dims)
        # Rows see about as many columns each where these begin later for later rows.
        is_window = any(not bound.is_upper for bound in chain.mask.bounds)
        keys, values = DTYPES[self.multiplied].bytes, DTYPES[self.weighted].bytes
        rows, columns = column(each.rows for each in tiles), column(each.columns for each in tiles)
        depth, width = column(map(self.depth, tiles)), column(map(self.width, tiles))
        summed = np.ceil(d / depth) * depth
        # What an instruction on tiles takes at least.
        padded = np.maximum(rows, min(gpu.architecture.matrix_rows, 64))
        multiplied = np.maximum(columns, LEAST_COLUMNS)
        scores_s = 2 * padded * multiplied * summed / column(self._flops_s(gpu, self.multiplied, t) for t in tiles)
        mixed_s = (
            2 * padded * multiplied * width * self.mixings / column(self._flops_s(gpu, self.weighted, t) for t in tiles)
        )
        softmax = rows * columns * (gpu.architecture.fma_lanes / EXPONENTS_PER_CYCLE)
        crossing = column(CROSSING_S * (each.num_warps * ROWS_OF_WARP > each.rows) for each in tiles)
        work = Work(
            programs=np.asarray(np.ceil(i / rows) * np.ceil(e / width) * batch),
            steps=np.asarray(np.ceil(visible(chain, extents) / columns)),
            step_s=scores_s + mixed_s + seconds_of(gpu, softmax),
            beside_s=STEP_S + crossing,
            loaded=columns * (summed * keys + width * values),
            stored=rows * width * _stored_bytes(self.workload, self.workload.program.stages),
            store_rate=TILES_STORED,
            distinct=np.asarray(operand_bytes(self.workload, dims)),
            at_once=column(self._at_once(gpu, tile) for tile in tiles),
            in_flight=column(max(each.num_stages - 1, 1) for each in tiles),
            rate=np.asarray(BYTES_PER_CYCLE),
            more_s=np.zeros(1),
            longest=None if is_window else np.asarray(np.ceil(j / columns)),
            head_s=ATTENTION_HEAD_S,
        )
        return work.seconds(gpu, is_flushed)

    def needs(self, choices: Choices, gpu: Gpu) -> str | None:
        return None if self._at_once(gpu, choices.attention) else "more registers or shared memory than there are"

    def tiles(self, choices: Choices) -> Mapping[tuple[str, ...], tuple[int, ...]]:
        tile = choices.attention
        return {(self.chain.axis["i"],): (tile.rows,), (self.chain.axis["j"],): (tile.columns,)}


class Elementwise(Priced):
    """What multiplies nothing on tensor cores: programs that read elements, compute with them on single lanes, and add
    them up across warps at most."""

    workload: Workload
    operations: float
    """At an element."""

    @abstractmethod
    def _held(self, choices: Choices) -> tuple[int, float]:
        """The warps of a program, and the elements that they have registers for."""

    def _registers(self, choices: Choices) -> int:
        warps, elements = self._held(choices)
        return FEW_REGISTERS + int(LIVE * elements / (warps * WARP))

    def needs(self, choices: Choices, gpu: Gpu) -> str | None:
        held = self._registers(choices)
        return f"{held} registers of a thread, of {MAX_REGISTERS}" if held > MAX_REGISTERS else None

    def _work(
        self, gpu: Gpu, choices: Sequence[Choices], dims: Dims, programs: Any, steps: Any, computed: Any, loaded: Any,
        stored: Any,
    ) -> Work:  # fmt: skip
        """``computed``: operations of a step; the rest as Work has it."""
        held = [(self._held(each)[0], self._registers(each), REDUCED_BYTES) for each in choices]
        return Work(
            programs=np.asarray(programs),
            steps=np.asarray(steps),
            step_s=np.asarray(seconds_of(gpu, computed)),
            beside_s=np.array(STEP_S),
            loaded=np.asarray(loaded),
            stored=np.asarray(stored),
            store_rate=LINES_STORED,
            distinct=np.asarray(operand_bytes(self.workload, dims)),
            at_once=column(programs_at_once(gpu, *each) for each in held),
            in_flight=np.ones(1),
            rate=np.asarray(BYTES_PER_CYCLE),
            more_s=np.zeros(1),
        )


class Rows(Elementwise):
    """Softmax, norms, row reductions."""

    kind = "rows"

    def __init__(self, found: Found) -> None:
        assert found.frame is not None
        self.workload, self.frame = found.workload, found.frame
        columns, stages = set(self.frame.columns), self.frame.stages
        self.count = math.prod(self.workload.sizes[part].constant or 0 for part in self._parts(self.frame.columns))
        self.read = _bytes(self.workload, (read for read in self.frame.input_reads if columns & axes_of(read)))
        whole = {*self.frame.rows, *columns}
        self.own = _bytes(self.workload, (read for read in self.frame.input_reads if whole <= axes_of(read)))
        """Of an element what no other row reads."""
        self.operations = sum(operations(stage.body) + bool(stage.reducer) for stage in stages)
        self.reductions = sum(bool(stage.reducer) for stage in stages)
        along = [stage for stage in stages if columns & set(stage.axes)]
        self.stored = _stored_bytes(self.workload, along)

    def _parts(self, axes: tuple[str, ...]) -> list[str]:
        return self.frame.parts_of(axes)

    def is_looped(self, choices: Choices) -> bool:
        """Whether a row may be longer than a tile."""
        return not 0 < self.count <= choices.rows.block

    def _held(self, choices: Choices) -> tuple[int, float]:
        return choices.rows.num_warps, choices.rows.rows * choices.rows.block

    def seconds(
        self, gpu: Gpu, choices: Sequence[Choices], dims: Dims, extents: Extents, is_flushed: bool
    ) -> Floats:  # fmt: skip
        sizes = self.workload.sizes
        count, rows = (
            size_of((sizes[part] for part in self._parts(axes)), dims) for axes in (self.frame.columns, self.frame.rows)
        )
        of, block = column(each.rows.rows for each in choices), column(each.rows.block for each in choices)
        passes = column(self.reductions + (self.stored > 0) if self.is_looped(each) else 1 for each in choices)
        turns = np.maximum(np.ceil(count / block), 1.0)
        work = self._work(
            gpu, choices, dims, np.ceil(rows / of), turns * passes, of * block * self.operations / passes,
            of * count / turns * self.read, of * count * self.stored,
        )  # fmt: skip
        again = self._read_again(gpu, work, count * self.own, rows, of, passes)
        return replace(work, distinct=work.distinct + again).seconds(gpu, is_flushed)

    def _read_again(self, gpu: Gpu, work: Work, row: Any, rows: Any, of: Floats, passes: Floats) -> Floats:
        """Bytes that later passes over rows of ``row`` bytes bring from memory, where L2 does not hold all operands:
        the larger a share of it the rows that are under way fill, the more of them is gone."""
        cached = CACHED_SHARE * gpu.l2_bytes
        under_way = np.minimum(work.at_once * gpu.sms * of, rows) * row
        missed = np.where(work.distinct > cached, np.minimum(under_way / cached, 1.0), 0.0)
        return np.asarray((passes - 1) * missed * rows * row)

    def tiles(self, choices: Choices) -> Mapping[tuple[str, ...], tuple[int, ...]]:
        found = {tuple(self._parts(self.frame.columns)): (choices.rows.block,)}
        return {**found, tuple(self._parts(self.frame.rows)): (choices.rows.rows,)} if self.frame.rows else found


class Stages(Elementwise):
    """Any other stage, with elementwise ones behind it."""

    kind = "stages"

    def __init__(self, found: Found) -> None:
        self.workload = found.workload
        self.first, *_ = stages = found.workload.program.stages
        self.is_reduction = bool(self.first.reducer)
        self.is_unrolled = self.is_reduction and is_unrolled(self.workload, self.first)
        self.read = _read_bytes(self.workload, (stage.body for stage in stages))
        self.stored = _stored_bytes(self.workload, stages)
        self.operations = 1.0 + sum(operations(stage.body) for stage in stages)

    def _reduced(self, blocks: Blocks) -> int:
        """Steps of a reduction that a program takes at once."""
        return blocks.reduced if self.is_reduction and not self.is_unrolled else 1

    def _held(self, choices: Choices) -> tuple[int, float]:
        blocks = choices.blocks
        # Of less than one for each thread every thread has one.
        return blocks.num_warps, max(blocks.outputs * self._reduced(blocks), blocks.num_warps * WARP)

    def seconds(
        self, gpu: Gpu, choices: Sequence[Choices], dims: Dims, extents: Extents, is_flushed: bool
    ) -> Floats:  # fmt: skip
        sizes, blocks = self.workload.sizes, [each.blocks for each in choices]
        points, volume = (
            size_of((sizes[axis] for axis in axes), dims) for axes in (self.first.axes, self.first.reduce_axes)
        )
        outputs = column(each.outputs for each in blocks)
        at_once = column(map(self._reduced, blocks))
        steps: Any = np.ceil(volume / at_once) if self.is_reduction else 1.0
        work = self._work(
            gpu, choices, dims, np.ceil(points / outputs), steps, outputs * at_once * self.operations,
            outputs * at_once * self.read, outputs * self.stored,
        )  # fmt: skip
        return work.seconds(gpu, is_flushed)

    def tiles(self, choices: Choices) -> Mapping[tuple[str, ...], tuple[int, ...]]:
        return {tuple(self.first.axes): (choices.blocks.outputs,)} if self.first.axes else {}
