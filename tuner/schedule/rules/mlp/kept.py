"""What is kept of the intermediates of a chain, and the kernels of its products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tuner.schedule.rules.mlp.pattern import Chain
from tuner.schedule.signature import i64
from tuner.schedule.space import MicroKernel
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


WHOLE_BYTES = 2**30
"""The most that is kept of the intermediates of all rows at a time."""
ELEMENT_BYTES = 4


def kept_width(columns: int, lanes: int) -> int:
    """Elements in a row of what is kept: whole vectors, rows a vector and more apart from a power of two, so that those
    of a tile do not fall on the same lines of a cache."""
    return -(-columns // lanes) * lanes + lanes


def whole_rows(products: int, width: int, mr: int) -> int:
    """Rows, in whole tiles, of which no more than WHOLE_BYTES are kept at a time."""
    return max(WHOLE_BYTES // (products * width * ELEMENT_BYTES * mr), 1) * mr


def link_kernels(chain: Chain, kernel: MicroKernel) -> Iterator[MicroKernel]:
    """What the engine calls the kernel of each product, in the order of the links."""
    of = dict(kernel.values)
    for link in chain.links:
        is_second = link is chain.second
        own = {"nv": of["ev" if is_second else "nv"], "kc": of["fb" if is_second else "kc"]}
        own |= {"rows": 0, "fetch": of["fetch"]} if is_second else {"rows": of["rows"], "fetch": 0}
        own |= {"edge": 0, "pack": 0 if link.right_is_constant else 2, "tb": 1}
        shared = {name: of[name] for name in ("mr", "mb", "ku", "near", "ahead", "tail", "tn")}
        yield MicroKernel(kernel.rule, kernel.rule_version, tuple({**shared, **own}.items()))
