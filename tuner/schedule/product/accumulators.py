"""The totals of a register tile while they are added up, as the tile sees them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from tuner.schedule.tir import TirExpr

if TYPE_CHECKING:
    from tuner.schedule.product.tile import Tile

Use = Callable[[TirExpr, TirExpr, TirExpr], None]
"""Writes what becomes of a vector of totals, of that row and that vector of a tile."""


class Accumulators(ABC):
    """The totals of ``tile``."""

    is_unrolled: ClassVar[bool]
    """Whether ``each`` writes code for each vector."""

    def __init__(self, tile: Tile) -> None:
        self.tile = tile

    @abstractmethod
    def clear(self) -> None:
        """Begin with zero, or with what compensates an offset."""

    @abstractmethod
    def resume(self) -> None:
        """Begin with ``Tile.partial``."""

    @abstractmethod
    def reduce(self, ordinal: TirExpr) -> None:
        """Add all products of the tile's chunk of k. ``ordinal``: see ``Tile.emit``."""

    @abstractmethod
    def each(self, use: Use) -> None:
        """Every vector of the tile's valid rows."""
