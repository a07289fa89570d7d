"""Programs: checked lists of stages over named axes, and their canonical form.

``Program.parse`` checks everything that does not depend on sizes: names, scopes, arity, index expressions, outputs.
Axes and tensors have separate namespaces; an axis has one extent wherever it occurs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NoReturn

from tuner.errors import InvalidInput, shown
from tuner.program.language.expr import Axis, Binary, Const, Expr, Extent, Read, axes_of, reads, rebuild, walk
from tuner.program.language.hints import SCAN
from tuner.program.language.indices import NotAnIndex, checked_index, foreign_extents, index_dim, normal_index
from tuner.program.language.notation import Stage, parse_stages, refuse

__all__ = ["CANONICAL_AXES", "MAX_AXES", "MAX_SIZES", "MAX_TENSORS", "Program", "Stage", "index_dim"]

MAX_AXES = 16
"""Axes of one stage, and dims of one tensor."""
MAX_SIZES = 64
"""Axes of all stages together, and names in extent(...) that are no axis."""
MAX_TENSORS = 48

CANONICAL_AXES = ("m", "n", "k", *(f"a{number}" for number in range(3, MAX_SIZES)))
"""Names of axes in a canonical program, in the order of first use."""


@dataclass(frozen=True, eq=False)
class Program:
    """Stages in order, each of which may read inputs and earlier stages. Equal if the stages and outputs are equal."""

    stages: tuple[Stage, ...]
    outputs: tuple[str, ...]
    text: str = field(default="", repr=False)
    """What it was parsed from: offsets of nodes (``at``) point into it."""

    @staticmethod
    def parse(text: object, outputs: Sequence[str] | None = None) -> Program:
        """Parse and check. Raises InvalidInput on field ``program`` (with line and column) or ``outputs``."""
        program = Program(parse_stages(text), (), str(text))
        _Checks(program).run()
        return replace(program, outputs=_outputs(program, outputs))

    @staticmethod
    def of(stages: Sequence[Stage], outputs: Sequence[str] | None = None) -> Program:
        """Check stages that stand already; messages show them as they print."""
        return Program.parse("\n".join(map(str, stages)), outputs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and (self.stages, self.outputs) == (other.stages, other.outputs)

    def __hash__(self) -> int:
        return hash((self.stages, self.outputs))

    def __str__(self) -> str:
        return "\n".join(map(str, self.stages))

    @cached_property
    def stage(self) -> Mapping[str, Stage]:
        """The stages by the tensors that they define."""
        return {stage.tensor: stage for stage in self.stages}

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Every axis in the order of first use."""
        return tuple(dict.fromkeys(itertools.chain.from_iterable((*s.axes, *s.reduce_axes) for s in self.stages)))

    @cached_property
    def sizes(self) -> tuple[str, ...]:
        """Arguments of ``extent(...)`` that are no axis."""
        names = [node.name for stage in self.stages for node in walk(stage.body) if isinstance(node, Extent)]
        return tuple(dict.fromkeys(name for name in names if name not in self.axes))

    @cached_property
    def reads(self) -> tuple[Read, ...]:
        """Every read of a tensor, in the order of the text."""
        return tuple(read for stage in self.stages for read in reads(stage.body))

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Tensors that are read and not defined, in the order of first use: a call takes them in this order."""
        return tuple(dict.fromkeys(read.tensor for read in self.reads if read.tensor not in self.stage))

    @cached_property
    def intermediates(self) -> tuple[str, ...]:
        """Tensors that are defined and not handed out."""
        return tuple(stage.tensor for stage in self.stages if stage.tensor not in self.outputs)

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """Every tensor in the order of first use in the text."""
        result = itertools.chain.from_iterable((s.tensor, *(r.tensor for r in reads(s.body))) for s in self.stages)
        return tuple(dict.fromkeys(result))

    @cached_property
    def index_tensors(self) -> frozenset[str]:
        """Tensors whose elements are used as indices."""
        return frozenset(inner.tensor for read in self.reads for index in read.indices for inner in reads(index))

    def rank(self, tensor: str) -> int:
        """How many dims a tensor has."""
        if tensor in self.stage:
            return len(self.stage[tensor].axes)
        return next(len(read.indices) for read in self.reads if read.tensor == tensor)

    def refuse(self, node: Stage | Expr, problem: str, remedy: str) -> NoReturn:
        """Raise InvalidInput that points at a node."""
        refuse(self.text, node.at, problem, remedy)

    def renamed(self, axes: Mapping[str, str], tensors: Mapping[str, str]) -> Program:
        """A copy of the program with other names; index expressions in their normal form."""
        named = {axes.get(axis, axis) for axis in self.axes}

        def normal(index: Expr) -> Expr:
            # Sizes that are no axis are named in the order of first use, which must not change.
            return index if foreign_extents(index, named) else normal_index(index)

        def change(node: Expr) -> Expr:
            match node:
                case Axis(name=name):
                    return Axis(axes.get(name, name))
                case Extent(name=name):
                    return Extent(axes.get(name, name))
                case Read(tensor=tensor, indices=indices):
                    return Read(tensors.get(tensor, tensor), tuple(map(normal, indices)))
                case _:
                    return node

        stages = [
            Stage(
                tensors.get(stage.tensor, stage.tensor),
                tuple(axes.get(axis, axis) for axis in stage.axes),
                rebuild(stage.body, change),
                stage.reducer,
                tuple(axes.get(axis, axis) for axis in stage.reduce_axes),
            )
            for stage in self.stages
        ]
        outputs = tuple(tensors.get(name, name) for name in self.outputs)
        return Program(tuple(stages), outputs, "\n".join(map(str, stages)))

    def canonical_names(self) -> tuple[dict[str, str], dict[str, str]]:
        """Canonical names of axes (m, n, k, a3, ...; sizes that are no axes after them) and tensors (t0, t1, ...)."""
        axes = dict(zip((*self.axes, *self.sizes), CANONICAL_AXES, strict=False))
        return axes, {name: f"t{number}" for number, name in enumerate(self.tensors)}


def _outputs(program: Program, given: Sequence[str] | None) -> tuple[str, ...]:
    """The outputs in the order of their stages: those given, or the stages that nobody reads."""
    read = {read.tensor for read in program.reads}
    if given is None:
        return tuple(stage.tensor for stage in program.stages if stage.tensor not in read)
    known = f"any of: {', '.join(program.stage)}"
    is_list = isinstance(given, list | tuple) and all(isinstance(name, str) for name in given)
    if not is_list or not given:
        raise InvalidInput("outputs", f"{shown(given)} is not a list of stages", known)
    for name in given:
        if name not in program.stage:
            raise InvalidInput("outputs", f"{shown(name)} is not a stage", known)
    unused = [stage.tensor for stage in program.stages if stage.tensor not in read and stage.tensor not in given]
    if unused:
        raise InvalidInput("outputs", f"{unused[0]} is neither read nor an output", "name it here, or leave it out")
    return tuple(stage.tensor for stage in program.stages if stage.tensor in given)


class _Checks:
    """What can be wrong with a program before sizes are known."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._ranks: dict[str, int] = {}
        self._defined: set[str] = set()

    def run(self) -> None:
        program = self._program
        for stage in program.stages:
            self._stage(stage)
        for count, limit, what in (
            (len(program.tensors), MAX_TENSORS, "tensors"),
            (len(program.axes) + len(program.sizes), MAX_SIZES, "axes and other sizes"),
        ):
            if count > limit:
                self._refuse(program.stages[-1], f"{count} {what}", f"at most {limit}")
        if not program.inputs:
            self._refuse(program.stages[0], "the program reads no input", "an expression of at least one tensor")

    def _stage(self, stage: Stage) -> None:
        scope = (*stage.axes, *stage.reduce_axes)
        if stage.tensor in self._defined:
            remedy = f"nothing is updated in place: a tensor for each stage, as in {stage.tensor}2[...] = ..."
            self._refuse(stage, f"{stage.tensor} is assigned twice", remedy)
        if stage.tensor in self._ranks:
            remedy = "define it first, or rename it"
            self._refuse(stage, f"{stage.tensor} was read as an input before this stage", remedy)
        if len(scope) > MAX_AXES:
            self._refuse(stage, f"{len(scope)} axes in one stage", f"at most {MAX_AXES}")
        if repeated := set(stage.axes) & set(stage.reduce_axes):
            self._refuse(stage, f"axis {min(repeated)} is kept and reduced", "reduce over other axes than the output's")
        for node in walk(stage.body):
            self._node(stage, node, scope)
        used = axes_of(stage.body)
        unused = [axis for axis in stage.reduce_axes if axis not in used]
        if unused:
            self._refuse(stage, f"{stage.reducer} over {unused[0]}, which is not used", "leave the axis out")
        self._defined.add(stage.tensor)
        self._ranks[stage.tensor] = len(stage.axes)

    def _node(self, stage: Stage, node: Expr, scope: tuple[str, ...]) -> None:
        if isinstance(node, Axis) and node.name not in scope:
            known = f"axes here: {', '.join(scope)}" if scope else "the stage has no axes"
            if node.name in self._program.axes:
                known += f"; extent({node.name}) is its size"
            elif node.name in self._program.tensors:
                known += f"; an element of a tensor is read as {node.name}[...]"
            self._refuse(node, f"{node.name} is not an axis of this stage", known)
        if isinstance(node, Read):
            self._read(stage, node)
        if isinstance(node, Binary):
            self._divisor(node, scope)

    def _divisor(self, node: Binary, scope: tuple[str, ...]) -> None:
        """Integers are divided by what cannot be 0, and shifted by what is a number of bits: others end the process."""
        right = node.right.value if isinstance(node.right, Const) else None
        is_size = isinstance(node.right, Extent) and node.right.name in scope
        if node.operator in ("//", "%") and not is_size and (right is None or right < 1):
            remedy = "a positive constant, or the extent of an axis here; floor(a / b) for others"
            self._refuse(node, f"{node.operator} by something that may be 0", remedy)
        if node.operator in ("<<", ">>") and right is not None and not 0 <= right < 64:
            self._refuse(node, f"a shift by {right}", "from 0 to 63 bits")

    def _read(self, stage: Stage, read: Read) -> None:
        if read.tensor == stage.tensor:
            self._refuse(read, f"{read.tensor} reads itself", SCAN)
        if read.tensor in self._program.stage and read.tensor not in self._defined:
            self._refuse(read, f"{read.tensor} is read before its stage", "put its stage first")
        if len(read.indices) > MAX_AXES:
            self._refuse(read, f"{len(read.indices)} indices", f"at most {MAX_AXES}")
        rank = self._ranks.setdefault(read.tensor, len(read.indices))
        if rank != len(read.indices):
            problem = f"{read.tensor} has {rank} dims, {len(read.indices)} indices are given"
            self._refuse(read, problem, "one for each dim")
        for index in read.indices:
            self._index(index)

    def _index(self, index: Expr) -> None:
        """Affine in the axes, with // and % by constants; or an element of a tensor, itself read at such indices."""
        if isinstance(index, Read):
            if any(isinstance(inner, Read) for inner in index.indices):
                self._refuse(index, "an index is read through an index", "one level of indirection")
            return
        try:
            checked_index(index)
            normal_index(index)
        except NotAnIndex as error:
            self._refuse(error.node, error.problem, error.remedy)
        except InvalidInput:
            self._refuse(index, "the index is too long when it is multiplied out", "a shorter sum")

    def _refuse(self, where: Stage | Expr, problem: str, remedy: str) -> NoReturn:
        self._program.refuse(where, problem, remedy)
