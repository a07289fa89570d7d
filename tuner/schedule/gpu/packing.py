"""Constants that are a side of a product, laid out as matrices before all calls."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tuner.program.language.expr import Read
from tuner.schedule.gpu.contraction import Contraction
from tuner.schedule.gpu.module import Pack
from tuner.schedule.gpu.tiling import Tiling
from tuner.schedule.product.match.factors import dims_of


def packs_of(product: Contraction, tiling: Tiling) -> Iterator[Pack]:
    """How the constants are packed that are a side of the product and read nowhere else; none where they stay as they
    are."""
    if not tiling.pack or product.index or product.outer or product.whole:
        return
    for own, expr in ((product.m, product.left), (product.n, product.right)):
        if not isinstance(expr, Read) or expr.tensor not in product.workload.constants:
            continue
        names = [name for dim in dims_of(product.workload, product.parts, expr) or () for name in dim]
        is_read_once = sum(read.tensor == expr.tensor for read in product.workload.program.reads) == 1
        wanted = [*own, *product.k] if tiling.pack == "nk" else [*product.k, *own]
        sizes = {name: product.parts[name].extent.constant for name in names}
        if not is_read_once or sorted(names) != sorted(wanted) or None in sizes.values():
            continue
        rows, steps = (math.prod(sizes[name] or 0 for name in group) for group in (own, product.k))
        matrix = (rows, steps) if tiling.pack == "nk" else (steps, rows)
        order = tuple(names.index(name) for name in wanted)
        yield Pack(expr.tensor, tuple(sizes[name] or 0 for name in names), order, matrix)
