"""Where the products of a chain find their operands: inputs, packed weights, and what is kept of the intermediate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.memory import DTYPE, workspace


@dataclass(frozen=True)
class Kept:
    """Room for a block of the intermediates, which have so many ``rows``: ``memory``, by tensor, of ``width`` elements
    in a row."""

    memory: Mapping[str, TirExpr]
    rows: TirExpr
    width: int

    def at(self, row: TirExpr, column: TirExpr) -> Mapping[str, TirExpr]:
        """By tensor a window on it: the block that begins there has its place in memory, others have none.

        So the code of a product looks at rows and columns of the whole intermediate, wherever these are kept.
        """
        before = bound(row * i64(self.width) + column)
        return {
            name: I.decl_buffer((self.rows, i64(self.width)), DTYPE, data=data.data, elem_offset=i64(0) - before)
            for name, data in self.memory.items()
        }


@contextmanager
def kept(tensors: Sequence[str], rows: TirExpr, most: int, width: int) -> Iterator[Kept]:
    """Room for ``most`` of the ``rows`` of each tensor."""
    room = tirx.max(tirx.min(i64(most), rows), i64(1))
    with ExitStack() as stack:
        memory = {name: stack.enter_context(workspace((room, i64(width)))) for name in tensors}
        yield Kept(memory, rows, width)
