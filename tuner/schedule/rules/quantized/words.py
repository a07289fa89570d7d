"""Instructions on words for weights that are computed: where all that steps of k do not share is small integers, these
and rows of bfloat16 are elements of words, and nothing is rounded."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.program.language.dtypes import DTYPES
from tuner.program.language.expr import Binary, Cast, Const, Expr, Neg, Read
from tuner.program.language.shapes import ElementTypes
from tuner.program.language.workload import Workload
from tuner.program.target import Hardware
from tuner.schedule.product.atom import Atom
from tuner.schedule.product.atoms import atoms_of, only_fma
from tuner.schedule.product.product import DTYPE
from tuner.schedule.rules.quantized.decoded import CODE, Decoded

ELEMENT = "bfloat16"
EXACT = 256
"""All integers up to it are numbers of bfloat16."""
CODES = 16
"""How many numbers four bits are."""

Bounds = tuple[int, int]


def instructions(workload: Workload, left: str, right: Decoded, depth: int, hardware: Hardware) -> Mapping[int, Atom]:
    """By depth multiply-adds; and what multiplies words, if no word or multiplication is of two groups of steps."""
    every, dtype = dict(only_fma(hardware)), workload.tensors[left].dtype
    if dtype != ELEMENT or not is_exact(workload, right):
        return every
    shared = min(right.grouped.steps, depth) if right.grouped else depth

    def fits(atom: Atom) -> bool:
        return atom.group > 1 and depth % atom.group == 0 and (shared == depth or shared % atom.depth == 0)

    return {**every, **{steps: atom for steps, atom in atoms_of(dtype, dtype, DTYPE, hardware).items() if fits(atom)}}


def is_exact(workload: Workload, right: Decoded) -> bool:
    """Whether what is multiplied at each step is elements of words as it is."""
    types = workload.element_types
    if right.code is not None:
        types = types.with_tensor(CODE.tensor, right.code.dtype)
    bounds = _bounds(workload, types, right, right.grouped.each if right.grouped else right.weight)
    return bounds is not None and max(map(abs, bounds)) <= EXACT


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
        case Read(tensor=tensor):
            dtype = DTYPES[workload.tensors[tensor].dtype]
            return _range_of(dtype.kind, dtype.bits) if dtype.kind in "iu" else None
        case Cast(operand=operand):
            return _bounds(workload, types, right, operand)
        case Neg(operand=operand):
            one = _bounds(workload, types, right, operand)
            return None if one is None else (-one[1], -one[0])
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
