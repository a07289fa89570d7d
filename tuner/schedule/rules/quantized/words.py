"""Instructions on words for weights that are computed: where all that steps of k do not share is small integers, these
and rows of bfloat16, or of bytes, are elements of words, and nothing is rounded."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.program.language.dtypes import DTYPES
from tuner.program.language.expr import Binary, Cast, Const, Expr, Neg, Read
from tuner.program.language.shapes import ElementTypes
from tuner.program.language.workload import Workload
from tuner.program.target import Hardware
from tuner.schedule.product.atom import Atom
from tuner.schedule.product.atoms import BYTES, atoms_of, only_fma
from tuner.schedule.product.product import DTYPE
from tuner.schedule.rules.quantized.decoded import Decoded
from tuner.schedule.rules.quantized.four_bits import CODE

ELEMENT = "bfloat16"
EXACT = 256
"""All integers up to it are numbers of bfloat16."""
CODES = 16
"""How many numbers four bits are."""
LARGEST = 2**31 - 1
"""Of sums of products of bytes."""

Bounds = tuple[int, int]


def instructions(
    workload: Workload, left: str, right: Decoded, depth: int, total: str, hardware: Hardware
) -> Mapping[int, Atom]:  # fmt: skip
    """By depth multiply-adds of floats, if sums are these; and what multiplies words, if no word or multiplication is
    of two groups of steps. Sums of bytes are integers, of which only factors make floats."""
    every, dtype = dict(only_fma(hardware)) if total == DTYPE else {}, workload.tensors[left].dtype
    shared = min(right.grouped.steps, depth) if right.grouped else depth
    element = _element(workload, right, dtype, shared)
    if element is None or (dtype in BYTES and total == DTYPE and right.grouped is None):
        return every

    def fits(atom: Atom) -> bool:
        return atom.group > 1 and depth % atom.group == 0 and (shared == depth or shared % atom.depth == 0)

    found = atoms_of(dtype, element, "int32" if dtype in BYTES else DTYPE, hardware)
    return {**every, **{steps: atom for steps, atom in found.items() if fits(atom)}}


def _element(workload: Workload, right: Decoded, left: str, steps: int) -> str | None:
    """The dtype that has what is multiplied at each step as it is, beside rows of ``left``; None if none has. Sums over
    so many ``steps`` are to stay in range."""
    types = workload.element_types
    if right.code is not None:
        types = types.with_tensor(CODE.tensor, right.code.dtype)
    bounds = _bounds(workload, types, right, right.grouped.each if right.grouped else right.weight)
    if bounds is None:
        return None
    if left == ELEMENT:
        return ELEMENT if max(map(abs, bounds)) <= EXACT else None
    if left not in BYTES or max(map(abs, bounds)) * max(map(abs, _range_of(left[0], 8))) * steps > LARGEST:
        return None
    ranges = {dtype: _range_of(dtype[0], 8) for dtype in ("int8", "uint8")}
    return next((each for each, (low, high) in ranges.items() if low <= bounds[0] and bounds[1] <= high), None)


def _bounds(workload: Workload, types: ElementTypes, right: Decoded, expr: Expr) -> Bounds | None:
    """The least and the largest value of an expression of integers; None if it may be something else, or wraps."""
    found = _unwrapped(workload, types, right, expr)
    dtype = DTYPES[expr.dtype if isinstance(expr, Cast) else types.type_of(expr)]
    if found is None or dtype.kind == "b":
        return None
    if dtype.kind == "f":
        return found if max(map(abs, found)) <= EXACT else None
    lowest, highest = _range_of(dtype.kind, dtype.bits)
    return found if lowest <= found[0] and found[1] <= highest else None


def _unwrapped(workload: Workload, types: ElementTypes, right: Decoded, expr: Expr) -> Bounds | None:
    """The same, as if no dtype ended."""
    match expr:
        case Const(value=value):
            return (int(value), int(value)) if value == int(value) else None
        case Read() if expr == CODE:
            assert right.code is not None
            return right.code.offset, right.code.offset + CODES - 1
        case Read(tensor=tensor) if tensor in dict(right.numbers):
            return 0, CODES - 1
        case Read(tensor=tensor):
            dtype = DTYPES[workload.tensors[tensor].dtype]
            return _range_of(dtype.kind, dtype.bits) if dtype.kind in "iu" else None
        case Cast(operand=operand):
            return _bounds(workload, types, right, operand)
        case Neg(operand=operand):
            one = _bounds(workload, types, right, operand)
            return None if one is None else (-one[1], -one[0])
        case Binary(operator="&", right=Const(value=int() as mask)) if mask >= 0:
            return None if _bounds(workload, types, right, expr.left) is None else (0, mask)
        case Binary(operator="+" | "-" | "*" as operator):
            one, other = (_bounds(workload, types, right, each) for each in (expr.left, expr.right))
            return None if one is None or other is None else _combined(operator, one, other)
        case _:
            return None


def _combined(operator: str, one: Bounds, other: Bounds) -> Bounds:
    if operator == "+":
        return one[0] + other[0], one[1] + other[1]
    if operator == "-":
        return one[0] - other[1], one[1] - other[0]
    products = [a * b for a in one for b in other]
    return min(products), max(products)


def _range_of(kind: str, bits: int) -> Bounds:
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if kind == "i" else (0, 2**bits - 1)
