"""What the theory of convolutions has beyond that of products: elements that are gathered, scattered or transposed, and
constants that come from memory without a prefetch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuner.program.job.task import SearchTask
from tuner.program.target import Hardware
from tuner.schedule.access import Dim
from tuner.schedule.loops.estimates import PAGE_BYTES, Floats, is_flushed
from tuner.schedule.product import estimate
from tuner.schedule.product.axes import IN_COPY, IN_IMAGE, TOTAL_BYTES, atom_of
from tuner.schedule.product.match.factors import is_contiguous
from tuner.schedule.product.match.form import Form
from tuner.schedule.product.match.groups import ONE
from tuner.schedule.product.operands.image import Image
from tuner.schedule.rule import Extents
from tuner.schedule.space import MicroKernel

# Cycles, on one core of a Zen 4 server unless said otherwise.
BY_VECTOR = 0.3
"""An element that is gathered in vectors; one alone takes ``estimate.GATHERED``."""
SCATTERED = 0.5
"""An element of the results that goes through a buffer."""
STARTS = 1.2
"""A row of which it is noted where its window starts; measured on one Zen 5 core."""
TURNED_LINE = 5.0
"""A vector of the results that tiles were transposed for; measured on a Xeon (family 6 model 207)."""
OTHER_PAGE, OTHER_PAGE_FROM_L3 = 3.0, 14.0
"""A step of k of a tile's rows that lies in another page than the step before, so that no hardware prefetcher follows:
for each panel, and once more where L2 does not hold the image. Measured on the same Xeon."""
PICKED = 1.5
"""A vector that is picked from two vectors of a copy, for each tile."""

SPILLED, SPILLED_EACH = 0.15, 0.03
"""The share of a step's multiply-adds that it costs where LLVM spills the broadcast elements of rows, and more for each
register that is missing. Of tiles of one to three vectors, for a convolution in groups and for one of three channels,
on a Zen 4."""


def moving_cycles(task: SearchTask, form: Form, kernels: Sequence[MicroKernel], extents: Extents) -> Floats:
    """[kernels, shapes] cycles that gathering and scattering take."""

    sizes, hardware = form.by_role(extents), task.known_target.hardware
    atoms, names = form.product.atoms(hardware), ("mr", "nv", "mb", "rows", "pack")
    mr, nv, mb, rows, pack = (np.array([[float(kernel[name])] for kernel in kernels]) for name in names)
    one = np.ones((len(kernels), len(sizes["m"])))
    b, m, n, k = (sizes.get(role, 1) * one for role in "bmnk")
    blocks, cycles = np.maximum(np.ceil(m / (mr * mb)), 1.0), np.zeros_like(one)
    if form.left.is_gathered:
        # Words are copied as they are, in vectors of so many more elements.
        groups = np.array([[float(atom_of(kernel, atoms).group)] for kernel in kernels])
        is_in_vectors = is_contiguous(form.left.factors, form.k[-1])
        gathered = b * m * k * (BY_VECTOR / groups if is_in_vectors else estimate.GATHERED)
        if form.image is not None:
            copied = _copied(form, form.image, blocks, extents) * BY_VECTOR + b * m * STARTS
            gathered = np.where(rows == IN_IMAGE, copied, gathered)
        cycles += gathered
    if form.right.is_gathered:
        each = BY_VECTOR if is_contiguous(form.right.factors, form.parts[form.n[-1]].axis) else 4 * BY_VECTOR
        gathered = b * blocks * n * k * each
        columns, lanes = form.columns, hardware.lanes()
        if columns is not None:
            most = np.array([[columns.most(kernel["nv"] * lanes, hardware)] for kernel in kernels])
            # Each copy has what windows reach behind its last line, too.
            lines = n / columns.inner * np.prod(columns.pitches[:-1]) + np.ceil(n / most) * columns.lines_below
            line = columns.channels * columns.phases * np.ceil(columns.pitches[-1] / lanes) * lanes
            vectors = 0.0 if columns.is_straight(lanes) else np.ceil(n / lanes) * k
            spilled = np.array([[_spilled(kernel, hardware)] for kernel in kernels])
            picked = b * np.maximum(np.ceil(m / mr), 1.0) * vectors * (PICKED + spilled)
            gathered = np.where(pack == IN_COPY, b * line * lines * BY_VECTOR + picked, gathered)
        cycles += gathered
    if form.joined:
        cycles += b * m * n * SCATTERED
    if form.left.is_packed_ahead and len(form.k) == sum(form.parts[name].extent == ONE for name in form.k) + 1:
        cycles += _rows_from_memory(task, kernels, m * k)
    if form.is_turned:
        tiles, lanes = np.ceil(m / mr), hardware.lanes()
        lines, panels = np.ceil(n / lanes) * lanes * np.ceil(mr / lanes), np.ceil(n / (nv * lanes))
        once = np.where(m * k * TOTAL_BYTES > hardware.l2_bytes / 2, OTHER_PAGE_FROM_L3, 0.0)
        steps = np.where(m * TOTAL_BYTES > PAGE_BYTES / 2, once + OTHER_PAGE * panels, 0.0)
        cycles += b * tiles * (lines * TURNED_LINE + k * steps)
    return cycles / task.threads


def _spilled(kernel: MicroKernel, hardware: Hardware) -> float:
    """Cycles that a step of k loses, beside vectors that are picked: LLVM broadcasts elements of rows several steps
    ahead and spills them, where each is used for several vectors. For one vector each is an operand in memory."""
    mr, nv = kernel["mr"], kernel["nv"]
    missing = mr * nv + 2 * nv + 1 + mr - hardware.vector_registers
    return (SPILLED + SPILLED_EACH * max(missing, 0)) * mr if nv > 1 else 0.0


def _rows_from_memory(task: SearchTask, kernels: Sequence[MicroKernel], elements: Floats) -> Floats:
    """[kernels, shapes] cycles of rows that come from memory. They are short streams: no prefetcher follows them, and
    ``near`` prefetches panels alone. Measured of windows of one element."""
    near = np.array([[kernel["near"] > 0] for kernel in kernels])
    if not is_flushed(task, is_constant=True):
        return np.zeros_like(elements)
    rates = task.rates
    return np.where(near, rates.stream_exposed - rates.near_exposed, 0.0) * elements * TOTAL_BYTES / rates.memory_bytes


def _copied(form: Form, image: Image, blocks: Floats, extents: Extents) -> Floats:
    """[kernels, shapes] elements of the copies of an image: a block's own lines, and what its windows reach below."""

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
