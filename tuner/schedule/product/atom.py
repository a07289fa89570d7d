"""An instruction that multiplies and adds, as the engine sees it: an entry of the table in ``atoms``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tuner.program.target import Hardware
from tuner.schedule.tir import I, TirExpr, tirx, tvm
from tuner.schedule.vector.dtypes import lanes_of, vector_type

AddProducts = Callable[[TirExpr, TirExpr, TirExpr], TirExpr]
"""From a vector of totals, and the words of both operands in each lane, to the totals after that step."""


@dataclass(frozen=True, slots=True)
class MatrixUnit:
    """Registers that hold tiles of a matrix, and the statements that use them.

    ``load(register, pointer, stride)`` and ``store`` move a tile whose rows are ``stride`` bytes apart;
    ``multiply(total, left, right)`` adds a product of tiles to a tile of totals. ``begin`` and ``end`` are written
    around all that a thread does with the registers.
    """

    columns: int
    """Of a tile of totals: a divisor of the lanes of a vector."""
    registers: int
    cycles: float
    """From one multiplication to the next."""
    zero: Callable[[int], TirExpr]
    load: Callable[[int, TirExpr, TirExpr], TirExpr]
    store: Callable[[int, TirExpr, TirExpr], TirExpr]
    multiply: Callable[[int, int, int], TirExpr]
    begin: Callable[[], Sequence[TirExpr]] = tuple
    end: Callable[[], Sequence[TirExpr]] = tuple


@dataclass(frozen=True, slots=True, eq=False)
class Atom:
    """``group``: neighbouring elements of the sum that are one word of a step, 32 bits in a register.

    ``needs``: by the bytes of a vector the features without which there is no such instruction, no entry for vectors
    that it does not have; empty: any vectors. ``element``: the dtype of an element in the registers that the
    instruction takes. ``offset`` is added to every element of the left operand, and taken from the total again:
    instructions that want it without sign, or with one.
    """

    name: str
    left: frozenset[str]
    right: frozenset[str]
    total: str
    group: int
    element: str
    needs: Mapping[int, str] = field(default_factory=dict)
    add: AddProducts | None = None
    """Of an instruction of vectors."""
    offset: int = 0
    operations: int = 1
    """Vector operations for each step."""
    widened: Mapping[str, float] = field(default_factory=dict)
    """By dtype of a tensor the operations that make of its elements what the instruction takes."""
    is_swapped: bool = False
    """Whether what it calls left and right are the program's right and left operand."""
    rows: int = 1
    steps: int = 1
    """Words of k that are multiplied at once: a divisor of the lanes of a vector."""
    unit: MatrixUnit | None = None
    code: str = ""
    """LLVM's code of functions that it calls."""

    @property
    def depth(self) -> int:
        """Elements of k that are multiplied at once: by these a product chooses among instructions."""
        return self.group * self.steps

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
    """What is written inside may use the instruction."""
    if not atom.code:
        yield
        return
    with I.attr(tirx.IntImm("int32", 0), "pragma_import_llvm", tvm.ir.StringImm(atom.code)):
        yield
