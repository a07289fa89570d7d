"""The rule for rows that are multiplied by the matrix of their group on vector units: mixtures of experts.

Rows are sorted by group within the call; each group is a product of matrices by the register tile,
with its axes, of which ``rows`` is always 1: rows are gathered as they are packed. ``tb`` is 1: threads share the rows
and the panels of each group, not the groups, which differ in size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tuner.program.target import Target
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.layout import Layout
from tuner.schedule.product.axes import ROWS_PACKED
from tuner.schedule.product.product import Product
from tuner.schedule.product.rule import ProductRule
from tuner.schedule.rule import NoMatch
from tuner.schedule.rules.moe.emit import emit
from tuner.schedule.rules.moe.pattern import grouped_of, match
from tuner.schedule.space import MicroKernel

ROW_BYTES = 8
"""Of the number of a row, while rows are sorted."""


class X86Grouped(ProductRule):
    """See the module's text for the axes, ``emit`` for the code; the theory is that of a batch of equal groups."""

    name = "x86_grouped"
    rows = (ROWS_PACKED,)

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        grouped = match(workload)
        return grouped if isinstance(grouped, NoMatch) else grouped.roles

    def workspace_bytes(self, task: SearchTask) -> int:
        rows = task.workload.axis_sizes(task.largest_dims)[grouped_of(task.workload).m]
        return ROW_BYTES * (rows + 1)

    def product(self, workload: Workload) -> Product:
        return grouped_of(workload).product

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        right = grouped_of(task.workload).right
        dims = tuple((dim.constant or 0,) for dim in task.workload.tensors[right].dims)
        return {right: replace(self.panels(task, kernel), dims=dims, batch=(0,), rows=(1,), steps=(2,))}

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        return emit(task, kernel, self.layouts(task, kernel), name)
