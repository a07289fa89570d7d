"""Numbers of four bits anywhere in the elements of a constant: eight in a word along n or k, as GPTQ and AWQ have them,
in the two halves of a block, as GGUF has them.

What a library holds is the same for all: they are read once, when the constant is packed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.program.language.dims import DimExpr
from tuner.program.language.dtypes import DTYPES
from tuner.program.language.expr import Binary, Const, Expr, Read, walk
from tuner.program.language.indices import NotAnIndex, checked_index
from tuner.program.language.workload import Workload
from tuner.schedule.layout import Numbers

BITS, MASK = 4, 15
MAX_BYTES = 4
"""Of an element: longer ones are no words of 32 bits."""


@dataclass(frozen=True, slots=True)
class Placed:
    """``node``, which is nothing but such a number, is the same for so many ``steps`` of k."""

    node: Expr
    tensor: str
    steps: int
    numbers: Numbers


def placed_in(workload: Workload, weight: Expr, n: str, k: str) -> Iterator[Placed]:
    """The numbers of a weight, each once."""
    for node in dict.fromkeys(walk(weight)):
        if (found := _placed(workload, node, n, k)) is not None:
            yield found


def _placed(workload: Workload, node: Expr, n: str, k: str) -> Placed | None:
    match node:
        case Binary("&", Binary(">>", Read() as read, shift), Const(value=15)):
            pass
        case Binary("&", Read() as read, Const(value=15)):
            shift = Const(0)
        case _:
            return None
    tensor, rows, depth = workload.tensors[read.tensor], workload.sizes[n].constant, workload.sizes[k].constant
    dtype = DTYPES[tensor.dtype]
    if read.tensor not in workload.constants or dtype.kind not in "iu" or dtype.bytes > MAX_BYTES:
        return None
    if not rows or not depth:
        return None
    try:
        places = [checked_index(each) for each in (*read.indices, shift)]
    except NotAnIndex:
        return None
    if not all(_is_of_one(place, (n, k)) for place in places):
        return None
    least, most = places[-1].bounds({n: (0, rows - 1), k: (0, depth - 1)})
    if least < 0 or most > dtype.bits - BITS:
        return None
    steps = _steps(places, n, k, depth)
    step = DimExpr.var("step")
    *index, amount = (str(each.substituted({n: DimExpr.var("row"), k: step * steps})) for each in places)
    joined = dtype.bits // BITS if steps == 1 else 1
    return Placed(node, read.tensor, steps, Numbers(rows, -(-depth // steps), tuple(index), amount, joined))


def _is_of_one(place: DimExpr, axes: tuple[str, str]) -> bool:
    """Whether each term is of one of two axes at most."""
    names = [DimExpr((term,)).variables for term in place.terms]
    return all(len(each) <= 1 and each <= {*axes} for each in names)


def _steps(places: list[DimExpr], n: str, k: str, depth: int) -> int:
    """How many neighbouring steps of k have one place."""
    at: Any = {n: 0, k: np.arange(depth)}
    values = [np.broadcast_to(place.evaluate(at), depth) for place in places]
    changes = [int(each) for value in values for each in np.flatnonzero(np.diff(value)) + 1]
    return math.gcd(*changes) or depth
