"""What kernels cut a product into at shapes: words, shares of threads, blocks of rows, strips of panels, chunks of k,
and the bytes of each. The estimate (estimate.py) is computed of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tuner.program.job.task import SearchTask
from tuner.program.language.dtypes import DTYPES
from tuner.program.target import Hardware
from tuner.program.target.rates import Rates
from tuner.schedule.loops.estimates import Floats
from tuner.schedule.product.atom import Atom
from tuner.schedule.product.axes import FEW_ALONG_K
from tuner.schedule.product.product import Product
from tuner.schedule.rule import Extents
from tuner.schedule.space import DEFAULT_CHOICE, MicroKernel

REGISTER_BYTES = 4
"""A word once it is loaded, or packed at the call."""
BYTES = {"int4": 0.5, **{name: float(dtype.bytes) for name, dtype in DTYPES.items()}}
"""An element in memory. int4 is no dtype of tensors: two in a byte, x86_quantized."""


class Words:
    """What a step of k takes of the operands, by kernel ([kernels, 1]): bytes in memory as they lie, and operations
    that widen a vector of columns, or the word of a row, to what the instruction takes."""

    def __init__(self, product: Product, groups: Floats, hardware: Hardware, rates: Rates) -> None:
        atoms = product.atoms(hardware)
        # Of one instruction kernels have no axis to choose it by.
        chosen = np.searchsorted(list(atoms), groups) if len(atoms) > 1 else np.zeros((1, 1), np.int64)

        def of(value: Callable[[Atom], float]) -> Floats:
            return np.array([float(value(atom)) for atom in atoms.values()])[chosen]

        left, right = product.left.dtype, product.right.dtype
        self.group, self.operations = of(lambda atom: atom.group), of(lambda atom: atom.operations)
        # The time of each operation, in multiply-adds.
        self.issue = of(lambda atom: (rates.of_instruction(atom.name) or atom.operations) / atom.operations)
        # Of matrix units.
        self.is_unit = of(lambda atom: atom.unit is not None) > 0
        self.is_of_floats = of(lambda atom: atom.total == "float32") > 0
        self.rows, self.steps = of(lambda atom: atom.rows), of(lambda atom: atom.steps)
        self.columns = of(lambda atom: atom.unit.columns if atom.unit else 1)
        self.cycles = of(lambda atom: atom.unit_cycles(rates, hardware))
        self.left_bytes, self.right_bytes = (self.group * BYTES[dtype] for dtype in (left, right))
        self.left_widened = of(lambda atom: atom.widened.get(left, 0.0))
        self.right_widened = of(lambda atom: atom.widened.get(right, 0.0))


class Sizes:
    """The sizes for several kernels (rows) at several shapes (columns)."""

    def __init__(self, task: SearchTask, product: Product, kernels: Sequence[MicroKernel], extents: Extents) -> None:
        self.hardware = hardware = task.known_target.hardware
        self.task, self.product, self.rates = task, product, task.rates
        extents = product.by_role(extents)
        every = [dict(kernel.values) for kernel in kernels]
        # Axes that were added to rules with this theory: the other ones every kernel has.
        every = [{**dict.fromkeys(("nb", "group", "panel", "split_k"), DEFAULT_CHOICE), **each} for each in every]
        names = sorted(every[0])
        values = np.array([[each[name] for name in names] for each in every], np.float64)
        self.of = {name: values[:, index : index + 1] for index, name in enumerate(names)}
        self.mr, self.nv, self.ku = self.of["mr"], self.of["nv"], self.of["ku"]
        self.lanes, self.fma_per_cycle = hardware.lanes(), self.rates.fma_per_cycle(hardware)
        along_k = product.pack_of_dots
        self.by_dots = np.equal(self.of["pack"], -1 if along_k is None else along_k)
        self.nr = self.nv * np.where(self.by_dots, 1, self.lanes)
        self.m, self.n, self.k = (np.asarray(extents[axis], np.float64)[None, :] for axis in "mnk")
        self.words = Words(product, self.of["group"], hardware, self.rates)
        # In words from here on.
        self.depth = np.ceil(self.k / self.words.group)
        product.right.widen(self)
        self._cut_shares(extents)
        self._cut_blocks()

    def _cut_shares(self, extents: Extents) -> None:
        """The largest share of one thread."""
        across, columns, self.parts = self.of["tb"], self.of["tn"], self.of["split_k"]
        rows = self.task.threads / (across * columns * self.parts)
        self.k = np.where(self.parts > 1, np.ceil(self.depth / self.parts / self.lanes) * self.lanes, self.depth)
        self.products = np.asarray(extents["b"], np.float64)[None, :] if "b" in extents else np.ones_like(self.m)
        tiles = np.floor(self.m / self.mr)
        self.rest = self.m - tiles * self.mr
        self.tiles = np.ceil(tiles / rows)
        self.rows = np.minimum(self.tiles * self.mr + self.rest, self.m)
        self.panels = np.ceil(np.floor(self.n / self.nr) / columns)
        self.batch = self._products_of_a_share(across, columns)
        # Last columns that are computed along k, by themselves.
        self.few = np.where(self.of["edge"] == FEW_ALONG_K, self.n % self.lanes, 0.0)
        self.ragged = np.ceil((self.n - np.floor(self.n / self.nr) * self.nr - self.few) / self.lanes)
        if "n" in self.product.dynamic:
            exact = (self.of["edge"] > 0) | self.by_dots | (self.ragged == 0)
            self.ragged = np.where(exact, self.ragged, self.nv)
        self.columns = self.panels * self.nr + self.ragged * np.where(self.by_dots, self.nv, self.lanes) + self.few

    def _products_of_a_share(self, across: Floats, columns: Floats) -> Floats:
        """The products of a batch that the largest share has, the partial ones by their columns (Nest._batch)."""
        width = np.maximum(self.n / columns, 1)
        each = np.maximum(np.floor(width / self.nr + 0.5), 1)
        panels = np.ceil(self.products * each / across)
        rest = panels % each
        # The first share begins with whole panels, the last one ends with the ragged one.
        partial = np.maximum(rest * self.nr, width - (each - rest) * self.nr) / width
        return np.asarray(np.floor(panels / each) + np.where(rest > 0, partial, 0.0))

    def _cut_blocks(self) -> None:
        """How a share is cut to blocks, strips and chunks, and the bytes of each."""
        # Where vectors run along k, the rows of a tile go by all columns before the next ones.
        mb = np.where(self.by_dots, 1.0, self.of["mb"])
        self.blocks = np.maximum(np.ceil(self.tiles / mb), 1)
        # The tiles of a block that read a panel, that of the ragged rest among them.
        self.passes = np.maximum(np.minimum(self.tiles + (self.rest > 0), mb + 1), 1)
        # Of one tile, or one panel, the order of the loops makes no difference.
        several = np.minimum(self.passes, mb) > 1
        self.nb = np.where(several, np.minimum(self.of["nb"], np.maximum(self.panels, 1)), 1.0)
        self.strips = np.ceil(self.panels / self.nb)
        kc = np.where(self.of["kc"] > 0, self.of["kc"], np.inf)
        self.chunks = np.maximum(np.ceil(self.k / kc), 1)
        self.steps = self.k / self.chunks
        self.left_bytes = np.where(self.of["rows"] > 0, REGISTER_BYTES, self.words.left_bytes)
        # Elements are widened as they are packed.
        self.is_packed = (self.of["pack"] > 0) & ~self.by_dots
        self.right_bytes = np.where(self.is_packed, REGISTER_BYTES, self.words.right_bytes)
        self.panel_bytes = self.steps * self.nr * self.right_bytes
        self.strip_bytes = self.nb * self.panel_bytes
        self.tile_bytes = self.mr * self.steps * self.left_bytes
        self.block_bytes = np.minimum(self.tiles + 1, mb) * self.mr * self.steps * self.left_bytes
