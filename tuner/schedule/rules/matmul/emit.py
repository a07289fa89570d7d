"""TensorIR for products of two matrices, or of batches of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.program.task import SearchTask
from tuner.schedule.function import kernel_function
from tuner.schedule.layout import Layout
from tuner.schedule.product.context import context_of
from tuner.schedule.product.match.plain import contraction_of
from tuner.schedule.product.nest import Nest
from tuner.schedule.space import MicroKernel
from tuner.schedule.vector.dot_products import imported


def emit(task: SearchTask, kernel: MicroKernel, layouts: Mapping[str, Layout], name: str) -> Any:
    """A private PrimFunc: a pointer for every operand in call order, then every symbol; returns 0."""
    with kernel_function(task.workload, layouts, name) as function:
        context = context_of(task, contraction_of(task.workload).product, kernel, function)
        with imported(context.words.dot):
            Nest(context).body()
    return function.get()
