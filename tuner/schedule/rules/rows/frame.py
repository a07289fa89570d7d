"""A row-wise program over common axes: those that count the rows, then those along a row. No compiler needed.

Stages may name the axes differently. Neighbouring axes along which all tensors lie alike become one axis, so that
[b, h, m, n] is walked as [b*h*m, n].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from tuner.program.language.expr import Axis, Expr, Read, axes_of, reads, rebuild
from tuner.program.language.inline import MAX_NODES, node_count, substituted
from tuner.program.language.notation import Stage
from tuner.program.language.workload import Workload
from tuner.schedule.access import reduced_order, values
from tuner.schedule.rule import Mismatch, need

Groups = tuple[tuple[int, ...], ...]
"""The dims of a tensor, those walked as one together."""


@dataclass(frozen=True)
class Frame:
    """Stages whose axes are ``rows``, with or without ``columns`` behind them; reductions are over ``columns``.

    ``parts``: the program's axes that each axis stands for, outermost first. ``groups``: by tensor.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    stages: tuple[Stage, ...]
    parts: Mapping[str, tuple[str, ...]]
    groups: Mapping[str, Groups]

    @property
    def axes(self) -> tuple[str, ...]:
        return self.rows + self.columns

    @property
    def vector(self) -> str:
        """The axis that vectors run along."""
        return self.columns[-1]

    @property
    def input_reads(self) -> list[Read]:
        """Every distinct read of a tensor that no stage defines; those inside indices left out."""
        defined = {stage.tensor for stage in self.stages}
        found = [node for stage in self.stages for node in values(stage.body) if isinstance(node, Read)]
        return list(dict.fromkeys(read for read in found if read.tensor not in defined))

    def parts_of(self, axes: Iterable[str]) -> list[str]:
        """The program's axes that some axes stand for."""
        return [part for axis in axes for part in self.parts[axis]]


def frame_of(workload: Workload) -> Frame:
    """The program over common axes. Raises Mismatch."""
    first = next((stage for stage in workload.program.stages if stage.reducer), None)
    if first is None:
        raise Mismatch("no stage is a reduction")
    rows, columns = first.axes, reduced_order(first)
    prepared = _prepared(workload, len(rows + columns))
    stages = tuple(_renamed(workload, stage, rows, columns) for stage in prepared)
    own = {stage.tensor: tuple(map(Axis, stage.axes)) for stage in stages}
    for stage in stages:
        for read in reads(stage.body):
            is_own = read.indices == own.get(read.tensor, read.indices)
            need(is_own, f"stage {stage.tensor} reads {read.tensor} at another row or column than its own")
    groups = {name: tuple((dim,) for dim in range(len(tensor.dims))) for name, tensor in workload.tensors.items()}
    return _merged(workload, Frame(rows, columns, stages, {axis: (axis,) for axis in rows + columns}, groups))


def _prepared(workload: Workload, rank: int) -> list[Stage]:
    """The stages without those that prepare inputs of another rank: they are put into their readers."""
    bodies: dict[str, Stage] = {}
    depends: set[str] = set()
    kept = []
    for stage in workload.program.stages:
        looks_up = any(read.tensor in bodies and any(map(reads, read.indices)) for read in reads(stage.body))
        need(not looks_up, f"stage {stage.tensor} looks an intermediate up by elements of a tensor")
        whole = replace(stage, body=rebuild(stage.body, lambda node: substituted(node, bodies, workload)))
        is_short = node_count(whole.body) <= MAX_NODES
        need(is_short, f"stage {stage.tensor} grows too long with those before it in it")
        if stage.reducer or any(read.tensor in depends for read in reads(whole.body)):
            depends.add(stage.tensor)
        elif stage.tensor not in workload.program.outputs and len(stage.axes) != rank:
            bodies[stage.tensor] = whole
            continue
        kept.append(whole)
    return kept


def _renamed(workload: Workload, stage: Stage, rows: tuple[str, ...], columns: tuple[str, ...]) -> Stage:
    own = (*stage.axes, *(reduced_order(stage) if stage.reducer else ()))
    common = rows + columns if stage.reducer or len(stage.axes) > len(rows) else rows
    is_over_them = len(stage.axes) in ((len(rows),) if stage.reducer else (len(rows), len(rows + columns)))
    need(is_over_them, f"stage {stage.tensor} is neither over the rows nor over rows and columns")
    is_alike = [workload.sizes[axis] for axis in own] == [workload.sizes[axis] for axis in common]
    need(is_alike, f"stage {stage.tensor} has axes of other extents than the first reduction")
    names = dict(zip(own, common, strict=True))
    body = rebuild(stage.body, lambda node: replace(node, name=names[node.name]) if isinstance(node, Axis) else node)
    return replace(stage, body=body, axes=common[: len(stage.axes)], reduce_axes=columns if stage.reducer else ())


def _merged(workload: Workload, frame: Frame) -> Frame:
    for axes in (frame.columns, frame.rows):
        for outer, inner in reversed(list(pairwise(axes))):
            places = _places(workload, frame, outer, inner)
            if places is not None:
                return _merged(workload, _with_merged(frame, outer, inner, places))
    return frame


def _places(workload: Workload, frame: Frame, outer: str, inner: str) -> dict[str, int] | None:
    """Which dim is the outer axis, by tensor that lies along both, the inner one whole behind it; None if one tensor
    lies along them otherwise."""
    bodies = [stage.body for stage in frame.stages]
    if any(isinstance(node, Axis) and node.name in (outer, inner) for body in bodies for node in values(body)):
        return None
    written = {(stage.tensor, stage.axes.index(outer) if outer in stage.axes else None) for stage in frame.stages}
    found = written | {(read.tensor, _place(read, outer, inner)) for body in bodies for read in reads(body)}
    places, whole = dict(found), [workload.sizes[axis] for axis in frame.parts[inner]]
    if len(places) < len(found) or -1 in places.values():
        return None
    result = {tensor: place for tensor, place in places.items() if place is not None}
    for tensor, place in result.items():
        if [workload.tensors[tensor].dims[dim] for dim in frame.groups[tensor][place + 1]] != whole:
            return None
    return result


def _place(read: Read, outer: str, inner: str) -> int | None:
    """Which index is ``outer``, with ``inner`` behind it; None if neither occurs, -1 if they do otherwise."""
    along = [bool({outer, inner} & axes_of(index)) for index in read.indices]
    if not any(along):
        return None
    first = along.index(True)
    is_pair = read.indices[first : first + 2] == (Axis(outer), Axis(inner)) and sum(along) == 2
    # An element of an index tensor is clamped to the dim at its position in the program.
    return first if is_pair and not any(map(reads, read.indices[first:])) else -1


def _with_merged(frame: Frame, outer: str, inner: str, places: Mapping[str, int]) -> Frame:
    name = f"{outer}.{inner}"

    def joined(axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name if axis == outer else axis for axis in axes if axis != inner)

    def change(node: Expr) -> Expr:
        if not isinstance(node, Read) or node.tensor not in places:
            return node
        at = places[node.tensor]
        return replace(node, indices=(*node.indices[:at], Axis(name), *node.indices[at + 2 :]))

    groups = dict(frame.groups)
    for tensor, at in places.items():
        each = groups[tensor]
        groups[tensor] = (*each[:at], each[at] + each[at + 1], *each[at + 2 :])
    stages = tuple(
        replace(each, body=rebuild(each.body, change), axes=joined(each.axes), reduce_axes=joined(each.reduce_axes))
        for each in frame.stages
    )
    parts = {**frame.parts, name: frame.parts[outer] + frame.parts[inner]}
    return Frame(joined(frame.rows), joined(frame.columns), stages, parts, groups)
