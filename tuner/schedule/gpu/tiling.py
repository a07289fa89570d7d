"""Micro-kernels of products on a GPU, and in which dtype a product is multiplied."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tuner.program.language.expr import Binary, Cast, Const, Expr, Read
from tuner.schedule.gpu.contraction import Contraction
from tuner.schedule.rules.quantized.four_bits import CODE

SHORT = ("float16", "bfloat16")
LIMIT = {"float16": 2048, "bfloat16": 256}
"""Up to which all integers are exact."""
LARGEST = {"int8": 128, "uint8": 255}
MIN_STEPS = 16
"""Steps of k that a tensor instruction takes at least; of bytes twice as many."""
MAX_ROWS = 16
"""Rows and columns of a tile whose products are added one by one."""


@dataclass(frozen=True)
class Tiling:
    """A micro-kernel: the table in docs/decisions/0069 says what the axes are for.

    ``precision``: of products of float32: ieee, tf32 (operands are rounded to it) or tf32x3. ``swap``: rows of the
    product are the columns of a tile. ``descriptors``: tiles are brought by the hardware where an operand allows it.
    ``dot``: by tensor cores, or one by one. ``parts``: equal ones of a tile side by side, so that its width need not
    be a power of two. ``pack``: how constants lie, as they are or packed before all calls as ``nk`` or ``kn``.
    """

    block_m: int = 64
    block_n: int = 64
    block_k: int = 32
    group_m: int = 8
    split_k: int = 1
    num_warps: int = 4
    num_stages: int = 3
    precision: str = "ieee"
    swap: bool = False
    descriptors: bool = False
    dot: bool = True
    parts: int = 1
    pack: str = ""


def fitted(product: Contraction, tiling: Tiling) -> tuple[Contraction, Tiling]:
    """A product and a tiling that go together: steps of k that share a factor are whole blocks, or it is multiplied by
    each weight; what tensor cores do not take is added one by one."""
    if not has_tensor_cores(product):
        block_m, block_n = (min(block, MAX_ROWS) for block in (tiling.block_m, tiling.block_n))
        tiling = replace(tiling, dot=False, block_m=block_m, block_n=block_n)
    is_float = product.total == "float32"
    if product.index is not None or not tiling.dot or not is_float:
        tiling = replace(tiling, parts=1)
    if not is_float and tiling.dot:
        tiling = replace(tiling, block_k=max(tiling.block_k, 2 * MIN_STEPS))
    size = product.parts[product.k[0]].extent.constant or 0
    if product.late is not None and product.late_steps < size and product.late_steps % tiling.block_k:
        shared = product.late_steps & -product.late_steps
        if shared < MIN_STEPS:
            return replace(product, right=Binary("*", product.right, product.late), late=None), tiling
        return product, replace(tiling, block_k=min(shared, tiling.block_k))
    return product, tiling


def has_tensor_cores(product: Contraction) -> bool:
    """Whether there are instructions on tiles for the operands: floats; or bytes, of which one side has a sign."""
    if product.total == "float32":
        return True
    sides = [side for side in (product.left, product.right) if isinstance(side, Read) and side != CODE]
    dtypes = sorted(product.tensors[side.tensor].dtype for side in sides)
    padding = dict(product.workload.padding)
    is_padded = any(padding.get(side.tensor) for side in sides)
    return dtypes == ["int8", "int8"] or (dtypes == ["int8", "uint8"] and not is_padded)


def stored_type(product: Contraction, expr: Expr) -> str:
    """The dtype of a side's elements before they are converted for the multiplication."""
    if isinstance(expr, Read) and expr != CODE:
        return product.tensors[expr.tensor].dtype
    return product.types.type_of(expr)


def multiplied_type(product: Contraction, has_dot: bool) -> str:
    """The dtype that is multiplied, in which both sides are exact."""
    if product.total != "float32":
        return "int8" if has_dot else product.total
    left, right = stored_type(product, product.left), stored_type(product, product.right)
    if left == right and left in SHORT:
        return left
    for short, other, expr in ((left, right, product.right), (right, left, product.left)):
        if short in SHORT and other not in SHORT:
            most = _largest(product, expr)
            if most is not None and most <= LIMIT[short]:
                return short
    return "float32"


def _largest(product: Contraction, expr: Expr) -> float | None:
    """The largest magnitude of an expression of integers; None for one that may be other than small integers."""
    match expr:
        case Const(value=value):
            return abs(value) if float(value).is_integer() else None
        case Read() if expr == CODE and product.code is not None:
            return 15 + abs(product.code.offset)
        case Read(tensor=tensor):
            return LARGEST.get(product.tensors[tensor].dtype)
        case Binary(operator="+" | "-", left=left, right=right):
            most = _largest(product, left), _largest(product, right)
            return None if most[0] is None or most[1] is None else most[0] + most[1]
        case Cast(operand=operand, dtype="float32" | "int32"):
            return _largest(product, operand)
    return None
