"""What the rule for row reductions takes, and the passes over a row that it needs. No compiler needed.

A pass is a loop over the columns of a row. A reduction can be computed once every reduction that it reads is known, so
softmax takes three passes: the maximum, the sum of exponentials, the quotients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tuner.program.job.task import SearchTask
from tuner.program.language.dtypes import DTYPES
from tuner.program.language.expr import Axis, Binary, Call, Cast, Const, Expr, Extent, Neg, Read, axes_of, reads, walk
from tuner.program.language.notation import Stage
from tuner.program.language.shapes import ElementTypes
from tuner.program.language.workload import Workload
from tuner.schedule.access import is_transcendental
from tuner.schedule.loops.estimates import Floats, volume
from tuner.schedule.rule import Extents, need, pattern
from tuner.schedule.rules.rows.frame import Frame, frame_of
from tuner.schedule.space import MicroKernel

FAR = 2.0**60
"""Divisors below its reciprocal and above it are scaled."""


@dataclass(frozen=True)
class Pass:
    """One loop over the columns: what is reduced, what is written (outputs, or intermediates that later passes read),
    and the values of a row that are known afterwards."""

    reductions: tuple[Stage, ...]
    written: tuple[Stage, ...]
    after: tuple[Stage, ...]
    evaluated: tuple[Stage, ...]
    """Every stage whose body is computed for each column, reductions included."""

    @property
    def is_heavy(self) -> bool:
        """Whether it calls a function of many instructions."""
        return any(is_transcendental(stage.body) for stage in self.evaluated)

    def turns(self, kernel: MicroKernel) -> int:
        """Vectors in a turn of the loop."""
        return kernel["unroll" if self.is_heavy else "acc"]


@dataclass(frozen=True)
class RowProgram:
    """A program as passes over rows. ``before``: values of a row that need no pass.

    ``homes``: where later passes read what ``written`` of an earlier one holds: an output (the stage itself, or one
    that is written over it in a later pass), or None, a workspace of one block of rows. Others are computed again.
    """

    frame: Frame
    types: ElementTypes
    before: tuple[Stage, ...]
    passes: tuple[Pass, ...]
    homes: Mapping[str, str | None]

    @property
    def is_heavy(self) -> bool:
        return any(each.is_heavy for each in self.passes)

    @property
    def divides_columns(self) -> bool:
        """Whether columns can be divided among threads: a single pass that only reduces."""
        return len(self.passes) == 1 and bool(self.passes[0].reductions) and not self.passes[0].written

    @property
    def columns_choice(self) -> int:
        """The value of the axis ``split`` that stands for the columns; those below it for axes of the rows, or none."""
        return max(1, len(self.frame.rows))

    def splits_columns(self, split: int, threads: int) -> bool:
        """Whether threads share the columns, not the rows."""
        return threads > 1 and split == self.columns_choice

    @property
    def most_reductions(self) -> int:
        """The reductions of the pass that has the most."""
        return max(len(each.reductions) for each in self.passes)

    def volume(self, axes: Iterable[str], extents: Extents) -> Floats:
        """[shapes] how many points some axes of the frame have."""
        return volume(self.frame.parts_of(axes), extents)


@pattern
def match(workload: Workload) -> RowProgram:
    """The passes of a workload that is made of reductions along rows."""
    need(not workload.padding, "a tensor is padded")
    frame, types = frame_of(workload), workload.element_types
    for stage in frame.stages:
        is_bool = stage.reducer and types.reduced_type(stage) == "bool"
        need(not is_bool, f"stage {stage.tensor} reduces bools")
    for tensor in workload.tensors.values():
        need(tensor.dtype != "bool", f"{tensor.name} is bool")
    for read in frame.input_reads:
        for axis in map(Axis, frame.columns):
            along = [index for index in read.indices if axis.name in axes_of(index)]
            need(along in ([], [axis]), f"{read.tensor} is read along a row otherwise than element by element")
        is_last = frame.vector not in axes_of(read) or read.indices[-1] == Axis(frame.vector)
        need(is_last, f"{read.tensor} does not lie along the rows: its last axis is another")
    # Every reduction must stream through one tensor: otherwise elements are used again, and tiles would pay.
    inputs: dict[str, list[Read]] = {}
    for stage in frame.stages:
        inputs[stage.tensor] = [below for read in reads(stage.body) for below in inputs.get(read.tensor, [read])]
        streams = not stage.reducer or any(set(frame.axes) <= axes_of(read) for read in inputs[stage.tensor])
        need(streams, f"no tensor that stage {stage.tensor} reads lies along all its axes: it is a contraction")
    hoist = _Hoist(frame, types)
    return _Passes(workload, replace(frame, stages=tuple(hoist.stages)), hoist.types).program()


def lanes_of(task: SearchTask) -> int:
    """Elements of a vector: the widest type of the program fills a register."""
    workload = task.workload
    computed = [workload.element_types.type_of(stage.body) for stage in workload.program.stages]
    types = {*(DTYPES[tensor.dtype].compute for tensor in workload.tensors.values()), *computed}
    if "int64" not in dict(workload.dtypes).values():
        types.discard("int64")
    return task.known_target.hardware.lanes(max(4, *(DTYPES[dtype].bytes for dtype in types)))


class _Hoist:
    """The frame's ``stages`` with further ones over rows, each before its first reader, and the dtypes of all."""

    def __init__(self, frame: Frame, types: ElementTypes) -> None:
        self.stages: list[Stage] = []
        self.types, self._rows, self._columns = types, frame.rows, frame.columns
        self._along = {stage.tensor for stage in frame.stages if stage.axes == frame.axes}
        self._reads: dict[Expr, Read] = {}
        for stage in frame.stages:
            is_along = stage.reducer or stage.tensor in self._along
            body = self.change(stage.body) if is_along else stage.body
            self.stages.append(replace(stage, body=body))

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
        """A product with the reciprocal of a divisor, which alone may overflow: both are scaled."""
        value = self._stage(Cast(divisor, dtype))
        size = Call("abs", (value,))
        small, large = Binary("<", size, Const(1 / FAR)), Binary(">", size, Const(FAR))
        scale = self._stage(Call("where", (small, Const(FAR), Call("where", (large, Const(1 / FAR), Const(1.0))))))
        reciprocal = self._stage(Binary("/", Const(1.0), Binary("*", value, scale)))
        return Binary("*", Binary("*", left, reciprocal), scale)

    def _stage(self, expr: Expr) -> Expr:
        if expr not in self._reads:
            name = f"row.{len(self._reads)}"
            self.types = self.types.with_tensor(name, self.types.type_of(expr))
            self.stages.append(Stage(name, self._rows, expr))
            self._reads[expr] = Read(name, tuple(map(Axis, self._rows)))
        return self._reads[expr]

    def _is_of_row(self, expr: Expr) -> bool:
        nodes = list(walk(expr))
        is_along = any(isinstance(node, Read) and node.tensor in self._along for node in nodes)
        return not is_along and not axes_of(expr) & set(self._columns)


class _Passes:
    """``level``: by stage how many passes must be over before its value is known (a row) or can be computed (a
    column)."""

    def __init__(self, workload: Workload, frame: Frame, types: ElementTypes) -> None:
        self.frame, self.types, self.level = frame, types, dict[str, int]()
        for stage in frame.stages:
            needed = max((self.level.get(read.tensor, 0) for read in reads(stage.body)), default=0)
            self.level[stage.tensor] = needed + 1 if stage.reducer else needed
        self.along = [stage for stage in frame.stages if stage.axes == frame.axes]
        self.outputs = [stage.tensor for stage in self.along if stage.tensor in workload.program.outputs]
        self.homes: dict[str, str | None] = {output: output for output in self.outputs}

    def program(self) -> RowProgram:
        numbers = range(max(self.level.values()) + 1)
        # Of several stages in a chain the last one, which spares the others.
        for stage in reversed(self.along):
            if stage.tensor not in self.homes and is_transcendental(stage.body):
                uses = [number for number in numbers if stage in self._evaluated(number)]
                if len(uses) > 1:
                    self.homes[stage.tensor] = self._home(stage.tensor, uses[-1])
        passes = [self._pass(number) for number in numbers]
        while not passes[-1].reductions and not passes[-1].written:
            passes.pop()
        return RowProgram(self.frame, self.types, self._of_rows(0), tuple(passes), self.homes)

    def _pass(self, number: int) -> Pass:
        reductions = tuple(stage for stage in self._known_after(number + 1) if stage.reducer)
        written = tuple(stage for stage in self._known_after(number) if stage.tensor in self.homes)
        return Pass(reductions, written, self._of_rows(number + 1), self._evaluated(number))

    def _known_after(self, passes: int) -> list[Stage]:
        return [stage for stage in self.frame.stages if self.level[stage.tensor] == passes]

    def _of_rows(self, passes: int) -> tuple[Stage, ...]:
        """Values of a row that are known after so many passes and are no reductions."""
        known = self._known_after(passes)
        return tuple(stage for stage in known if stage.axes == self.frame.rows and not stage.reducer)

    def _evaluated(self, number: int) -> tuple[Stage, ...]:
        """The stages whose bodies pass ``number`` computes for every column: what it needs and has not in memory."""
        needed, result = set[str](), list[Stage]()
        for stage in reversed(self.frame.stages):
            if stage.reducer:
                is_needed = self.level[stage.tensor] == number + 1
            elif stage.tensor in self.homes:
                is_needed = self.level[stage.tensor] == number
            else:
                is_needed = stage.tensor in needed and stage in self.along
            if is_needed:
                result.insert(0, stage)
                needed |= {read.tensor for read in reads(stage.body)}
        return tuple(result)

    def _home(self, tensor: str, last_use: int) -> str | None:
        """An output of the same dtype that is not written before the last use, and holds nothing else."""
        taken = {home for guest, home in self.homes.items() if home != guest}
        free = (output for output in self.outputs if output not in taken and self.level[output] >= last_use)
        return next((output for output in free if self.types.of[output] == self.types.of[tensor]), None)
