"""Products that Strassen's scheme computes: which programs they are, and the sizes of the seven products."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Workload
from tuner.program.target import Target
from tuner.schedule.loops.estimates import Floats
from tuner.schedule.product.atoms import only_fma
from tuner.schedule.product.blocks import MIN_STEPS, has_blocks
from tuner.schedule.product.match.plain import Matrices, match
from tuner.schedule.product.product import DTYPE, Left, Place, Product, Result, Right
from tuner.schedule.rule import Extents, NoMatch, matched
from tuner.schedule.strassen import PRODUCTS
from tuner.schedule.tir import TirExpr


@dataclass(frozen=True)
class SumsOfBlocks(Left):
    """Rows of sums of the left operand's blocks: ``buffer[first + row, k]``."""

    buffer: TirExpr = None
    first: TirExpr = None
    dtype: str = DTYPE
    is_packed_ahead = False

    def row(self, context: object, row: TirExpr) -> Place:
        return self.buffer, (self.first + row,)

    def row_stride(self, of: object) -> Floats:
        # An odd number of cache lines.
        return np.zeros((1, 1))


@dataclass(frozen=True)
class PackedParts(Right):
    """The blocks of the right operand and their sums (blocks.InBlocks)."""

    dtype: str = DTYPE
    is_packed_ahead = True
    lies_along_n = False


@dataclass(frozen=True)
class Products(Result):
    """The products of blocks: ``buffer[first + row, columns]``."""

    buffer: TirExpr = None
    first: TirExpr = None
    dtype: str = DTYPE
    computed: str = ""

    def row(self, context: object, row: TirExpr) -> Place:
        return self.buffer, (self.first + row,)


def roles(workload: Workload, target: Target) -> Product | NoMatch:
    """The product that a workload is, if the scheme takes it."""
    product = match(workload)
    if isinstance(product, NoMatch) or has_blocks(product):
        return product
    return NoMatch(f"not {DTYPE} by a constant of an even number of steps, {2 * MIN_STEPS} or more")


@dataclass(frozen=True)
class Parts:
    """Sizes of the products of one task: ``columns`` of the output, ``steps`` of k in a block; ``pairs`` of vectors of
    columns."""

    columns: int
    steps: int
    pairs: int

    def by_role(self, lanes: int, whole: Product, extents: Extents) -> Extents:
        """The extents of the products of blocks."""
        rows = -(-whole.by_role(extents)["m"] // 2)
        one = np.ones_like(rows)
        return {"b": PRODUCTS * one, "m": rows, "n": self.pairs * lanes * one, "k": self.steps * one}


def parts_of(task: SearchTask) -> Parts:
    """Raises ValueError for a task that the rule does not take."""
    product, lanes = whole_of(task.workload), task.known_target.hardware.lanes()
    columns = task.workload.sizes[product.axes["n"]].constant or 0
    return Parts(columns, (product.depth or 0) // 2, -(-columns // (2 * lanes)))


def whole_of(workload: Workload) -> Matrices:
    """The product as it is written. Raises ValueError for a workload that is none."""
    return matched(workload, match(workload))


def products_of(task: SearchTask) -> Product:
    """The products of blocks, as the loops and the theory see them."""
    parts, lanes = parts_of(task), task.known_target.hardware.lanes()
    return Product(
        axes={}, left=SumsOfBlocks(), right=PackedParts(), result=Products(), dynamic=frozenset({"m"}),
        depth=parts.steps, atoms=only_fma, sizes=partial(parts.by_role, lanes, whole_of(task.workload)),
    )  # fmt: skip
