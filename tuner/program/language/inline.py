"""Elementwise stages put into the stages that read them."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.program.language.expr import Axis, Cast, Expr, Read, rebuild, walk
from tuner.program.language.notation import Stage
from tuner.program.language.program import Program
from tuner.program.language.workload import Workload

MAX_NODES = 1000
"""Expression nodes of one stage: a chain that reads each stage several times grows with every link."""


def inlined(workload: Workload) -> Program | None:
    """The program with every intermediate put into its readers: one stage for each output, over inputs alone.

    None where that cannot be: where an intermediate is a reduction, is read outside its bounds or through an index
    tensor (whose elements are clamped to the intermediate's dims), or the stages grow beyond MAX_NODES. An output that
    another stage reads stays, and is computed again there.
    """
    padded = dict(workload.padding)
    for read in workload.program.reads:
        if read.tensor in workload.program.stage and any(isinstance(index, Read) for index in read.indices):
            return None
    bodies: dict[str, Stage] = {}
    for stage in workload.program.stages:
        if stage.reducer or stage.tensor in padded:
            return None
        body = rebuild(stage.body, lambda node: substituted(node, bodies, workload))
        if node_count(body) > MAX_NODES:
            return None
        bodies[stage.tensor] = Stage(stage.tensor, stage.axes, body)
    return Program.of([bodies[name] for name in workload.program.outputs])


def substituted(node: Expr, bodies: Mapping[str, Stage], workload: Workload) -> Expr:
    """A read of an earlier stage as that stage's own expression, at the indices of the read, in the stage's dtype."""
    if not isinstance(node, Read) or node.tensor not in bodies:
        return node
    stage = bodies[node.tensor]
    index = dict(zip(stage.axes, node.indices, strict=True))
    body = rebuild(stage.body, lambda inner: index[inner.name] if isinstance(inner, Axis) else inner)
    dtype = workload.tensors[node.tensor].dtype
    computed = workload.element_types.type_of(workload.program.stage[node.tensor].body)
    return body if computed == dtype else Cast(body, dtype)


def node_count(expr: Expr) -> int:
    """How many nodes an expression has."""
    return sum(1 for _ in walk(expr))
