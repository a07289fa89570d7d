"""Where the elements of a contraction of any form stand: views of tensors, and indices of parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tuner.program.expr import Read
from tuner.program.task import SearchTask
from tuner.schedule.function import KernelFunction
from tuner.schedule.product.frame import Frame, Panel
from tuner.schedule.product.match.form import Form
from tuner.schedule.product.match.groups import viewed
from tuner.schedule.product.operands.operands import outer_role
from tuner.schedule.product.product import group_of
from tuner.schedule.product.words import Words
from tuner.schedule.signature import dim_expr, i64
from tuner.schedule.tir import I, TirExpr, tirx

Values = Mapping[str, TirExpr]
"""Values of parts, or of whole groups, by name."""


@dataclass(frozen=True)
class View:
    """A tensor with dims merged: one for each of ``roles``."""

    buffer: TirExpr
    roles: tuple[str, ...]

    def outer(self, values: Values) -> tuple[TirExpr, ...]:
        """The indices of all dims but the last."""
        return tuple(values[role] for role in self.roles[:-1])


def by_role(outer: Values, **groups: TirExpr) -> Values:
    """Values of dims by their roles, of those of outer parts."""
    return {**{outer_role(name): value for name, value in outer.items()}, **groups}


@dataclass(frozen=True)
class FormFrame(Frame):
    """``views`` by tensor; ``outer``: the values of the outer parts here; ``results``: the buffer that tiles are
    written to where the output is not, and the row of the output that its first one is; ``depth``: elements of k, of
    which ``extent`` has the steps."""

    contraction: Form
    function: KernelFunction = field(kw_only=True)
    views: dict[str, View] = field(kw_only=True, default_factory=dict)
    outer: Values = field(kw_only=True, default_factory=dict)
    results: tuple[TirExpr, TirExpr] | None = field(kw_only=True, default=None)
    depth: TirExpr = field(kw_only=True, default=None)
    stretch: tuple[TirExpr, TirExpr] | None = field(kw_only=True, default=None)
    """The number of a stretch of the panels, and how many there are; None: all panels are one."""
    whole: SearchTask = field(kw_only=True)
    """The task that the results are of: of a phase of it, ``task`` is a part."""

    @property
    def words(self) -> Words:
        dot = self.contraction.dots(self.task.known_target.hardware)[group_of(self.kernel)]
        return Words(dot, self.contraction.left_dtype, self.contraction.right_dtype, self.vectors)

    @property
    def out_dtype(self) -> str:
        return self.contraction.total if self.results is not None else self.contraction.out_dtype

    @property
    def holds_elements(self) -> bool:
        """Whether rows of the left operand that are packed at the call are elements, of which words are read."""
        return self.words.dot.group > 1 and self.contraction.left.kind == "gathered"

    def packed_word(self, packed: TirExpr, row: TirExpr, step: TirExpr) -> TirExpr:
        if not self.holds_elements:
            return super().packed_word(packed, row, step)
        group = self.words.dot.group
        return tirx.reinterpret("int32", packed[row, tirx.Ramp(step * i64(group), i64(1), group)])

    def at(self, *batch: TirExpr) -> FormFrame:
        return replace(self, batch=batch, outer=self.decomposed(self.contraction.outer, batch[0]))

    # -- parts ------------------------------------------------------------------------------------------------------
    def size(self, name: str) -> TirExpr:
        """The extent of a part."""
        part = self.contraction.parts[name]
        if part.extent.constant is None and self.contraction.phase is not None:
            return dim_expr(part.extent, self.function.symbols)
        return self.function.extents[part.axis] if part.extent.constant is None else i64(part.extent.constant)

    def divisor(self, name: str) -> TirExpr:
        """The same for divisions, which must not fail where there is nothing to divide."""
        return tirx.max(self.size(name), i64(1))

    def sizes_of(self, tensor: str) -> list[TirExpr]:
        """The sizes of a tensor's dims."""
        return [dim_expr(dim, self.function.symbols) for dim in self.task.workload.tensors[tensor].dims]

    def decomposed(self, names: Sequence[str], flat: TirExpr) -> dict[str, TirExpr]:
        """The values of the parts of a group at one value of its flattened index, 0 or more."""
        values: dict[str, TirExpr] = {}
        for name in reversed(names[1:]):
            values[name] = I.Bind(tirx.truncmod(flat, self.divisor(name)))
            flat = I.Bind(tirx.truncdiv(flat, self.divisor(name)))
        return {**values, names[0]: flat} if names else {}

    def index(self, values: Values) -> dict[str, TirExpr]:
        """The values of the program's axes; 0 for parts that are not given."""
        result: dict[str, TirExpr] = {}
        for name, part in self.contraction.parts.items():
            own = values.get(name, i64(0)) * i64(part.step) if part.step != 1 else values.get(name, i64(0))
            result[part.axis] = result[part.axis] + own if part.axis in result else own
        return result

    def index_of_result(self, values: Values) -> dict[str, TirExpr]:
        """The same of a result: of a phase, where it is in the whole output."""
        index = self.index(values)
        for places in self.contraction.phase.places if self.contraction.phase is not None else ():
            index[places.axis] = index[places.axis] * i64(places.step) + i64(places.first)
        return index

    @contextmanager
    def runs(
        self, names: Sequence[str], first: TirExpr, length: TirExpr
    ) -> Iterator[tuple[Values, TirExpr, TirExpr, TirExpr]]:
        """The flattened indices from ``first`` on as runs of the last part: the values of the other parts, the run's
        first value and the one past its last, and what is to be added for the place in the ``length`` elements."""
        *outer, inner = names
        if not outer:
            yield {}, first, I.Bind(first + length), i64(0) - first
            return
        size = self.divisor(inner)
        last = first + length
        with I.serial(tirx.truncdiv(first, size), tirx.truncdiv(last + size - i64(1), size)) as run:
            values = self.decomposed(outer, run)
            start = I.Bind(run * size)
            ends = I.Bind(tirx.max(first - start, i64(0))), I.Bind(tirx.min(last - start, size))
            yield values, *ends, I.Bind(start - first)

    def columns_in(self, panel: Panel) -> TirExpr:
        """How many columns a panel has."""
        width = i64(panel.vectors * self.vectors.lanes)
        return width if panel.limit is None else tirx.min(width, panel.limit - panel.column)

    # -- operands ---------------------------------------------------------------------------------------------------
    def left_row(self, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...]]:
        operand = self.contraction.left
        if operand.kind == "packed":
            return self.buffers[operand.tensor], (self._packed_batch(operand.roles) * self.extent["m"] + row,)
        view = self.views[f"{operand.tensor} left"]
        return view.buffer, view.outer(by_role(self.outer, m=row))

    def right_step(self, step: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...]]:
        view = self.views[f"{self.contraction.right.tensor} right"]
        return view.buffer, view.outer(by_role(self.outer, k=step, n=step))

    @property
    def packed_right(self) -> TirExpr:
        return self.buffers[self.contraction.right.tensor]

    @property
    def first_panel(self) -> TirExpr | None:
        operand = self.contraction.right
        if operand.kind != "packed" or len(operand.roles) == 2:
            return None
        panels = tirx.floordiv(self.extent["n"] + i64(self.nr - 1), i64(self.nr))
        return self._packed_batch(operand.roles) * panels

    def _packed_batch(self, roles: tuple[str, ...]) -> TirExpr:
        """The flattened index of a packed operand's outer parts."""
        flat: TirExpr = i64(0)
        values, sizes = by_role(self.outer), {outer_role(name): self.size(name) for name in self.outer}
        for role in roles[:-2]:
            flat = flat * sizes[role] + values[role]
        return flat

    # -- results ----------------------------------------------------------------------------------------------------
    def out_row(self, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...]]:
        if self.results is not None:
            buffer, first = self.results
            return buffer, (row - first,)
        view = self.views["out"]
        return view.buffer, view.outer(by_role(self.outer, m=row))

    def further(self, read: Read, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...], bool]:
        groups = {"m": self.contraction.m, "n": self.contraction.n}
        view = self.views[read.tensor]
        roles = viewed(self.task.workload, self.contraction, read, groups)
        assert roles == view.roles
        values = by_role(self.outer, m=row)
        has_columns = "n" in view.roles
        return view.buffer, tuple(values[role] for role in view.roles if role != "n"), has_columns
