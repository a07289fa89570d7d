"""What theory expects of products on a GPU: each contraction of a segment by the tiling that it is emitted with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tuner.program.language.dtypes import DTYPES
from tuner.program.language.expr import Expr, reads, walk
from tuner.program.target.cuda import Gpu
from tuner.schedule.access import stride
from tuner.schedule.gpu.contraction import Contraction
from tuner.schedule.gpu.module import Pack
from tuner.schedule.gpu.packing import packs_of
from tuner.schedule.gpu.plan import Choices, Found
from tuner.schedule.gpu.pricing import Dims, Priced, operations, size_of
from tuner.schedule.gpu.product import ProductEmitter
from tuner.schedule.gpu.theory import Multiplied, occupancy, work_of
from tuner.schedule.gpu.tiling import MIN_STEPS, Tiling, fitted, has_tensor_cores, multiplied_type, stored_type
from tuner.schedule.gpu.work import Floats
from tuner.schedule.rule import Extents
from tuner.schedule.rules.quantized.four_bits import CODE

ACROSS_BANKS = 0.25
"""Of the FMA rate that is left where neighbours along k are read as columns (docs/decisions/0069)."""
CONVERTED, ROUNDED, HALF_BYTE = 1.0, 3.0, 0.5
"""Operations of a conversion, and of rounding to TF32; bytes of a number of four bits."""
TURNED = 0.55
"""Of TF32's rate that is left where a side is turned over: instructions take words of four bytes along k alone."""
GROUPED_S = 3e-6
"""Of the kernel that sorts rows by group."""
Pair = tuple[float, float]


class Product:
    """A contraction, and what does not depend on shapes."""

    def __init__(self, product: Contraction) -> None:
        self.product = product
        self.has_tensor_cores = has_tensor_cores(product)
        self.is_float32 = self.has_tensor_cores and multiplied_type(product, has_dot=True) == "float32"
        self.packs: Mapping[str, tuple[Pack, ...]] = {
            pack: tuple(packs_of(product, Tiling(pack=pack))) for pack in ("nk", "kn")
        }
        self.has_descriptors = self._has_descriptors()
        self.fitted: Callable[[Tiling], tuple[Tiling, Multiplied]] = lru_cache(maxsize=65536)(self._fitted)
        self._sides: dict[tuple[bool, bool], tuple[str, Pair, Pair]] = {}

    def _has_descriptors(self) -> bool:
        """Whether the hardware may bring a side's tiles."""
        launches, _ = ProductEmitter(self.product, Tiling(descriptors=True), "kernel").launches()
        return any(launch.function.descriptors for launch in launches)

    def is_packed_anew(self, pack: str) -> bool:
        """Whether constants are laid out otherwise than they are by this pack."""
        return any(each.order != tuple(sorted(each.order)) for each in self.packs[pack])

    def _fitted(self, tiling: Tiling) -> tuple[Tiling, Multiplied]:
        """The tiling as it is emitted, and what it multiplies."""
        product, tiling = fitted(self.product, tiling)
        key = product is self.product, tiling.dot
        if key not in self._sides:
            self._sides[key] = self._sides_of(product, tiling.dot)
        dtype, stored, (left, right) = self._sides[key]
        has_cores = dtype == "float32" and tiling.dot and tiling.precision != "ieee"
        size, share = DTYPES[dtype].bytes, 1.0
        if dtype == "float32" and tiling.dot:
            is_kn = self._is_kn(tiling.pack)
            share = (TURNED if is_kn else 1.0) if has_cores else (1.0 if is_kn else ACROSS_BANKS)
        # Descriptors round on the way.
        is_rounded = has_cores and tiling.precision == "tf32" and not (tiling.descriptors and self.has_descriptors)
        rounded = ROUNDED if is_rounded else 0.0
        made = (left + rounded, right + rounded)
        return tiling, Multiplied("tf32" if has_cores else dtype, size, share, stored, made)

    def _sides_of(self, product: Contraction, has_dot: bool) -> tuple[str, Pair, Pair]:
        """The dtype that is multiplied; of either side the bytes of an element in memory, and what makes it one."""
        dtype, (left, right) = multiplied_type(product, has_dot), (product.left, product.right)

        def made(side: Expr) -> float:
            return operations(side) + CONVERTED * (stored_type(product, side) != dtype)

        return dtype, (self._stored(left), self._stored(right)), (made(left), made(right))

    def _stored(self, expr: Expr) -> float:
        """Bytes of an element of a side in memory."""
        tensors, code = self.product.tensors, self.product.code
        of_code = code is not None and CODE in walk(expr)
        every = [DTYPES[tensors[each.tensor].dtype].bytes for each in reads(expr) if each.tensor in tensors]
        return HALF_BYTE if of_code else float(max(every, default=1))

    def _is_kn(self, pack: str) -> bool:
        """Whether columns of the right side are neighbours in memory."""
        packed = self.packs.get(pack, ())
        if any(read.tensor == each.tensor for read in reads(self.product.right) for each in packed):
            return pack == "kn"
        inner = self.product.parts[self.product.n[-1]].axis if self.product.n else ""
        return any(stride(read, inner) == 1 for read in reads(self.product.right))

    def extents(self, dims: Dims) -> list[Any]:
        """[shapes] or numbers: m, n, k and the batch."""
        parts, product = self.product.parts, self.product
        groups = product.m, product.n, product.k, product.outer
        m, n, k, batch = (size_of((parts[name].extent for name in names), dims) for names in groups)
        # Rows by group are as many products of fewer rows, about.
        share = max(product.groups, 1) if product.index is not None else 1
        return [m / share, n, k, batch * share]

    def needs(self, tiling: Tiling, gpu: Gpu) -> str | None:
        tiling, what = self.fitted(tiling)
        if tiling.dot and min(tiling.block_m, tiling.block_n, tiling.block_k) < MIN_STEPS:
            return f"a tile of {tiling.block_m} x {tiling.block_n} x {tiling.block_k}, at least {MIN_STEPS} each"
        if not occupancy(gpu, tiling, what.size):
            return "more registers or shared memory than there are"
        return None


class Products(Priced):
    """One contraction, or the phases of a transposed convolution."""

    kind = "product"

    def __init__(self, found: Found) -> None:
        self.products = [Product(each) for each in found.contractions]

    def seconds(
        self, gpu: Gpu, choices: Sequence[Choices], dims: Dims, extents: Extents, is_flushed: bool
    ) -> Floats:  # fmt: skip
        total: Floats = np.zeros((len(choices), 1))
        for each in self.products:
            tilings, multiplied = zip(*(each.fitted(one.product) for one in choices), strict=True)
            work = work_of(gpu, tilings, multiplied, each.extents(dims))
            grouped = GROUPED_S if each.product.index is not None else 0.0
            total = total + work.seconds(gpu, is_flushed) + grouped
        return total

    def needs(self, choices: Choices, gpu: Gpu) -> str | None:
        return next((need for each in self.products if (need := each.needs(choices.product, gpu))), None)

    def tiles(self, choices: Choices) -> Mapping[tuple[str, ...], tuple[int, ...]]:
        found: dict[tuple[str, ...], tuple[int, ...]] = {}
        for each in self.products:
            tiling, _ = each.fitted(choices.product)
            parts = (tiling.parts, 1) if tiling.swap else (1, tiling.parts)
            widths = tiling.block_m * parts[0], tiling.block_n * parts[1]
            for names, width in zip((each.product.m, each.product.n), widths, strict=True):
                found[tuple(each.product.parts[name].axis for name in names)] = (width,)
        return found
