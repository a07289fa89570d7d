"""An instruction that multiplies and adds, an entry of the table in ``atoms``, and the words that it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tuner.program.target import Hardware
from tuner.program.target.rates import Rates
from tuner.program.target.tiles import REFUSED
from tuner.schedule.tir import I, TirExpr, i64, tirx, tvm
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import cast, constant, element_type, lanes_of, loaded, vector_type
from tuner.schedule.vector.memory import Vectors

SIGN, SIGNS = -128, 0x80808080 - 2**32
"""Add 128 to a byte, and to each byte of a word, where it is flipped."""

NEEDS_TILES = (
    f"{REFUSED}, which this library needs: allow it (seccomp, Linux 5.16 or later), or build it for a target without "
    "them, as icelake-server"
)

AddProducts = Callable[[TirExpr, TirExpr, TirExpr], TirExpr]
"""From a vector of totals, and the words of both operands in each lane, to the totals after that step."""


@dataclass(frozen=True, slots=True)
class MatrixUnit:
    """Registers that hold tiles of a matrix, and the statements that use them.

    ``columns`` of a tile of totals: a divisor of the lanes of a vector. ``cycles`` from one multiplication to the next.
    ``load(register, pointer, stride)`` and ``store`` move a tile whose rows are ``stride`` bytes apart;
    ``multiply(total, left, right)`` adds a product of tiles to a tile of totals. ``refused`` asks for the registers: it
    is not 0 if the process may not use them; None: any may. ``begin`` and ``end`` are written around all that a thread
    does with the registers.
    """

    columns: int
    registers: int
    cycles: float
    zero: Callable[[int], TirExpr]
    load: Callable[[int, TirExpr, TirExpr], TirExpr]
    store: Callable[[int, TirExpr, TirExpr], TirExpr]
    multiply: Callable[[int, int, int], TirExpr]
    refused: Callable[[], TirExpr] | None = None
    begin: Callable[[], Sequence[TirExpr]] = tuple
    end: Callable[[], Sequence[TirExpr]] = tuple


@dataclass(frozen=True, slots=True, eq=False)
class Atom:
    """``group``: neighbouring elements of the sum that are one word of a step, 32 bits in a register; ``steps``: words
    that are multiplied at once, a divisor of the lanes of a vector.

    ``element``: the dtype of an element in the registers that the instruction takes; ``widened``: by dtype of a tensor
    the operations that make such elements of its own. ``needs``: by the bytes of a vector the features without which
    there is no such instruction, no entry for vectors that it does not have; empty: any vectors. ``add`` and
    ``operations``, of vectors for each step, are an instruction's of vectors; others have a ``unit``. ``offset`` is
    added to every element of the left operand, and taken from the total again: instructions that want it without sign,
    or with one. ``is_swapped``: what it calls left and right are the program's right and left operand. ``code``: LLVM's
    of functions that it calls.
    """

    name: str
    left: frozenset[str]
    right: frozenset[str]
    total: str
    group: int
    element: str
    needs: Mapping[int, str] = field(default_factory=dict)
    add: AddProducts | None = None
    offset: int = 0
    operations: int = 1
    widened: Mapping[str, float] = field(default_factory=dict)
    is_swapped: bool = False
    rows: int = 1
    steps: int = 1
    unit: MatrixUnit | None = None
    code: str = ""

    @property
    def depth(self) -> int:
        """Elements of k that are multiplied at once: by these a product chooses among instructions."""
        return self.group * self.steps

    def unit_cycles(self, rates: Rates, hardware: Hardware) -> float:
        """From one multiplication of tiles to the next; 0 of an instruction of vectors."""
        if self.unit is None:
            return 0.0
        measured = rates.of_instruction(self.name)
        return self.unit.cycles if measured is None else measured / rates.fma_per_cycle(hardware)

    @property
    def is_along_k(self) -> bool:
        """Whether it takes words of both operands as they lie along k (dots.py): nothing is added to either."""
        return self.unit is None and not self.offset and self.total == "float32"

    def is_on(self, hardware: Hardware) -> bool:
        return not self.needs or self.needs.get(hardware.vector_bytes) in hardware.features

    def products(self, total: TirExpr, left: TirExpr, right: TirExpr) -> TirExpr:
        """``total`` after one step. ``left``: its word in every lane; ``right``: the words of all lanes, of elements as
        the instruction takes them."""
        assert self.add is not None
        if self.group > 1:
            left = tirx.reinterpret(vector_type(self.element, lanes_of(total) * self.group), left)
        return self.add(total, right, left) if self.is_swapped else self.add(total, left, right)


def registers_of(atom: Atom, lanes: int, rows: int, vectors: int) -> tuple[int, int, int]:
    """How many tiles of totals a register tile in a matrix unit has down and across, and the least registers for it."""
    assert atom.unit is not None
    down, across = -(-rows // atom.rows), vectors * lanes // atom.unit.columns
    return down, across, down * across + down + 1


@contextmanager
def imported(atom: Atom) -> Iterator[None]:
    """What is written inside may call the functions of ``code``."""
    if not atom.code:
        yield
        return
    with I.attr(tirx.IntImm("int32", 0), "pragma_import_llvm", tvm.ir.StringImm(atom.code)):
        yield


@contextmanager
def allowed(atom: Atom) -> Iterator[None]:
    """What is written inside may use the instruction: a kernel fails before it where the process may not use the
    registers of a matrix unit."""
    with imported(atom):
        if atom.unit is None or atom.unit.refused is None:
            yield
            return
        with I.Assert(atom.unit.refused() == tirx.IntImm("int32", 0), NEEDS_TILES):
            yield


@contextmanager
def configured(atom: Atom) -> Iterator[None]:
    """All that a thread does with the registers of a matrix unit is written inside; of other instructions anything."""
    for statement in atom.unit.begin() if atom.unit else ():
        I.evaluate(statement)
    yield
    for statement in atom.unit.end() if atom.unit else ():
        I.evaluate(statement)


class Words:
    """What one step of k takes of operands of dtypes ``left`` and ``right`` for ``atom``: a word of ``group``
    neighbouring elements. In a register a word is a float32, or 32 bits of an int32.

    ``register``: the dtype of a word of the left operand once it is loaded; ``width``: elements in a vector of words.
    ``compensation``: steps in front of a packed panel, one with what totals start from or none; ``row_compensation``:
    steps in front of a packed row, where the offset is added to the right operand.
    """

    def __init__(self, atom: Atom, left: str, right: str, vectors: Vectors) -> None:
        self.atom, self.left, self.right, self.vectors = atom, left, right, vectors
        self.register = "float32" if atom.group == 1 else "int32"
        self.width = vectors.lanes * atom.group
        steps = 1 if atom.offset else 0
        self.compensation, self.row_compensation = (0, steps) if atom.is_swapped else (steps, 0)

    def start(self, before: TirExpr | None) -> TirExpr:
        """The initial totals: zero, or ``before``, what stands in front of a panel, or of a row in every lane."""
        if before is None:
            return constant(0, self.atom.total, self.vectors.lanes)
        if self.row_compensation:
            return tirx.Broadcast(tirx.reinterpret(self.atom.total, before), self.vectors.lanes)
        return tirx.reinterpret(vector_type(self.atom.total, self.vectors.lanes), before)

    def taken(self, elements: TirExpr, dtype: str, is_shifted: int = 0) -> TirExpr:
        """Elements that were loaded from a tensor of ``dtype`` as the instruction takes them: float32 where each is a
        step; with its offset if they are what it is added to."""
        if self.atom.group == 1:
            value = loaded(elements, dtype)
            return value if element_type(value) == self.register else cast(bound(value), self.register)
        wanted, lanes = self.atom.element, lanes_of(elements)
        value = elements if element_type(elements) == wanted else tirx.Cast(vector_type(wanted, lanes), elements)
        return tirx.bitwise_xor(value, constant(SIGN, wanted, lanes)) if is_shifted else value

    # -- the left operand -----------------------------------------------------------------------------------------
    def of_row(
        self, buffer: TirExpr, place: Sequence[TirExpr], step: TirExpr, count: int = 1, limit: TirExpr | None = None
    ) -> TirExpr:
        """``count`` words of a row from ``step`` on; elements at and past ``limit`` are not touched and count as 0."""
        group, number = self.atom.group, count * self.atom.group
        first = step * i64(group)
        elements = buffer[(*place, first)] if number == 1 else Vectors(number).load(buffer, place, first, limit)
        if group == 1:
            return self.taken(elements, self.left)
        elements = bound(elements)
        if self.atom.element == "int16":
            elements = tirx.Cast(vector_type("int16", number), elements)
        word = tirx.reinterpret(vector_type("int32", count), elements)
        return tirx.bitwise_xor(word, constant(SIGNS, "int32", count)) if self.compensation else word

    # -- the right operand ----------------------------------------------------------------------------------------
    def of_columns(self, neighbours: Sequence[TirExpr]) -> TirExpr:
        """Vectors of columns at the neighbours in k of a word, as they are stored, side by side."""
        group, lanes = self.atom.group, self.vectors.lanes
        if group == 1:
            return self.taken(neighbours[0], self.right)
        parts = [I.Bind(self.taken(each, self.right, self.row_compensation)) for each in neighbours]
        order = [j * lanes + lane for lane in range(lanes) for j in range(group)]
        return tirx.Shuffle(parts, [tirx.IntImm("int32", lane) for lane in order])

    def of_column(self, elements: TirExpr) -> TirExpr:
        """A vector of words along k of one column, as it is stored: 32 bits in each lane."""
        if self.atom.group == 1:
            return self.taken(elements, self.right)
        elements = self.taken(I.Bind(elements), self.right, self.row_compensation)
        return tirx.reinterpret(vector_type("int32", self.vectors.lanes), elements)
