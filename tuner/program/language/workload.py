"""Workloads: a program with its extents, element types and constants. The ``key`` names it everywhere.

Extents are integer expressions over *shape variables* (``16*T``), which belong to one search. What is computed depends
on *symbols* alone: each distinct dynamic extent is one symbol, named by the canonical name of its first axis. A library
reads symbols from the tensors' shapes; records store their values. So ``16*T``, ``16*S`` and ``T`` in the same place
are one workload, and an operator of the catalogue is the same workload as its program spelled out.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from tuner.program.language.dims import DimExpr
from tuner.program.language.dtypes import DTYPES
from tuner.program.language.expr import TRANSCENDENTAL, Binary, Call, Cast, Neg, Read, walk
from tuner.program.language.program import Program
from tuner.program.language.shape_vars import JsonObject, ShapeVar, WorkloadInstance, format_shape
from tuner.program.language.shapes import Dims, ElementTypes, Shapes

__all__ = ["JsonObject", "ShapeVar", "Tensor", "Workload", "WorkloadInstance", "format_shape"]

ELEMENTWISE_COST = 300
"""Operations of a matrix product in the time of one that NumPy does array by array, with its error bound: within a
factor of two for six programs on one core of a Zen 3 server. It bounds how much is verified, nothing else."""
FUNCTION_COST = 8
"""How many such operations a transcendental function takes."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of a call. ``dims`` are expressions over the workload's symbols.

    A ``constant`` tensor (a weight) never changes between calls, so a library packs it once, ahead of time.
    """

    name: str
    dtype: str
    dims: Dims
    constant: bool = False

    def shape(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """Its shape for these values of the symbols."""
        return tuple(max(dim.evaluate(dims), 0) for dim in self.dims)

    def bytes(self, dims: Mapping[str, int]) -> int:
        return math.prod(self.shape(dims)) * DTYPES[self.dtype].bytes


@dataclass(frozen=True, repr=False)
class Workload:
    """A program and everything that decides what is computed. ``tuner.program.job.build`` makes them from job files.

    ``extents``: of every axis, and of sizes that only shapes name, over shape variables; ``shapes``: explicit ones;
    ``dtypes``: of every tensor; ``padding``: by tensor, what is read outside its bounds; ``domain``: by tensor, the
    interval that test inputs are drawn from; ``tf32``: whether kernels may round what is multiplied in float32 to TF32.
    ``source`` is the JSON that it was made from, ``label`` a short name.
    """

    program: Program
    extents: tuple[tuple[str, DimExpr], ...]
    dtypes: tuple[tuple[str, str], ...]
    constants: tuple[str, ...] = ()
    padding: tuple[tuple[str, float], ...] = ()
    shapes: tuple[tuple[str, Dims], ...] = ()
    domain: tuple[tuple[str, tuple[float, float]], ...] = ()
    tf32: bool = False
    source: str = field(default="", compare=False)
    label: str = field(default="", compare=False)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Kept: rules look their answers up by the workload, for each kernel of a search."""
        return hash(tuple(getattr(self, each.name) for each in fields(self) if each.compare))

    def __getstate__(self) -> dict[str, Any]:
        # Strings have other hashes in another process.
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    # -- symbols --------------------------------------------------------------------------------------------------
    @cached_property
    def variables(self) -> frozenset[str]:
        """The shape variables of all extents."""
        dims = [dim for _, dim in self.extents] + [dim for _, shape in self.shapes for dim in shape]
        return frozenset().union(*(dim.variables for dim in dims))

    @cached_property
    def symbol_exprs(self) -> Mapping[str, DimExpr]:
        """Each symbol and its expression over the shape variables, in the order of first use."""
        names = self.program.canonical_names()[0]
        extents = dict(self.extents)
        symbols: dict[DimExpr, str] = {}
        for axis, name in names.items():
            if extents[axis].constant is None:
                symbols.setdefault(extents[axis], name)
        others = (dim for tensor in self.program.tensors for dim in dict(self.shapes).get(tensor, ()))
        for dim in others:
            if dim.constant is None and dim not in symbols:
                symbols[dim] = f"d{len(symbols)}"
        return {name: dim for dim, name in symbols.items()}

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The distinct dynamic extents in the order of first use: what a dispatcher looks at."""
        return tuple(self.symbol_exprs)

    def dims(self, shape: Mapping[str, int]) -> dict[str, int]:
        """The values of the symbols for these values of the shape variables."""
        return {name: dim.evaluate(shape) for name, dim in self.symbol_exprs.items()}

    @cached_property
    def sizes(self) -> Mapping[str, DimExpr]:
        """The extent of every axis and size over the symbols: a constant, or one symbol."""
        return {name: self._in_symbols(dim) for name, dim in self.extents}

    def _in_symbols(self, dim: DimExpr) -> DimExpr:
        if dim.constant is not None:
            return dim
        by_expr = {expr: name for name, expr in self.symbol_exprs.items()}
        # A size that neither an axis nor a shape uses has no symbol; nothing reads it.
        return DimExpr.var(by_expr[dim]) if dim in by_expr else dim

    def axis_sizes(self, dims: Mapping[str, int]) -> dict[str, int]:
        """The extent of every axis for these values of the symbols."""
        return {axis: max(self.sizes[axis].evaluate(dims), 0) for axis in self.program.axes}

    @cached_property
    def inference(self) -> Shapes:
        """Shapes of all tensors, over the symbols, and the bounds that depend on values of the symbols."""
        explicit = {name: tuple(map(self._in_symbols, shape)) for name, shape in self.shapes}
        return Shapes(self.program, self.sizes, explicit, dict(self.padding))

    # -- tensors --------------------------------------------------------------------------------------------------
    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Every tensor of the program, intermediates included."""
        dtypes, dims = dict(self.dtypes), self.inference.dims
        return {name: Tensor(name, dtypes[name], dims[name], name in self.constants) for name in self.program.tensors}

    @cached_property
    def element_types(self) -> ElementTypes:
        """The dtypes of all tensors, and of every expression over them."""
        return ElementTypes(self.program, dict(self.dtypes))

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(self.tensors[name] for name in self.program.inputs)

    @cached_property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(self.tensors[name] for name in self.program.outputs)

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """All tensors of a call in order: inputs as the program first names them, then outputs."""
        return (*self.inputs, *self.outputs)

    def is_consistent(self, dims: Mapping[str, int]) -> bool:
        """Whether no read is out of bounds for these values of the symbols; a library refuses others."""
        sizes = self.axis_sizes(dims)
        return all(
            need.evaluate(dims) <= size.evaluate(dims) or not all(sizes[axis] for axis in self.reading_axes(read))
            for read, _, need, size in self.inference.unproved
        )

    def reading_axes(self, read: Read) -> tuple[str, ...]:
        """The axes of the stage that holds a read: where one of them is empty, nothing is read."""
        stage = next(each for each in self.program.stages if any(node is read for node in walk(each.body)))
        return (*stage.axes, *stage.reduce_axes)

    # -- work -----------------------------------------------------------------------------------------------------
    def points(self, dims: Mapping[str, int]) -> int:
        """Evaluations of stage bodies, all stages together."""
        return sum(self._volumes(dims))

    def flops(self, dims: Mapping[str, int]) -> int:
        """Arithmetic operations and function calls of all stages for these values of the symbols.

        A multiply-add counts as two, a transcendental function as one; index arithmetic, comparisons, selections and
        casts do not count.
        """
        return sum(
            volume * operations for volume, (operations, _) in zip(self._volumes(dims), self._steps, strict=True)
        )

    def work(self, dims: Mapping[str, int]) -> int:
        """What computing the reference costs, in operations of a matrix product: others are some times as slow."""
        return sum(volume * cost for volume, (_, cost) in zip(self._volumes(dims), self._steps, strict=True))

    @cached_property
    def _steps(self) -> tuple[tuple[int, int], ...]:
        """Of each stage what one step of its loops takes: arithmetic operations, and what it costs the reference."""
        counted = []
        for stage in self.program.stages:
            operations = _operations(stage.body) + (stage.reducer is not None)
            called = sum(isinstance(node, Call) and node.function in TRANSCENDENTAL for node in walk(stage.body))
            each = ELEMENTWISE_COST * max(operations + (FUNCTION_COST - 1) * called, 1)
            counted.append((operations, operations if stage.reducer == "sum" and _is_product(stage.body) else each))
        return tuple(counted)

    def _volumes(self, dims: Mapping[str, int]) -> list[int]:
        """How many steps the loops of each stage have."""
        sizes = self.axis_sizes(dims)
        return [math.prod(sizes[axis] for axis in (*stage.axes, *stage.reduce_axes)) for stage in self.program.stages]

    def bytes_moved(self, dims: Mapping[str, int]) -> int:
        """Bytes of all operands, each read or written once."""
        return sum(operand.bytes(dims) for operand in self.operands)

    # -- identity -------------------------------------------------------------------------------------------------
    @cached_property
    def canonical(self) -> JsonObject:
        """The workload in canonical names, a job file's ``workload`` whose shape variables are the symbols."""
        axes, tensors = self.program.canonical_names()
        program = self.program.renamed(axes, tensors)
        explicit = {tensors[name]: shape for name, shape in self._needed_shapes().items()}
        extents = {axes[name]: _json(self.sizes[name]) for name in (*self.program.axes, *self.program.sizes)}
        extra = {name: name for shape in explicit.values() for dim in shape for name in dim.variables}
        return {
            "program": str(program),
            "outputs": list(program.outputs),
            "extents": {**extra, **extents},
            "shapes": {name: [_json(dim) for dim in shape] for name, shape in explicit.items()},
            "dtype": {tensors[name]: dtype for name, dtype in self.dtypes},
            "constant": sorted(tensors[name] for name in self.constants),
            "padded": {tensors[name]: _padding_json(value) for name, value in self.padding},
            **({"tf32": True} if self.tf32 else {}),
        }

    def _needed_shapes(self) -> dict[str, Dims]:
        """Explicit shapes over the symbols, without those that follow from the axes."""
        explicit = {name: tuple(map(self._in_symbols, shape)) for name, shape in self.shapes}
        return {name: shape for name, shape in explicit.items() if self.inference.follows(name) != shape}

    @cached_property
    def key(self) -> str:
        """``wl-0f3a...``: a digest of the canonical form, everything that decides what is computed."""
        text = json.dumps(self.canonical, sort_keys=True, separators=(",", ":"))
        return f"wl-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    # -- forms ----------------------------------------------------------------------------------------------------
    def to_json(self) -> JsonObject:
        """The form that it was given in; ``tuner.program.job.build.workload_from_json`` reads it."""
        data: JsonObject = json.loads(self.source)
        return data

    def __str__(self) -> str:
        return self.label

    def __repr__(self) -> str:
        return f"<Workload {self}>"


def _is_product(expr: Any) -> bool:
    """Whether the sum of such terms is a chain of matrix products."""
    if isinstance(expr, Binary) and expr.operator == "*":
        return _is_product(expr.left) and _is_product(expr.right)
    return isinstance(expr, Read)


def _operations(expr: Any) -> int:
    """Arithmetic operations of a stage's body, those inside indices left out."""
    if isinstance(expr, Read):
        return 0
    own = isinstance(expr, Neg) or (isinstance(expr, Binary) and expr.operator in ("+", "-", "*", "/"))
    own = own or (isinstance(expr, Call) and expr.function != "where")
    match expr:
        case Neg(operand=operand) | Cast(operand=operand):
            return int(own) + _operations(operand)
        case Binary(left=left, right=right):
            return int(own) + _operations(left) + _operations(right)
        case Call(args=args):
            return int(own) + sum(map(_operations, args))
        case _:
            return 0


def _json(dim: DimExpr) -> int | str:
    return dim.constant if dim.constant is not None else str(dim)


def _padding_json(value: float) -> float | str:
    """JSON has no infinities."""
    return value if math.isfinite(value) else str(value)
