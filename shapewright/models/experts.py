"""Rows by the matrix of their group, as mixtures of experts have them: PyTorch's operators for these, and the program.

What they are given says where groups end. A library wants the group of each row, which costs nothing to find beside the
product, so that both are operands of one operator of our own (``shapewright.torch.grouped``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from shapewright.models.draft import Draft, draft_of
from shapewright.models.graph import CannotLift, Operation
from shapewright.models.lifted import Operand
from shapewright.models.operands import constant_behind, operand
from tuner.program.job.build import ProgramOp

ALIGNED_BYTES = 16
"""PyTorch pads rows of results to multiples of so many bytes."""


def grouped() -> dict[Any, Callable[..., Any]]:
    """The decompositions of products by group, by overload, of the operators that there are in this process."""
    import torch  # noqa: PLC0415 - for those who have a model of it

    # Here, since what is imported while PyTorch traces becomes a part of the graph.
    from shapewright.torch.grouped import grouped_mm  # noqa: PLC0415

    form = partial(_grouped_mm, grouped_mm.default)
    found: dict[Any, Callable[..., Any]] = {torch.ops.aten._grouped_mm.default: form}
    # Registered by transformers, where its models of experts are loaded.
    if hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        found[torch.ops.transformers.grouped_mm_fallback.default] = form
    return found


def _grouped_mm(
    form: Callable[..., Any], x: Any, w: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> Any:  # fmt: skip
    """Rows [rows, k] by matrices [groups, k, n], the groups of rows one behind the other; NotImplemented for others."""
    import torch  # noqa: PLC0415

    is_by_row = offs is not None and (x.dim(), w.dim()) == (2, 3)
    if not is_by_row or bias is not None or out_dtype not in (None, x.dtype) or x.device.type != "cpu":
        return NotImplemented
    if not isinstance(n := w.shape[2], int) or n * x.dtype.itemsize % ALIGNED_BYTES:
        return NotImplemented
    rows = torch.arange(x.shape[0], dtype=offs.dtype, device=x.device)
    group = torch.searchsorted(offs, rows, right=True, out_int32=True)
    return form(x, w, offs, group)


def grouped_product(operation: Operation) -> Draft:
    """x[t, k] . w[group[t], k, n], 0 for rows of no group. The weight stays."""
    graph, x, w, group = operation.graph, *(operation.tensor(place) for place in range(3))
    if not constant_behind(graph, w):
        raise CannotLift(f"the weights {w.name} are new at every call")
    (rows, k), (groups, _, n) = graph.shape(x.name), graph.shape(w.name)
    if (count := groups.constant) is None:
        raise CannotLift(f"the number of groups is {groups}")
    program = ProgramOp(
        "y[t, n] = sum(k) x[t, k] * w[expert[t], n, k]\n"
        f"out[t, n] = where(expert[t] < {count}, y[t, n], 0.0)",
        constant=("w",), shapes=(("w", ("e", "n", "k")),),
    )  # fmt: skip
    operands = [
        operand(graph, "x", x, (rows, k)), operand(graph, "w", w, (groups, n, k), (0, 2, 1)),
        Operand("expert", group.name, ((0,),)),
    ]  # fmt: skip
    args = {"t": rows, "e": groups, "n": n, "k": k}
    return draft_of(program, args, operands, operation, ((0,), (1,)), {"expert": "int32"})
