"""Where a kernel may round an intermediate that the program keeps in float32.

The exponentials of a softmax lie between 0 and 1, and are summed times values. Where these are short floats, and so is
the result, kernels may round the exponentials to the dtype of the values first, as instructions on pairs of short
floats want it and kernels of other libraries do. The sum of the exponentials alone is of those that were not rounded.
"""

from __future__ import annotations

from collections.abc import Mapping

from tuner.program.language.expr import Binary, Call, Expr, Read
from tuner.program.language.program import Program

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
