"""What theory expects of products with computed weights: x86_contraction's estimate, but for the right operand.

Its bytes are those of the packed constants, scales included. What makes a vector of weights of them is done at every
step of every tile (``pack=0``), or once for a panel of a block (``pack=1``): tiles find float32 in cache then, and the
constants are read while the panel is unpacked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.program.dtypes import DTYPES
from tuner.program.expr import TRANSCENDENTAL, Axis, Call, Const, Expr, Extent, Read, walk
from tuner.program.task import SearchTask
from tuner.schedule.product import estimate
from tuner.schedule.product.estimate import BYTES, REGISTER_BYTES, Floats
from tuner.schedule.rule import Extents
from tuner.schedule.rules.quantized.codes import CODES
from tuner.schedule.rules.quantized.pattern import Quantized, outside, quantized_of
from tuner.schedule.space import MicroKernel

CODE, SHIFT = 3.0, 2.0
"""Operations of a vector of four-bit numbers, and what a shift by a number of steps takes beyond one by a constant."""
WIDENED = 2.0
"""Of a vector of elements that are not float32."""
BESIDE = 0.6
"""What such an operation takes of the multiply-add units: many cores have further ones for shifts, logic and sums."""


def latency_s(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> Floats:
    """[kernels, shapes] seconds."""
    found, hardware = quantized_of(task.workload), task.known_target.hardware
    return estimate.latency_s(hardware, task, kernels, extents, contraction=found, formula=_Formula)


def features(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
    """[kernels, shapes, features]: those of x86_contraction."""
    found, hardware = quantized_of(task.workload), task.known_target.hardware
    return estimate.features(hardware, task, kernels, extents, contraction=found, formula=_Formula)


class _Formula(estimate.Formula):
    """The estimate with weights that are unpacked."""

    contraction: Quantized

    def _words(self, groups: Floats) -> estimate.Words:
        words, found = super()._words(groups), self.contraction
        words.right_bytes = np.full((1, 1), _bytes(self.task, found))
        # Only where all steps of a word are one turn are the shifts constants.
        shift = np.where(self.ku < CODES, SHIFT, 0.0) if found.code else 0.0
        operations = np.full((1, 1), _operations(self.task, found, found.weight))
        if found.grouped:
            late, steps = self.of["late"] > 0, found.grouped.steps
            shared = _operations(self.task, found, found.grouped.shared) / steps
            each = _operations(self.task, found, found.grouped.each)
            operations = np.where(late, each + shared, operations)
            # Sums of a group begin at zero and are added to the totals.
            words.operations = words.operations * np.where(late, 1.0 + 2.0 / steps, 1.0)
        words.right_widened = np.where(self.of["pack"] > 0, 0.0, BESIDE * (operations + shift))
        return words

    def _stream(self) -> Floats:
        c, l2, unpacked = self.rates, self.hardware.l2_bytes, self.of["pack"] > 0
        in_place = super()._stream()
        # Every tile reads the panel again. What of it does not stay in L2 is beyond what a tile's own cycles are.
        spilled = np.clip(self.panel_bytes / (0.8 * l2) - 1.0, 0.0, 1.0)
        passes = self.tiles + (self.rest > 0)
        again = spilled * passes * self.columns * self.k * REGISTER_BYTES / c.l3_bytes
        left = self.rows * self.k * self.words.left_bytes / c.l3_bytes
        return np.where(unpacked, again + left, in_place)

    def _packing(self) -> Floats:
        c = self.rates
        elements = self.columns * self.k
        operations = (
            BESIDE * _operations(self.task, self.contraction, self.contraction.weight) / self.hardware.fma_per_cycle
        )
        unpacking = elements / self.lanes * (operations + self.lanes * REGISTER_BYTES / c.l2_bytes)
        size = elements * self.words.right_bytes
        reading = size / np.where(size < 0.8 * self.hardware.l2_bytes, c.l2_bytes, c.l3_bytes)
        panels = self.blocks * (np.maximum(unpacking, reading) + c.stream_exposed * np.minimum(unpacking, reading))
        left = np.where(self.of["rows"] > 0, self.rows * self.k * c.copy, 0.0)
        return np.asarray(np.where(self.of["pack"] > 0, panels, 0.0) + left)


def _bytes(task: SearchTask, found: Quantized) -> float:
    """Of the constants that make up one element of the weight."""
    size = BYTES["int4"] if found.code else 0.0
    return size + sum(DTYPES[task.workload.tensors[read.tensor].dtype].bytes / group for read, group in found.packed)


def _operations(task: SearchTask, found: Quantized, part: Expr) -> float:
    """Of making a vector of a part of the weight."""
    is_coded = found.code is not None and any(node == found.code.expr for node in walk(part))
    count = CODE if is_coded else 0.0
    for node in outside(part, found.code):
        if isinstance(node, Read):
            count += 0.0 if task.workload.tensors[node.tensor].dtype == "float32" else WIDENED
        elif not isinstance(node, Const | Axis | Extent):
            is_long = isinstance(node, Call) and node.function in TRANSCENDENTAL
            count += task.rates.function if is_long else 1.0
    return count
