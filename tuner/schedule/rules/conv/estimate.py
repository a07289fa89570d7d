"""What theory expects of contractions of any form: the engine's estimate, and what gathering and scattering
add."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.program.task import SearchTask
from tuner.schedule.access import Dim
from tuner.schedule.loops.estimates import Floats
from tuner.schedule.product import estimate
from tuner.schedule.product.axes import IN_COPY, IN_IMAGE, atom_of
from tuner.schedule.product.match.factors import is_contiguous
from tuner.schedule.product.match.form import Form
from tuner.schedule.product.match.groups import form_of
from tuner.schedule.product.operands.columns import Columns
from tuner.schedule.product.operands.image import Image
from tuner.schedule.product.rule import by_choice
from tuner.schedule.rule import Extents
from tuner.schedule.space import MicroKernel

# Cycles, on one core of a Zen 4 server unless said otherwise.
BY_VECTOR, BY_ELEMENT = 0.3, 4.0
"""Of an element that is gathered in vectors, or alone."""
SCATTERED = 0.5
"""Of an element of the results that goes through a buffer."""
STARTS = 1.2
"""Of a row of which it is noted where its window starts; measured on one Zen 5 core."""
PICKED = 0.02
"""Of an element that is picked from two vectors of a copy, for each tile. A guess."""


def latency_s(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> Floats:
    """[kernels, shapes] seconds."""

    def of(join: int, some: Sequence[MicroKernel]) -> Floats:
        total = np.zeros(())
        for form in form_of(task.workload, bool(join)).each:
            base = estimate.latency_s(task, form.product, some, extents)
            total = total + base + _moving_cycles(task, form, some, extents) / task.rates.clock_hz
        return total

    return by_choice("join", kernels, of)


def features(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
    """[kernels, shapes, features]: those of every product, and the share of moving elements."""

    def of(join: int, some: Sequence[MicroKernel]) -> Floats:
        form = form_of(task.workload, bool(join))
        base = estimate.features(task, form.product, some, extents)
        moving = np.log2(sum(_moving_cycles(task, own, some, extents) for own in form.each) + 1.0)
        return np.concatenate([base, moving[:, :, None]], axis=2)

    return by_choice("join", kernels, of).astype(np.float32)


def _moving_cycles(task: SearchTask, form: Form, kernels: Sequence[MicroKernel], extents: Extents) -> Floats:
    """[kernels, shapes] cycles that gathering and scattering take."""

    def values(name: str) -> Floats:
        return np.array([[float(kernel[name])] for kernel in kernels])

    sizes, hardware = form.by_role(extents), task.known_target.hardware
    one = np.ones((len(kernels), len(sizes["m"])))
    b, m, n, k = (sizes.get(role, 1) * one for role in "bmnk")
    mr, cycles = values("mr"), np.zeros_like(one)
    blocks = np.maximum(np.ceil(m / (mr * values("mb"))), 1.0)
    if form.left.is_gathered:
        # Words are copied as they are, in vectors of so many more elements.
        atoms = form.product.atoms(hardware)
        groups = np.array([[float(atom_of(kernel, atoms).group)] for kernel in kernels])
        gathered = b * m * k * (BY_VECTOR / groups if is_contiguous(form.left.factors, form.k[-1]) else BY_ELEMENT)
        if form.image is not None:
            copied = _copied(form, form.image, blocks, extents) * BY_VECTOR + b * m * STARTS
            gathered = np.where(values("rows") == IN_IMAGE, copied, gathered)
        cycles += gathered
    if form.right.is_gathered:
        each = BY_VECTOR if is_contiguous(form.right.factors, form.parts[form.n[-1]].axis) else 4 * BY_VECTOR
        gathered = b * blocks * n * k * each
        if form.columns is not None:
            lanes = hardware.lanes()
            most = np.array([[form.columns.most(kernel["nv"] * lanes, hardware)] for kernel in kernels])
            picked = b * np.maximum(np.ceil(m / mr), 1.0) * n * k * PICKED
            copied = b * _lines_copied(form.columns, np.ceil(n / most), n, lanes) * BY_VECTOR + picked
            gathered = np.where(values("pack") == IN_COPY, copied, gathered)
        cycles += gathered
    if form.joined:
        cycles += b * m * n * SCATTERED
    return cycles / task.threads


def _copied(form: Form, image: Image, blocks: Floats, extents: Extents) -> Floats:
    """[kernels, shapes] elements of the copies of an image: each block has lines of its own, and all that its windows
    reach below the last one's first."""

    def size(name: str) -> Floats:
        return form.part_size(name, extents).astype(np.float64)

    def reach(dim: Dim) -> Floats | float:
        return 0.0 if dim.window is None else (size(dim.window) - 1.0) * dim.dilation

    def touched(dim: Dim) -> Floats:
        return np.maximum((size(dim.place) - 1.0) * dim.step + reach(dim) + 1.0, 1.0)

    lines, below = np.ones(()), np.zeros(())
    for dim in reversed(image.rows):
        below = below + reach(dim) * lines
        lines = lines * touched(dim)
    return np.asarray(size(image.channel) * touched(image.columns) * (lines + blocks * (below + 1.0)))


def _lines_copied(columns: Columns, copies: Floats, n: Floats, lanes: int) -> Floats:
    """[kernels, shapes] elements of the copies of an image for the panels: each has what windows reach behind its last
    line, too."""
    line = columns.channels * np.ceil(columns.pitches[-1] / lanes) * lanes
    return np.asarray(line * (n / columns.inner * np.prod(columns.pitches[:-1]) + copies * columns.lines_below))
