"""TensorIR for products with computed weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tuner.program.task import SearchTask
from tuner.schedule.function import kernel_function
from tuner.schedule.layout import Layout
from tuner.schedule.product.context import context_of
from tuner.schedule.product.nest import Nest
from tuner.schedule.rules.quantized.decoded import Decoded
from tuner.schedule.rules.quantized.pattern import quantized_of
from tuner.schedule.space import MicroKernel


def emit(task: SearchTask, kernel: MicroKernel, layouts: Mapping[str, Layout], name: str) -> Any:
    """A private PrimFunc: a pointer for every operand in call order, then every symbol; returns 0."""
    product = quantized_of(task.workload).product
    assert isinstance(product.right, Decoded)
    with kernel_function(task.workload, layouts, name) as function:
        context = context_of(task, product, kernel, function)
        Nest(replace(context, right=replace(product.right, is_packed_ahead=not kernel["pack"]))).body()
    return function.get()
