"""Where the elements of a contraction of any form stand: views of tensors, and indices of parts. Imports TVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as I  # noqa: N812

from tuner.program.expr import Read
from tuner.rules.function import KernelFunction
from tuner.rules.intrinsics import FMA
from tuner.rules.signature import i64
from tuner.rules.vector.memory import DTYPE
from tuner.rules.x86_contraction.frame import Frame
from tuner.rules.x86_contraction.words import Words
from tuner.rules.x86_gathered.pattern import Form, viewed

Expr = Any
Values = Mapping[str, Expr]
"""Values of parts, or of whole groups, by name."""


@dataclass(frozen=True)
class View:
    """A tensor with dims merged: one for each of ``roles``."""

    buffer: Expr
    roles: tuple[str, ...]

    def outer(self, values: Values) -> tuple[Expr, ...]:
        """The indices of all dims but the last."""
        return tuple(values[role] for role in self.roles[:-1])


@dataclass(frozen=True)
class FormFrame(Frame):
    """``views`` by tensor; ``outer``: the values of the outer parts here; ``results``: the buffer that tiles are
    written to where the output is not, and the row of the output that its first one is."""

    contraction: Form
    function: KernelFunction = field(kw_only=True)
    views: dict[str, View] = field(kw_only=True, default_factory=dict)
    outer: Values = field(kw_only=True, default_factory=dict)
    results: tuple[Expr, Expr] | None = field(kw_only=True, default=None)

    @property
    def words(self) -> Words:
        return Words(FMA, self.contraction.left_dtype, self.contraction.right_dtype, self.vectors)

    @property
    def out_dtype(self) -> str:
        return DTYPE if self.results is not None else self.contraction.out_dtype

    def at(self, *batch: Expr) -> FormFrame:
        return replace(self, batch=batch, outer=self.decomposed(self.contraction.outer, batch[0]))

    # -- parts ------------------------------------------------------------------------------------------------------
    def size(self, name: str) -> Expr:
        """The extent of a part."""
        part = self.contraction.parts[name]
        return self.function.extents[part.axis] if part.extent.constant is None else i64(part.extent.constant)

    def divisor(self, name: str) -> Expr:
        """The same for divisions, which must not fail where there is nothing to divide."""
        return tirx.max(self.size(name), i64(1))

    def decomposed(self, names: Sequence[str], flat: Expr) -> dict[str, Expr]:
        """The values of the parts of a group at one value of its flattened index, 0 or more."""
        values: dict[str, Expr] = {}
        for name in reversed(names[1:]):
            values[name] = I.Bind(tirx.truncmod(flat, self.divisor(name)))
            flat = I.Bind(tirx.truncdiv(flat, self.divisor(name)))
        return {**values, names[0]: flat} if names else {}

    def index(self, values: Values) -> dict[str, Expr]:
        """The values of the program's axes; 0 for parts that are not given."""
        result: dict[str, Expr] = {}
        for name, part in self.contraction.parts.items():
            own = values.get(name, i64(0)) * i64(part.step) if part.step != 1 else values.get(name, i64(0))
            result[part.axis] = result[part.axis] + own if part.axis in result else own
        return result

    @contextmanager
    def runs(self, names: Sequence[str], first: Expr, length: Expr) -> Iterator[tuple[Values, Expr, Expr, Expr]]:
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

    # -- operands ---------------------------------------------------------------------------------------------------
    def left_row(self, row: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        operand = self.contraction.left
        if operand.kind == "packed":
            return self.buffers[operand.tensor], (self._packed_batch(operand.roles) * self.extent["m"] + row,)
        view = self.views[f"{operand.tensor} left"]
        return view.buffer, view.outer({**self.outer, "m": row})

    def right_step(self, step: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        view = self.views[f"{self.contraction.right.tensor} right"]
        return view.buffer, view.outer({**self.outer, "k": step, "n": step})

    @property
    def packed_right(self) -> Expr:
        return self.buffers[self.contraction.right.tensor]

    @property
    def first_panel(self) -> Expr | None:
        operand = self.contraction.right
        if operand.kind != "packed" or len(operand.roles) == 2:
            return None
        panels = tirx.floordiv(self.extent["n"] + i64(self.nr - 1), i64(self.nr))
        return self._packed_batch(operand.roles) * panels

    def _packed_batch(self, roles: tuple[str, ...]) -> Expr:
        """The flattened index of a packed operand's outer parts."""
        flat: Expr = i64(0)
        for name in roles[:-2]:
            flat = flat * self.size(name) + self.outer[name]
        return flat

    # -- results ----------------------------------------------------------------------------------------------------
    def out_row(self, row: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        if self.results is not None:
            buffer, first = self.results
            return buffer, (row - first,)
        view = self.views["out"]
        return view.buffer, view.outer({**self.outer, "m": row})

    def further(self, read: Read, row: Expr) -> tuple[Expr, tuple[Expr, ...], bool]:
        groups = {"m": self.contraction.m, "n": self.contraction.n}
        view = self.views[read.tensor]
        roles = viewed(self.task.workload, self.contraction, read, groups)
        assert roles == view.roles
        values = {**self.outer, "m": row}
        has_columns = "n" in view.roles
        return view.buffer, tuple(values[role] for role in view.roles if role != "n"), has_columns
