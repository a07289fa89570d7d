"""Where elements stand whose axes are grouped to m, n and k: views of tensors, and indices of parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tuner.program.workload import Workload
from tuner.schedule.function import KernelFunction
from tuner.schedule.product.match.parts import outer_role
from tuner.schedule.signature import dim_expr, i64
from tuner.schedule.tir import I, TirExpr, tirx

if TYPE_CHECKING:
    from tuner.schedule.product.match.form import Form

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
class Indexing:
    """The parts of the axes of ``form`` in one function. ``views``: by tensor, and by its place in the product, tensors
    with dims merged to groups. ``workload``: of the form, which may be a phase of ``whole``."""

    form: Form
    function: KernelFunction
    workload: Workload
    whole: Workload
    views: dict[str, View] = field(default_factory=dict)

    def size(self, name: str) -> TirExpr:
        """The extent of a part."""
        part = self.form.parts[name]
        if part.extent.constant is None and self.form.phase is not None:
            return dim_expr(part.extent, self.function.symbols)
        return self.function.extents[part.axis] if part.extent.constant is None else i64(part.extent.constant)

    def divisor(self, name: str) -> TirExpr:
        """The same for divisions, which must not fail where there is nothing to divide."""
        return tirx.max(self.size(name), i64(1))

    def sizes_of(self, tensor: str) -> list[TirExpr]:
        """The sizes of a tensor's dims."""
        return [dim_expr(dim, self.function.symbols) for dim in self.workload.tensors[tensor].dims]

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
        for name, part in self.form.parts.items():
            own = values.get(name, i64(0)) * i64(part.step) if part.step != 1 else values.get(name, i64(0))
            result[part.axis] = result[part.axis] + own if part.axis in result else own
        return result

    def index_of_result(self, values: Values) -> dict[str, TirExpr]:
        """The same of a result: of a phase, where it is in the whole output."""
        index = self.index(values)
        for places in self.form.phase.places if self.form.phase is not None else ():
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
