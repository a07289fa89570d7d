"""Elementwise stages put into the stages that read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tuner.program.language.expr import Axis, Cast, Expr, Extent, Read, reads, rebuild, walk
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


def with_producers(workload: Workload, stage: Stage) -> tuple[Stage, frozenset[str]]:
    """A stage with the elementwise stages put into it that it alone reads, and the names of these.

    What ``inlined`` could not put into its readers stays, and so does everything where the stage would grow too long.
    """
    stages, whole = workload.program.stages, {*workload.program.outputs, *dict(workload.padding)}
    whole |= {read.tensor for read in workload.program.reads if any(isinstance(index, Read) for index in read.indices)}
    taken = {stage.tensor}
    for other in reversed(stages[: stages.index(stage)]):
        readers = {each.tensor for each in stages if any(read.tensor == other.tensor for read in reads(each.body))}
        if readers and readers <= taken and not other.reducer and other.tensor not in whole:
            taken.add(other.tensor)
    bodies: dict[str, Stage] = {}
    for each in (each for each in stages if each.tensor in taken):
        body = rebuild(each.body, lambda node: substituted(node, bodies, workload))
        # Counted at each link: a chain that reads each stage twice doubles with every one.
        if node_count(body) > MAX_NODES:
            return stage, frozenset()
        bodies[each.tensor] = replace(each, body=body)
    return bodies[stage.tensor], frozenset(taken - {stage.tensor})


def substituted(node: Expr, bodies: Mapping[str, Stage], workload: Workload) -> Expr:
    """A read of an earlier stage as that stage's own expression, at the indices of the read, in the stage's dtype."""
    if not isinstance(node, Read) or node.tensor not in bodies:
        return node
    stage = bodies[node.tensor]
    body = _at(stage.body, dict(zip(stage.axes, node.indices, strict=True)))
    dtype = workload.tensors[node.tensor].dtype
    computed = workload.element_types.type_of(workload.program.stage[node.tensor].body)
    return body if computed == dtype else Cast(body, dtype)


def _at(body: Expr, index: Mapping[str, Expr]) -> Expr:
    """``body`` with an index in the place of each axis. A value that was an axis is an int64, also where the index is a
    number, which alone would be an int32: sums and shifts would wrap around."""

    def change(node: Expr) -> Expr:
        match node:
            case Axis(name=name):
                place = index[name]
                return place if any(isinstance(each, Axis | Extent) for each in walk(place)) else Cast(place, "int64")
            case Read(indices=indices):
                return replace(node, indices=tuple(rebuild(each, _uncast) for each in indices))
            case _:
                return node

    return rebuild(body, change)


def _uncast(node: Expr) -> Expr:
    """Inside an index, which has no casts of its own."""
    return node.operand if isinstance(node, Cast) else node


def node_count(expr: Expr) -> int:
    """How many nodes an expression has."""
    return sum(1 for _ in walk(expr))
