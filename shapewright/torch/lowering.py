"""Calls of tuned libraries in Inductor's code: it views and copies operands, plans memory for the output, and calls the
library directly, past PyTorch's dispatcher.

Imports Inductor. Where this version of it has other internals than those used here, ``register`` says so, and calls go
through the operator.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from shapewright.models.lifted import View
from shapewright.torch.chain_op import chain
from shapewright.torch.op import call
from shapewright.torch.plan import DTYPES, plan_of
from shapewright.torch.steps import ChainPlan, sizes_of

logger = logging.getLogger(__name__)

DIRECT, DIRECT_CHAIN = "torch.ops.shapewright.direct", "torch.ops.shapewright.direct_chain"
DIRECT_CHAINS = "torch.ops.shapewright.direct_chains"
"""What Inductor's code calls: ``shapewright.torch.op.direct``, ``shapewright.torch.chain_op.direct`` and, for a chain
of several outputs, ``shapewright.torch.chain_op.run``."""


@cache
def register() -> bool:
    """Register the lowering, once for a process; whether Inductor's code will call libraries directly."""
    try:
        from torch._inductor import ir, lowering  # noqa: PLC0415 - seconds, for those who compile
        from torch._inductor.virtualized import V  # noqa: PLC0415

        fallback = lowering.fallback_handler(call, add_to_fallback_set=False)
        needed = (lowering.view, lowering.permute, ir.ExternKernelOut, ir.FixedLayout, ir.TensorBox.create)
        lowering.register_lowering(call, type_promotion_kind=None)(
            lambda operands, sizes, plan: (
                fallback(operands, sizes, plan) if V.graph.cpp_wrapper else _lowered(operands, sizes, plan)
            )
        )
        several = lowering.fallback_handler(chain, add_to_fallback_set=False)

        class Several(ir.FallbackKernel):  # type: ignore[misc]
            def get_kernel_name(self) -> str:
                return DIRECT_CHAINS

        def lowered(tensors: Sequence[Any], sizes: Sequence[Any], plan: str) -> list[Any]:
            if V.graph.cpp_wrapper:
                return several(tensors, sizes, plan)  # type: ignore[no-any-return]
            if len(ChainPlan.read(plan).outputs) == 1:
                return [_lowered_chain(tensors, sizes, plan)]
            return [ir.TensorBox.create(each) for each in Several.create(chain, tensors, sizes, plan)]

        lowering.register_lowering(chain, type_promotion_kind=None)(lowered)
        return bool(needed)
    except (ImportError, AttributeError, TypeError) as error:
        logger.warning("this version of PyTorch's Inductor is not known (%s): calls go through the operator", error)
        return False


def _lowered(operands: Sequence[Any], sizes: Sequence[Any], text: str) -> Any:
    from torch._inductor import ir, lowering  # noqa: PLC0415

    plan = plan_of(text)
    inputs: list[Any] = []
    for taken in plan.operands:
        tensors = [operands[position] for position in taken.inputs if position is not None]
        if taken.is_kept:
            # As they are: the library's packed form is found by the weight's own storage and version.
            inputs += [ir.ExternKernel.realize_input(tensor) for tensor in tensors]
        else:
            inputs += [_in_a_row(_viewed(tensor, taken.view)) for tensor in tensors]
    order = _order(plan.output, len(sizes))
    result = ir.ExternKernelOut(
        layout=ir.FixedLayout(
            operands[0].get_device(), DTYPES[plan.dtype], [_product(sizes, group) for group in plan.output]
        ),
        inputs=inputs,
        constant_args=(text,),
        python_kernel_name=DIRECT,
        op_overload=call,
    )
    out = lowering.view(ir.TensorBox.create(result), [sizes[axis] for axis in order])
    back = sorted(range(len(order)), key=order.__getitem__)
    return out if back == list(range(len(back))) else lowering.permute(out, back)


def _lowered_chain(tensors: Sequence[Any], sizes: Sequence[Any], text: str) -> Any:
    from torch._inductor import ir  # noqa: PLC0415

    plan = ChainPlan.read(text)
    step = plan.steps[plan.outputs[0]]
    result = ir.ExternKernelOut(
        layout=ir.FixedLayout(
            torch.device("cpu"), DTYPES[plan_of(step.plan).dtype],
            sizes_of(step.sizes, sizes),
        ),
        inputs=[ir.ExternKernel.realize_input(tensor) for tensor in tensors],
        constant_args=(*sizes, text),
        python_kernel_name=DIRECT_CHAIN,
        op_overload=chain,
    )  # fmt: skip
    return ir.TensorBox.create(result)


def _in_a_row(tensor: Any) -> Any:
    from torch._inductor import ir  # noqa: PLC0415

    # A single value is in a row before it is computed at all.
    return ir.ExternKernel.realize_input(ir.ExternKernel.require_contiguous(tensor))


def _viewed(tensor: Any, view: View) -> Any:
    from torch._inductor import lowering  # noqa: PLC0415

    sizes = tensor.get_size()
    order = _order(view, len(sizes))
    if order != list(range(len(sizes))):
        tensor = lowering.permute(tensor, order)
    return lowering.view(tensor, [_product(sizes, group) for group in view])


def _order(view: View, rank: int) -> list[int]:
    order = [axis for group in view for axis in group]
    return order + [axis for axis in range(rank) if axis not in order]


def _product(sizes: Sequence[Any], axes: Sequence[int]) -> Any:
    return math.prod(sizes[axis] for axis in axes)
