"""Every operator of the catalogue, with sizes that are small, ragged and known only at run time where they may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tuner.program.catalogue import OPS
from tuner.program.job.build import make_workload
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.language.workload import Workload
from tuner.program.target import Target

RANGES = {"B": range(1, 5), "S": range(1, 151), "T": range(1, 65)}


def op_task(
    op: str, target: Target | str = "native", threads: int = 1, epilogue: Sequence[str] = (), dtype: str = "float32"
) -> SearchTask:
    """A search of an operator's example over RANGES."""
    workload = make_workload(op, OPS[op].example, dtype, epilogue)
    variables = [ShapeVar(name, RANGES[name]) for name in sorted(workload.variables)]
    return SearchTask(workload, shape_vars=variables, target=target, threads=threads)


def ragged_shapes(
    workload: Workload, count: int, seed: int = 0, most: Mapping[str, int] | None = None
) -> Iterator[dict[str, int]]:
    """Values of the symbols for ``count`` shapes, those of 0 and of 1 first; beyond RANGES, too."""
    names, rng = sorted(workload.variables), np.random.default_rng(seed)
    limits = most or {name: 2 * RANGES[name].stop for name in names}
    drawn: list[dict[str, int]] = [dict.fromkeys(names, 0), dict.fromkeys(names, 1)]
    while count > 0:
        shape = drawn.pop(0) if drawn else {name: _size(rng, limits[name]) for name in names}
        dims = workload.dims(shape)
        if min(dims.values()) >= 0 and workload.is_consistent(dims):
            yield dims
            count -= 1


def _size(rng: np.random.Generator, most: int) -> int:
    """0 or 1 now and then, and small ones as likely as large ones."""
    return int(rng.choice([0, 1, int(rng.integers(0, most)), int(most ** rng.random())]))
