"""Numbers of four bits in expressions, found by what these compute."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.program.language.dims import DimExpr
from tuner.program.language.expr import Axis, Binary, Call, Const, Expr, Extent, Read, children, reads, rebuild, walk
from tuner.program.language.notation import Stage
from tuner.program.language.program import Program
from tuner.program.language.workload import Workload
from tuner.program.reference import compute
from tuner.schedule.rules.quantized.four_bits import Code
from tuner.schedule.rules.quantized.places import Placed

SIGN = 8
"""The bit of four that two's complement takes for the sign."""
EXACT = frozenset({"where", "min", "max"})
"""Functions of small integers that are exact."""


def code_in(workload: Workload, expr: Expr, n: str, k: str) -> tuple[Expr, Code] | None:
    """The largest part of ``expr`` that is nothing but four bits of a byte as a number."""
    found = ((node, _code(workload, node, n, k)) for node in walk(expr))
    return next(((node, code) for node, code in found if code is not None), None)


def _code(workload: Workload, expr: Expr, n: str, k: str) -> Code | None:
    found, place = reads(expr), (Axis(n), Binary("//", Axis(k), Const(2)))
    if not found or any(read.tensor != found[0].tensor or read.indices != place for read in found):
        return None
    tensor = found[0].tensor
    if workload.tensors[tensor].dtype not in ("uint8", "int8") or not _asks_parity_alone(expr, k):
        return None
    values, bits = _values(workload, expr, tensor, n, k), np.arange(256)[:, None] >> [0, 4] & 15
    for high_first, numbers in ((False, bits), (True, bits[:, ::-1])):
        if (form := _form(values, numbers)) is not None:
            return Code(workload.element_types.type_of(expr), tensor, high_first, *form)
    return None


def _form(values: NDArray[Any], numbers: NDArray[Any]) -> tuple[int, int] | None:
    """``flipped`` and ``offset`` where ``values`` are ``(numbers ^ flipped) + offset``."""
    if not np.isfinite(values).all():
        return None
    for flipped in (0, SIGN):
        offset = float(values.flat[0]) - (int(numbers.flat[0]) ^ flipped)
        if offset == int(offset) and np.array_equal(values, (numbers ^ flipped) + offset):
            return flipped, int(offset)
    return None


def code_of(workload: Workload, weight: Expr, placed: Placed) -> tuple[Expr, Code]:
    """The largest part of ``weight`` that is a number of four bits, flipped and moved perhaps, that lies elsewhere."""
    for node in walk(weight):
        code = _moved(workload, node, placed)
        if code is not None:
            return node, code
    raise AssertionError("what was placed is no part of the weight")


def _moved(workload: Workload, expr: Expr, placed: Placed) -> Code | None:
    place = Read(f"{placed.tensor} number", (Axis("i"),))
    own = rebuild(expr, lambda node: place if node == placed.node else node)
    if {node for node in walk(own) if isinstance(node, Axis | Extent | Read)} != {place, Axis("i")}:
        return None
    if any(isinstance(node, Call) and node.function not in EXACT for node in walk(own)):
        return None
    dtype, name = workload.element_types.type_of(placed.node), "numbers"
    every = Workload(
        Program((Stage(name, ("i",), own),), (name,)),
        extents=(("i", DimExpr.of(SIGN * 2)),),
        dtypes=((place.tensor, dtype), (name, workload.element_types.type_of(expr))),
        shapes=((place.tensor, (DimExpr.of(SIGN * 2),)),),
    )
    numbers = np.arange(SIGN * 2)
    (values,) = compute(every, [numbers.astype(dtype)], {})
    form = _form(values, numbers)
    return None if form is None else Code(workload.element_types.type_of(expr), placed.tensor, False, *form)


def _asks_parity_alone(expr: Expr, k: str) -> bool:
    """Whether the value of k does not matter beyond ``k % 2``, in arithmetic that is exact."""
    if expr == Binary("%", Axis(k), Const(2)) or isinstance(expr, Read):
        return True
    if isinstance(expr, Axis | Extent) or (isinstance(expr, Call) and expr.function not in EXACT):
        return False
    return all(_asks_parity_alone(child, k) for child in children(expr))


def _values(workload: Workload, expr: Expr, tensor: str, n: str, k: str) -> NDArray[Any]:
    """[256, 2]: what an expression of a byte is, by the byte and by ``k % 2``."""
    name, dtype = f"{tensor} decoded", workload.tensors[tensor].dtype
    every = Workload(
        Program((Stage(name, (n, k), expr),), (name,)),
        extents=((n, DimExpr.of(256)), (k, DimExpr.of(2))),
        dtypes=((tensor, dtype), (name, workload.element_types.type_of(expr))),
        shapes=((tensor, (DimExpr.of(256), DimExpr.of(1))),),
    )
    (result,) = compute(every, [np.arange(256, dtype=np.uint8).view(dtype)[:, None]], {})
    return result
