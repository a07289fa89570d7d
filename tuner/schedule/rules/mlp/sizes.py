"""The kernels of a chain's products, and how much of the intermediate is kept. No compiler needed."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.schedule.rules.mlp.pattern import Chain
from tuner.schedule.space import MicroKernel

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
    """What x86_contraction would call the kernel of each product, in the order of the links."""
    of = dict(kernel.values)
    for link in chain.links:
        is_second = link is chain.second
        own = {"nv": of["ev" if is_second else "nv"], "kc": of["fb" if is_second else "kc"]}
        own |= {"rows": 0, "fetch": of["fetch"]} if is_second else {"rows": of["rows"], "fetch": 0}
        own |= {"edge": 0, "pack": 0 if link.right_is_constant else 2, "tb": 1}
        shared = {name: of[name] for name in ("mr", "mb", "ku", "near", "ahead", "tail", "tn")}
        yield MicroKernel(kernel.rule, kernel.rule_version, tuple({**shared, **own}.items()))
