"""What theory expects of contractions of any form: the engine's estimate, and what gathering and scattering
add."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.program.task import SearchTask
from tuner.schedule.loops.estimates import Floats
from tuner.schedule.product import estimate
from tuner.schedule.product.axes import IN_COPY, IN_IMAGE, atom_of
from tuner.schedule.product.match.factors import is_contiguous
from tuner.schedule.product.match.form import Form
from tuner.schedule.product.match.groups import form_of
from tuner.schedule.product.operands.columns import Columns
from tuner.schedule.product.operands.image import Image
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

    def of(whole: Form, some: Sequence[MicroKernel]) -> Floats:
        total = np.zeros(())
        for form in whole.each:
            base = estimate.latency_s(task, form.product, some, extents)
            total = total + base + _moving_cycles(task, form, some, extents) / task.rates.clock_hz
        return total

    return _by_form(task, kernels, of)


def features(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
    """[kernels, shapes, features]: those of every product, and the share of moving elements."""

    def of(form: Form, some: Sequence[MicroKernel]) -> Floats:
        base = estimate.features(task, form.product, some, extents)
        cycles = sum(_moving_cycles(task, own, some, extents) for own in form.each)
        moving = np.log2(cycles + 1.0)
        return np.concatenate([base, moving[:, :, None]], axis=2)

    return _by_form(task, kernels, of).astype(np.float32)


def _by_form(
    task: SearchTask, kernels: Sequence[MicroKernel], of: Callable[[Form, Sequence[MicroKernel]], Floats]
) -> Floats:  # fmt: skip
    """What ``of`` says of the kernels of each form, in the order of the kernels."""
    joins = np.array([kernel["join"] for kernel in kernels])
    own = [[kernel for kernel in kernels if kernel["join"] == join] for join in (0, 1)]
    answers = {join: of(form_of(task.workload, bool(join)), some) for join, some in enumerate(own) if some}
    result = np.empty((len(kernels), *next(iter(answers.values())).shape[1:]))
    for join, answer in answers.items():
        result[joins == join] = answer
    return result


def _moving_cycles(task: SearchTask, form: Form, kernels: Sequence[MicroKernel], extents: Extents) -> Floats:
    """[kernels, shapes] cycles that gathering and scattering take."""
    sizes = form.by_role(extents)
    one = np.ones((len(kernels), len(sizes["m"])))
    b, m, n, k = (sizes.get(role, 1) * one for role in "bmnk")
    mr = np.array([[float(kernel["mr"])] for kernel in kernels])
    mb = np.array([[float(kernel["mb"])] for kernel in kernels])
    cycles = np.zeros_like(m * n)
    blocks = np.maximum(np.ceil(m / (mr * mb)), 1.0)
    if form.left.is_gathered:
        in_image = np.array([[kernel["rows"] == IN_IMAGE] for kernel in kernels])
        # Words are copied as they are, in vectors of so many more elements.
        atoms = form.product.atoms(task.known_target.hardware)
        groups = np.array([[float(atom_of(kernel, atoms).group)] for kernel in kernels])
        gathered = b * m * k * (BY_VECTOR / groups if is_contiguous(form.left.factors, form.k[-1]) else BY_ELEMENT)
        if form.image is not None:
            copied = _copied(form, form.image, blocks, extents) * BY_VECTOR + b * m * STARTS
            gathered = np.where(in_image, copied, gathered)
        cycles += gathered
    if form.right.is_gathered:
        each = BY_VECTOR if is_contiguous(form.right.factors, form.parts[form.n[-1]].axis) else 4 * BY_VECTOR
        gathered = b * blocks * n * k * each
        if form.columns is not None:
            in_copy = np.array([[kernel["pack"] == IN_COPY] for kernel in kernels])
            tiles = np.maximum(np.ceil(m / mr), 1.0)
            copied = b * _lines_copied(task, form.columns, kernels, n) * BY_VECTOR + b * tiles * n * k * PICKED
            gathered = np.where(in_copy, copied, gathered)
        cycles += gathered
    if form.joined:
        cycles += b * m * n * SCATTERED
    return cycles / task.threads


def _copied(form: Form, image: Image, blocks: Floats, extents: Extents) -> Floats:
    """[kernels, shapes] elements of the copies of an image: each block has lines of its own, and all that its windows
    reach below the last one's first."""
    line = form.part_size(image.channel, extents).astype(np.float64)
    lines, below = np.ones_like(line), np.zeros_like(line)
    for dim in reversed((*image.rows, image.columns)):
        reach = np.zeros_like(line)
        if dim.window is not None:
            reach = (form.part_size(dim.window, extents).astype(np.float64) - 1.0) * dim.dilation
        extent = np.maximum((form.part_size(dim.place, extents) - 1.0) * dim.step + reach + 1.0, 1.0)
        if dim is image.columns:
            line = line * extent
        else:
            below = below + reach * lines
            lines = lines * extent
    return np.asarray(line * (lines + blocks * (below + 1.0)))


def _lines_copied(task: SearchTask, columns: Columns, kernels: Sequence[MicroKernel], n: Floats) -> Floats:
    """[kernels, shapes] elements of the copies of an image for the panels: each has what windows reach behind its last
    line, too."""
    hardware = task.known_target.hardware
    lanes = hardware.lanes()
    copies = np.ceil(n / np.array([[columns.most(kernel["nv"] * lanes, hardware)] for kernel in kernels]))
    line = columns.channels * np.ceil(columns.pitches[-1] / lanes) * lanes
    dense = n / columns.inner * np.prod(columns.pitches[:-1])
    return np.asarray(line * (dense + copies * columns.lines_below))
