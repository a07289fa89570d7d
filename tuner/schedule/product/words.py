"""What one step of k takes of each operand: a word of ``group`` neighbouring elements."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.schedule.product.atom import Atom
from tuner.schedule.signature import i64
from tuner.schedule.tir import TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import cast, constant, element_type, lanes_of, loaded, stored_type, vector_type
from tuner.schedule.vector.memory import Vectors

SIGNS = 0x80808080 - 2**32
"""Adds 128 to each byte of a word."""


@dataclass(frozen=True)
class Words:
    """Operands of dtypes ``left`` and ``right`` as ``atom`` takes them. In a register a word is a float32, or 32 bits
    of an int32."""

    atom: Atom
    left: str
    right: str
    vectors: Vectors

    @property
    def register(self) -> str:
        """The dtype of a word of the left operand once it is loaded: that of rows that are packed at the call."""
        return "float32" if self.atom.group == 1 else "int32"

    @property
    def width(self) -> int:
        """Elements in a vector of words."""
        return self.vectors.lanes * self.atom.group

    @property
    def head(self) -> int:
        """Steps in front of a packed panel: one with what totals start from."""
        return 1 if self.atom.offset and not self.atom.is_swapped else 0

    @property
    def row_head(self) -> int:
        """The same of a packed row of the left operand, where the offset is added to the right one."""
        return 1 if self.atom.offset and self.atom.is_swapped else 0

    def element(self, value: TirExpr, dtype: str) -> TirExpr:
        """Elements that were loaded from a tensor of ``dtype``, where each is a step: as float32."""
        value = loaded(value, dtype)
        return value if element_type(value) == self.register else cast(bound(value), self.register)

    # -- the left operand -------------------------------------------------------------------------------------------
    def left_word(
        self, buffer: TirExpr, place: tuple[TirExpr, ...], step: TirExpr, limit: TirExpr | None = None
    ) -> TirExpr:
        """The word of a row at one step; elements at and past ``limit`` are not touched and count as 0."""
        if self.atom.group == 1:
            return self.element(buffer[(*place, step)], self.left)
        group = Vectors(self.atom.group)
        return self._word(bound(group.load(buffer, place, step * i64(self.atom.group), limit)))

    def left_words(self, buffer: TirExpr, place: tuple[TirExpr, ...], step: TirExpr) -> TirExpr:
        """The words of a row at as many steps as a vector has lanes."""
        if self.atom.group == 1:
            return self.element(self.vectors.load(buffer, place, step, None), self.left)
        elements = Vectors(self.width).load(buffer, place, step * i64(self.atom.group), None)
        return self._word(bound(elements))

    def _word(self, elements: TirExpr) -> TirExpr:
        lanes = lanes_of(elements) // self.atom.group
        if self.atom.element == "int16":
            elements = tirx.Cast(vector_type("int16", lanes_of(elements)), elements)
        word = tirx.reinterpret(vector_type("int32", lanes), elements)
        return tirx.bitwise_xor(word, constant(SIGNS, "int32", lanes)) if self.head else word

    # -- the right operand ------------------------------------------------------------------------------------------
    def columns(self, column: int) -> TirExpr:
        """The elements of a packed step for a vector of columns from ``column`` on."""
        return tirx.Ramp(i64(column * self.atom.group), i64(1), self.width)

    def right_words(self, elements: TirExpr) -> TirExpr:
        """A vector of the packed operand as the instruction takes it."""
        if self.atom.group == 1:
            return self.element(elements, self.right)
        if self.atom.element == stored_type(self.right):
            return elements
        return tirx.Cast(vector_type(self.atom.element, self.width), elements)

    # -- totals -----------------------------------------------------------------------------------------------------
    def add(self, total: TirExpr, left: TirExpr, right: TirExpr) -> TirExpr:
        """``total`` after one step; ``left``: a word in every lane."""
        return self.atom.products(total, left, right)

    def start(self, head: TirExpr | None) -> TirExpr:
        """The initial accumulators: zero, or ``head``, what stands in front of a panel, or of a row in every lane, to
        compensate the offset."""
        if head is None:
            return constant(0, self.atom.total, self.vectors.lanes)
        if self.row_head:
            return tirx.Broadcast(tirx.reinterpret(self.atom.total, head), self.vectors.lanes)
        return tirx.reinterpret(vector_type(self.atom.total, self.vectors.lanes), head)
