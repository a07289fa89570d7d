"""A row-wise program over common axes: those that count the rows, then those along a row. No compiler needed.

Stages may name the axes differently. Neighbouring axes along which all tensors lie alike become one axis, so that
[b, h, m, n] is walked as [b*h*m, n].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tuner.program.expr import Axis, Binary, Call, Cast, Const, Expr, Extent, Neg, Read, axes_of, reads, rebuild, walk
from tuner.program.inline import MAX_NODES, node_count, substituted
from tuner.program.notation import Stage
from tuner.program.shapes import ElementTypes
from tuner.program.workload import Workload
from tuner.schedule.access import values
from tuner.schedule.rule import NoMatch

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

    def spans_columns(self, tensor: str) -> bool:
        """Whether a stage has a value for every column."""
        return any(stage.tensor == tensor and stage.axes == self.axes for stage in self.stages)


def frame_of(workload: Workload) -> Frame | NoMatch:
    """The program over common axes, or why it has none."""
    first = next((stage for stage in workload.program.stages if stage.reducer), None)
    if first is None:
        return NoMatch("no stage is a reduction")
    stages = _prepared(workload, len(first.axes), len(first.reduce_axes))
    if isinstance(stages, NoMatch):
        return stages
    rows, columns = first.axes, _column_order(first)
    renamed = []
    for stage in stages:
        answer = _renamed(workload, stage, rows, columns)
        if isinstance(answer, NoMatch):
            return answer
        renamed.append(answer)
    tensors = workload.tensors
    groups = {name: tuple((position,) for position in range(len(tensors[name].dims))) for name in tensors}
    frame = Frame(rows, columns, tuple(renamed), {axis: (axis,) for axis in (*rows, *columns)}, groups)
    problem = _intermediate_problem(frame)
    return NoMatch(problem) if problem else _merged(workload, frame)


# -- stages over other axes ---------------------------------------------------------------------------------------
def _prepared(workload: Workload, rows: int, columns: int) -> list[Stage] | NoMatch:
    """The stages without those that prepare inputs of another shape: they are put into their readers."""
    bodies: dict[str, Stage] = {}
    depends: set[str] = set()
    kept = []
    for stage in workload.program.stages:
        if any(read.tensor in bodies and any(map(reads, read.indices)) for read in reads(stage.body)):
            return NoMatch(f"stage {stage.tensor} looks an intermediate up by elements of a tensor")
        whole = replace(stage, body=rebuild(stage.body, lambda node: substituted(node, bodies, workload)))
        if node_count(whole.body) > MAX_NODES:
            return NoMatch(f"stage {stage.tensor} grows too long with those before it in it")
        if stage.reducer or any(read.tensor in depends for read in reads(whole.body)):
            depends.add(stage.tensor)
        elif stage.tensor not in workload.program.outputs and len(stage.axes) != rows + columns:
            bodies[stage.tensor] = whole
            continue
        kept.append(whole)
    return kept


def _column_order(stage: Stage) -> tuple[str, ...]:
    """The reduced axes as they lie in the tensor that has the most of them."""
    widest = max(reads(stage.body), key=lambda read: len(axes_of(read) & set(stage.reduce_axes)))
    named = [index.name for index in widest.indices if isinstance(index, Axis)]
    order = {axis: position for position, axis in enumerate(named)}
    return tuple(sorted(stage.reduce_axes, key=lambda axis: order.get(axis, -1)))


def _renamed(workload: Workload, stage: Stage, rows: tuple[str, ...], columns: tuple[str, ...]) -> Stage | NoMatch:
    """The stage over the common axes."""
    own = (*stage.axes, *(_column_order(stage) if stage.reducer else ()))
    common = rows + columns if stage.reducer or len(stage.axes) > len(rows) else rows
    if len(stage.axes) not in ((len(rows),) if stage.reducer else (len(rows), len(rows + columns))):
        return NoMatch(f"stage {stage.tensor} is neither over the rows nor over rows and columns")
    if [workload.sizes[axis] for axis in own] != [workload.sizes[axis] for axis in common]:
        return NoMatch(f"stage {stage.tensor} has axes of other extents than the first reduction")
    names = dict(zip(own, common, strict=True))
    body = rebuild(stage.body, lambda node: replace(node, name=names[node.name]) if isinstance(node, Axis) else node)
    return replace(stage, body=body, axes=common[: len(stage.axes)], reduce_axes=columns if stage.reducer else ())


def _intermediate_problem(frame: Frame) -> str | None:
    axes = {stage.tensor: stage.axes for stage in frame.stages}
    for stage in frame.stages:
        for read in reads(stage.body):
            if read.tensor in axes and read.indices != tuple(map(Axis, axes[read.tensor])):
                return f"stage {stage.tensor} reads {read.tensor} at another row or column than its own"
    return None


# -- neighbouring axes as one -------------------------------------------------------------------------------------
def _merged(workload: Workload, frame: Frame) -> Frame:
    pair = next((pair for pair in _pairs(frame) if _is_mergeable(workload, frame, *pair)), None)
    while pair is not None:
        frame = _with_merged(frame, *pair)
        pair = next((pair for pair in _pairs(frame) if _is_mergeable(workload, frame, *pair)), None)
    return frame


def _pairs(frame: Frame) -> Iterator[tuple[str, str]]:
    for axes in (frame.columns, frame.rows):
        yield from reversed(list(pairwise(axes)))


def _is_mergeable(workload: Workload, frame: Frame, outer: str, inner: str) -> bool:
    """Whether every tensor either lies along both, the inner one whole behind the outer one, or along neither."""
    positions: dict[str, set[int | None]] = {}
    for stage in frame.stages:
        if any(isinstance(node, Axis) and node.name in (outer, inner) for node in values(stage.body)):
            return False
        for read in reads(stage.body):
            at = _position(read, outer, inner)
            # An element of an index tensor is clamped to the dim at its position in the program.
            if at == -1 or (at is not None and any(map(reads, read.indices[at:]))):
                return False
            positions.setdefault(read.tensor, set()).add(at)
    sizes = [workload.sizes[axis] for axis in frame.parts[inner]]
    for tensor, result in positions.items():
        at = next(iter(result))
        if len(result) > 1:
            return False
        if at is not None and [workload.tensors[tensor].dims[dim] for dim in frame.groups[tensor][at + 1]] != sizes:
            return False
    return True


def _position(read: Read, outer: str, inner: str) -> int | None:
    """Which index is ``outer``, with ``inner`` behind it; None if neither occurs, -1 if they do otherwise."""
    along = [bool({outer, inner} & axes_of(index)) for index in read.indices]
    if not any(along):
        return None
    first = along.index(True)
    is_pair = read.indices[first : first + 2] == (Axis(outer), Axis(inner))
    return first if is_pair and sum(along) == 2 else -1


def _with_merged(frame: Frame, outer: str, inner: str) -> Frame:
    name = f"{outer}.{inner}"
    groups = dict(frame.groups)

    def joined(axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name if axis == outer else axis for axis in axes if axis != inner)

    def change(node: Expr) -> Expr:
        at = _position(node, outer, inner) if isinstance(node, Read) else None
        if not isinstance(node, Read) or at is None:
            return node
        groups[node.tensor] = _with_group(frame.groups[node.tensor], at)
        return replace(node, indices=(*node.indices[:at], Axis(name), *node.indices[at + 2 :]))

    stages = []
    for stage in frame.stages:
        if outer in stage.axes:
            groups[stage.tensor] = _with_group(frame.groups[stage.tensor], stage.axes.index(outer))
        body = rebuild(stage.body, change)
        stages.append(replace(stage, body=body, axes=joined(stage.axes), reduce_axes=joined(stage.reduce_axes)))
    parts = {axis: names for axis, names in frame.parts.items() if axis not in (outer, inner)}
    parts[name] = frame.parts[outer] + frame.parts[inner]
    return Frame(joined(frame.rows), joined(frame.columns), tuple(stages), parts, groups)


def _with_group(groups: Groups, at: int) -> Groups:
    return (*groups[:at], groups[at] + groups[at + 1], *groups[at + 2 :])


def input_reads(stages: Sequence[Stage]) -> list[Read]:
    """Every distinct read of a tensor that no stage defines; those inside indices left out."""
    defined = {stage.tensor for stage in stages}
    result = [node for stage in stages for node in values(stage.body) if isinstance(node, Read)]
    return list(dict.fromkeys(read for read in result if read.tensor not in defined))


FAR = 2.0**60
"""Divisors below its reciprocal and above it are scaled."""


def hoisted(frame: Frame, types: ElementTypes) -> tuple[Frame, ElementTypes]:
    """The frame with further stages over rows, each before its first reader, and the dtypes of all tensors."""
    hoist = _Hoist(frame, types)
    stages: list[Stage] = []
    for stage in frame.stages:
        is_along = stage.reducer or stage.axes == frame.axes
        body = hoist.change(stage.body) if is_along else stage.body
        stages += [*hoist.taken(), replace(stage, body=body)]
    return replace(frame, stages=tuple(stages)), hoist.types


class _Hoist:
    def __init__(self, frame: Frame, types: ElementTypes) -> None:
        self.types = types
        self._rows, self._columns = frame.rows, frame.columns
        self._along = {stage.tensor for stage in frame.stages if stage.axes == frame.axes}
        self._reads: dict[Expr, Read] = {}
        self._new: list[Stage] = []

    def taken(self) -> list[Stage]:
        """The new stages since the last call."""
        new, self._new = self._new, []
        return new

    def change(self, expr: Expr) -> Expr:
        """The expression with its parts over rows alone as reads of new stages."""
        if self._is_of_row(expr):
            is_plain = isinstance(expr, Const | Axis | Extent | Read)
            return expr if is_plain or self.types.type_of(expr) == "bool" else self._stage(expr)
        match expr:
            case Binary(operator="/", left=left, right=right) if self._is_of_row(right):
                return self._quotient(self.change(left), right, self.types.type_of(expr))
            case Binary(left=left, right=right):
                return replace(expr, left=self.change(left), right=self.change(right))
            case Neg(operand=operand) | Cast(operand=operand):
                return replace(expr, operand=self.change(operand))
            case Call(args=args):
                return replace(expr, args=tuple(map(self.change, args)))
            case _:
                return expr

    def _quotient(self, left: Expr, divisor: Expr, dtype: str) -> Expr:
        value = self._stage(Cast(divisor, dtype))
        size = Call("abs", (value,))
        small, large = Binary("<", size, Const(1 / FAR)), Binary(">", size, Const(FAR))
        scale = self._stage(Call("where", (small, Const(FAR), Call("where", (large, Const(1 / FAR), Const(1.0))))))
        reciprocal = self._stage(Binary("/", Const(1.0), Binary("*", value, scale)))
        return Binary("*", Binary("*", left, reciprocal), scale)

    def _stage(self, expr: Expr) -> Expr:
        """A read of a stage over rows that computes ``expr``."""
        if expr not in self._reads:
            name = f"row.{len(self._reads)}"
            self.types = self.types.with_tensor(name, self.types.type_of(expr))
            self._new.append(Stage(name, self._rows, expr))
            self._reads[expr] = Read(name, tuple(map(Axis, self._rows)))
        return self._reads[expr]

    def _is_of_row(self, expr: Expr) -> bool:
        return not any(
            (isinstance(node, Axis) and node.name in self._columns)
            or (isinstance(node, Read) and node.tensor in self._along)
            for node in walk(expr)
        )
