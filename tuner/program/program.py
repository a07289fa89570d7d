"""Programs: checked lists of stages over named axes, and their canonical form.

``Program.parse`` checks everything that does not depend on sizes: names, scopes, arity, index expressions, outputs.
Axes and tensors have separate namespaces; an axis has one extent wherever it occurs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tuner.errors import InvalidInput
from tuner.program.dims import DimExpr
from tuner.program.expr import Axis, Binary, Const, Expr, Extent, Neg, Read, children, reads, rebuild, walk
from tuner.program.notation import Stage, parse_stages, refuse

MAX_AXES = 16
"""Of one stage."""
MAX_TENSORS = 48

CANONICAL_AXES = ("m", "n", "k", *(f"a{number}" for number in range(3, 200)))
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
        return Program.of(parse_stages(text), outputs, str(text))

    @staticmethod
    def of(stages: Sequence[Stage], outputs: Sequence[str] | None = None, text: str | None = None) -> Program:
        """Check stages that stand already. Without a text, messages show the stages as they print."""
        program = Program(tuple(stages), (), text if text is not None else "\n".join(map(str, stages)))
        _Checks(program).run()
        return replace(program, outputs=_outputs(program, outputs))

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
        """Names that ``extent(...)`` asks for and that are no axis."""
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
        found = itertools.chain.from_iterable((s.tensor, *(r.tensor for r in reads(s.body))) for s in self.stages)
        return tuple(dict.fromkeys(found))

    @cached_property
    def index_tensors(self) -> frozenset[str]:
        """Tensors whose elements are used as indices."""
        return frozenset(inner.tensor for read in self.reads for index in read.indices for inner in reads(index))

    def rank(self, tensor: str) -> int:
        """How many dims a tensor has."""
        if tensor in self.stage:
            return len(self.stage[tensor].axes)
        return next(len(read.indices) for read in self.reads if read.tensor == tensor)

    def refuse(self, node: Expr, problem: str, remedy: str) -> None:
        """Raise InvalidInput that points at a node."""
        refuse(self.text, node.at, problem, remedy)

    def renamed(self, axes: Mapping[str, str], tensors: Mapping[str, str]) -> Program:
        """The same program with other names; index expressions in their normal form."""

        def change(node: Expr) -> Expr:
            match node:
                case Axis(name=name):
                    return Axis(axes.get(name, name))
                case Extent(name=name):
                    return Extent(axes.get(name, name))
                case Read(tensor=tensor, indices=indices):
                    return Read(tensors.get(tensor, tensor), tuple(map(normal_index, indices)))
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
        return Program(tuple(stages), tuple(tensors.get(name, name) for name in self.outputs), "\n".join(map(str, stages)))

    def canonical_names(self) -> tuple[dict[str, str], dict[str, str]]:
        """Canonical names of axes (m, n, k, a3, ...; sizes that are no axes after them) and tensors (t0, t1, ...)."""
        axes = dict(zip((*self.axes, *self.sizes), CANONICAL_AXES, strict=False))
        return axes, {name: f"t{number}" for number, name in enumerate(self.tensors)}


def index_dim(index: Expr) -> DimExpr | None:
    """An index as an integer expression over axes and sizes; None if it is not affine with // and % by constants.

    ``extent(n)`` appears as a variable named ``extent(n)``.
    """
    match index:
        case Const(value=int() as value):
            return DimExpr.of(value)
        case Axis(name=name):
            return DimExpr.var(name)
        case Extent(name=name):
            return DimExpr.var(f"extent({name})")
        case Neg(operand=operand):
            inner = index_dim(operand)
            return None if inner is None else inner * -1
        case Binary(operator=operator, left=left, right=right):
            return _combined(operator, index_dim(left), index_dim(right))
        case _:
            return None


def _combined(operator: str, left: DimExpr | None, right: DimExpr | None) -> DimExpr | None:
    if left is None or right is None:
        return None
    try:
        match operator:
            case "+":
                return left + right
            case "-":
                return left - right
            case "*" if _is_size(left) or _is_size(right):
                return left * right
            case "//" if right.constant is not None:
                return left // right.constant
            case "%" if right.constant is not None:
                return left % right.constant
    except InvalidInput:
        return None
    return None


def _is_size(dim: DimExpr) -> bool:
    """Whether a dim is made of constants and extents alone."""
    return all(name.startswith("extent(") for name in dim.variables)


def normal_index(index: Expr) -> Expr:
    """An index in its normal form: sums in one order, constants folded. Other indices as they are."""
    dim = index_dim(index)
    if dim is None or any(isinstance(node, Extent) for node in walk(index)):
        return index
    (stage,) = parse_stages(f"x[] = {dim}")
    return rebuild(stage.body, lambda node: replace(node, at=0))


def _outputs(program: Program, given: Sequence[str] | None) -> tuple[str, ...]:
    """The outputs in the order of their stages: those given, or the stages that nobody reads."""
    read = {read.tensor for read in program.reads}
    if given is None:
        return tuple(stage.tensor for stage in program.stages if stage.tensor not in read)
    if isinstance(given, str) or not all(isinstance(name, str) for name in given) or not given:
        raise InvalidInput("outputs", f"{given!r} is not a list of stages", f"any of: {', '.join(program.stage)}")
    for name in given:
        if name not in program.stage:
            raise InvalidInput("outputs", f"{name!r} is not a stage", f"any of: {', '.join(program.stage)}")
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
        for stage in self._program.stages:
            self._stage(stage)
        if len(self._program.tensors) > MAX_TENSORS:
            raise InvalidInput("program", f"{len(self._program.tensors)} tensors", f"at most {MAX_TENSORS}")
        if not self._program.inputs:
            raise InvalidInput("program", "reads no input", "an expression of at least one tensor")

    def _stage(self, stage: Stage) -> None:
        body, scope = stage.body, (*stage.axes, *stage.reduce_axes)
        if stage.tensor in self._defined:
            self._refuse(body, f"{stage.tensor} is assigned twice", "each stage writes a tensor of its own")
        if stage.tensor in self._ranks:
            self._refuse(body, f"{stage.tensor} was read as an input before this stage", "define it first, or rename it")
        if len(scope) > MAX_AXES:
            self._refuse(body, f"{len(scope)} axes in one stage", f"at most {MAX_AXES}")
        if repeated := set(stage.axes) & set(stage.reduce_axes):
            self._refuse(body, f"axis {min(repeated)} is kept and reduced", "reduce over other axes than the output's")
        for node in walk(body):
            self._node(stage, node, scope)
        unused = [axis for axis in stage.reduce_axes if axis not in {n.name for n in _axis_nodes(body)}]
        if unused:
            self._refuse(body, f"{stage.reducer} over {unused[0]}, which is not used", "leave the axis out")
        self._defined.add(stage.tensor)
        self._ranks[stage.tensor] = len(stage.axes)

    def _node(self, stage: Stage, node: Expr, scope: tuple[str, ...]) -> None:
        if isinstance(node, Axis) and node.name not in scope:
            known = self._program.axes
            remedy = f"extent({node.name}) is its size" if node.name in known else f"axes here: {', '.join(scope)}"
            self._refuse(node, f"{node.name} is not an axis of this stage", remedy)
        if isinstance(node, Read):
            self._read(stage, node)

    def _read(self, stage: Stage, read: Read) -> None:
        if read.tensor == stage.tensor:
            self._refuse(read, f"{read.tensor} reads itself", "scans are not supported: each stage is computed as a whole")
        later = [other.tensor for other in self._program.stages if other.tensor == read.tensor]
        if later and read.tensor not in self._defined:
            self._refuse(read, f"{read.tensor} is read before its stage", "put its stage first")
        rank = self._ranks.setdefault(read.tensor, len(read.indices))
        if rank != len(read.indices):
            self._refuse(read, f"{read.tensor} has {rank} dims, {len(read.indices)} indices are given", "one for each dim")
        for index in read.indices:
            self._index(index)

    def _index(self, index: Expr) -> None:
        """Affine in the axes, with // and % by constants; or an element of a tensor, itself read at such indices."""
        if isinstance(index, Read):
            if any(isinstance(inner, Read) for inner in index.indices):
                self._refuse(index, "an index is read through an index", "one level of indirection")
            return
        if index_dim(index) is None:
            form = "sums of axes times constants, // and % by constants, or an element of an integer tensor"
            self._refuse(index, "is not an index", form)

    def _refuse(self, node: Expr, problem: str, remedy: str) -> None:
        self._program.refuse(node, problem, remedy)


def _axis_nodes(expr: Expr) -> Iterator[Axis]:
    return (node for node in walk(expr) if isinstance(node, Axis))


def elementwise(expr: Expr) -> bool:
    """Whether an expression has no read through another tensor's elements."""
    return not any(isinstance(child, Read) for read in reads(expr) for index in read.indices for child in children(index))
