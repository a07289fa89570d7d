"""A product as the loops around the register tile and their theory see it: ``out[m, n] = sum(k) left * right``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tuner.program.dtypes import DTYPES
from tuner.program.target import Hardware
from tuner.schedule.product.atom import Atom
from tuner.schedule.product.operand import Left, Result, Right
from tuner.schedule.rule import Extents

DTYPE = "float32"
TOTAL_BYTES = 4
UNSUPPORTED = frozenset(name for name, dtype in DTYPES.items() if dtype.bytes > TOTAL_BYTES or dtype.kind == "b")
"""Dtypes that no tensor of the workload may have: wider than a lane of the accumulators, or bool."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Product:
    """``out[m, n] = sum(k) left[m, k] * right[n, k]``, then elementwise stages; or a batch of such products.

    ``axes``: the program's axis of each role, where it is one; ``sizes``: from the extents of the program's axes to
    those of the roles, where these are not one axis each. ``dynamic``: the roles whose extents are symbols; ``depth``:
    the extent of k, None where it is dynamic. ``atoms``: the instructions that there are for it, by their depth.
    ``pack_of_dots``: the choice of ``pack`` by which vectors run along the axis that is summed over, as both operands
    do; None where they do not. ``is_by_panel``: whether a panel goes through all chunks of k before the next one, where
    rows are read as they lie.
    """

    axes: Mapping[str, str]
    left: Left
    right: Right
    result: Result
    dynamic: frozenset[str]
    depth: int | None
    atoms: Callable[[Hardware], Mapping[int, Atom]]
    has_batch: bool = False
    sizes: Callable[[Extents], Extents] | None = None
    pack_of_dots: int | None = None
    is_by_panel: bool = False

    def by_role(self, extents: Extents) -> Extents:
        """Extents of the program's axes by their roles here."""
        return {role: extents[axis] for role, axis in self.axes.items()} if self.sizes is None else self.sizes(extents)


def can_hold_partial(dtype: str) -> bool:
    """Whether a partial sum can be stored, bit by bit, in an output of that dtype."""
    return DTYPES[dtype].bytes == TOTAL_BYTES
