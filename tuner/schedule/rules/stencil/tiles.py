"""A tile of the output, and the vectors that it is computed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.program.task import SearchTask
from tuner.schedule.rules.stencil.pattern import window_program_of
from tuner.schedule.tir import TirExpr


@dataclass(frozen=True)
class Tile:
    """``starts``: the index of every axis of the output at the tile's first element; ``sizes``: how many values the
    axes take that the tile spans, less than a whole tile at the ends."""

    starts: Mapping[str, TirExpr]
    sizes: Mapping[str, TirExpr]


def lanes_of(task: SearchTask) -> int:
    """Elements of a vector: of 8 bytes if the reduction or what is made of it has such."""
    program, types = window_program_of(task.workload), task.workload.element_types
    computed = [types.reduced_type(program.stage), *(types.type_of(stage.body) for stage in program.after)]
    computed.append(task.workload.tensors[program.read.tensor].dtype)
    is_wide = any(dtype in ("int64", "float64") for dtype in computed)
    return task.known_target.hardware.lanes(8 if is_wide else 4)
