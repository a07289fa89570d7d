"""A product as the loops around the register tile and their theory see it: ``out[m, n] = sum(k) left * right``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tuner.program.dtypes import DTYPES
from tuner.program.notation import Stage
from tuner.program.target import Hardware
from tuner.schedule.intrinsics import DotProduct
from tuner.schedule.rule import Extents
from tuner.schedule.space import MicroKernel

DTYPE = "float32"
TOTAL_BYTES = 4
UNSUPPORTED = frozenset(name for name, dtype in DTYPES.items() if dtype.bytes > TOTAL_BYTES or dtype.kind == "b")
"""Dtypes that no tensor of the workload may have: wider than a lane of the accumulators, or bool."""


class Product(Protocol):
    """What the loops and the theory ask of a contraction, whatever its operands are."""

    @property
    def batch(self) -> str | None:
        """Something if there is a batch."""

    @property
    def right_is_kn(self) -> bool:
        """Whether the right operand lies along n."""

    @property
    def right_is_constant(self) -> bool:
        """Whether it is packed ahead of time."""

    @property
    def pack_of_dots(self) -> int | None:
        """The choice of ``pack`` by which vectors run along the axis that is summed over, as both operands do; None
        where they do not."""

    @property
    def epilogue(self) -> tuple[Stage, ...]:
        """The elementwise stages that results go through on their way to the output."""

    @property
    def dynamic(self) -> frozenset[str]:
        """The roles whose extents are symbols."""

    @property
    def left_dtype(self) -> str:
        """Of the left operand in memory."""

    @property
    def right_dtype(self) -> str:
        """Of the right one."""

    def dots(self, hardware: Hardware) -> Mapping[int, DotProduct]:
        """The instructions that there are for it, by their group."""

    def by_role(self, extents: Extents) -> Extents:
        """Extents of the program's axes by their roles here."""


def group_of(kernel: MicroKernel) -> int:
    """Elements of k in a step of a kernel."""
    return kernel.get("group")


def panels_of_strip(kernel: MicroKernel) -> int:
    """Panels that a tile of rows goes over before the next tile; 1 where the kernel's rule has no such axis."""
    return kernel.get("nb")


def holds_partial(dtype: str) -> bool:
    """Whether a partial sum can be stored, bit by bit, in an output of that dtype."""
    return DTYPES[dtype].bytes == TOTAL_BYTES
