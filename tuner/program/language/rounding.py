"""Where a kernel may round what the program keeps in float32.

The exponentials of a softmax lie between 0 and 1, and are summed times values. Where these are short floats, and so is
the result, kernels may round the exponentials to the dtype of the values first, as instructions on pairs of short
floats want it and kernels of other libraries do. The sum of the exponentials alone is of those that were not rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tuner.program.language.expr import Binary, Call, Expr, Read, reads
from tuner.program.language.program import Program

if TYPE_CHECKING:
    from tuner.program.language.shapes import ElementTypes

TF32 = "tf32"
"""float32 with the 10 bits of float16's fraction, which tensor cores multiply. No tensor has it as its dtype."""
SHORT_FLOATS = frozenset({"float16", "bfloat16"})


def rounded_weights(program: Program, dtypes: Mapping[str, str]) -> Mapping[str, str]:
    """By the name of each sum of exponentials times short floats: the dtype that the exponentials may be rounded to.
    ``dtypes``: of all tensors."""
    results, found = {dtypes[name] for name in program.outputs}, dict[str, str]()
    for stage in program.stages:
        if stage.reducer != "sum" or not isinstance(stage.body, Binary) or stage.body.operator != "*":
            continue
        for weight, value in ((stage.body.left, stage.body.right), (stage.body.right, stage.body.left)):
            name = _input(value, program)
            dtype = "" if name is None else dtypes[name]
            if dtype in SHORT_FLOATS and results == {dtype} and _is_exponential(weight, program):
                found[stage.tensor] = dtype
    return found


def tf32_products(program: Program, types: ElementTypes) -> frozenset[str]:
    """The sums of products of float32, whose factors a workload may let kernels round to TF32. Squares are none:
    their factors are one. Products of short floats are exact in it."""
    found = set()
    for stage in program.stages:
        body = stage.body
        is_product = isinstance(body, Binary) and body.operator == "*" and body.left != body.right
        if stage.reducer == "sum" and is_product and types.type_of(body) == "float32":
            found |= {stage.tensor} if any(types.of[read.tensor] == "float32" for read in reads(body)) else set()
    return frozenset(found - set(rounded_weights(program, types.of)))


def _input(expr: Expr, program: Program) -> str | None:
    """The input of which an expression is an element, as it is."""
    if not isinstance(expr, Read):
        return None
    stage = program.stage.get(expr.tensor)
    if stage is None:
        return expr.tensor
    return _input(stage.body, program) if stage.reducer is None else None


def _is_exponential(expr: Expr, program: Program) -> bool:
    """Whether it is one, perhaps over their sum, or 0 in its place."""
    match expr:
        case Read(tensor=name) if name in program.stage and program.stage[name].reducer is None:
            return _is_exponential(program.stage[name].body, program)
        case Binary("/", above, _):
            return _is_exponential(above, program)
        case Call("where", (_, *choices)):
            return any(_is_exponential(each, program) for each in choices)
        case Call("exp"):
            return True
    return False
