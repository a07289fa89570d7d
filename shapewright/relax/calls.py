"""Calls of tuned libraries as expressions of Relax: operands through their views, constants packed at build time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relax, tirx

from shapewright.models.graph import Graph
from shapewright.models.lifted import LiftedOp, Operand, View
from shapewright.models.relax_model import CONSTANT
from shapewright.models.views import product
from shapewright.relax.linking import Linkable
from shapewright.sources.source import Match
from tuner.program.language.dims import DimExpr

Visit = Callable[[Any], Any]
"""What a variable has become in the function that is being written."""


class Calls:
    """Makes the calls of one function. ``values`` and ``graph`` are those of the function that was read, ``symbols``
    its symbolic sizes by name, ``scopes`` the numbers of the blocks in which alone a variable is known."""

    def __init__(
        self, graph: Graph, values: Mapping[str, Any], symbols: Mapping[str, Any], scopes: Mapping[str, int]
    ) -> None:
        self._graph = graph
        self._values = values
        self._symbols = symbols
        self._scopes = scopes
        self._packed: dict[tuple[Any, ...], Any] = {}

    def unfit(self, op: LiftedOp) -> str:
        """Why a lifted operation cannot be a call here; empty if it can."""
        dims = [*op.output_shape, *(dim for operand in op.operands for dim in self._graph.shape(operand.node))]
        missing = sorted(name for dim in dims for name in dim.variables if name not in self._symbols)
        if missing:
            return f"the size {missing[0]} is not at hand"
        scopes = {self._scopes[name] for name in (*op.nodes, *_inputs(op)) if name in self._scopes}
        if len(scopes) > 1:
            return "it is spread over several dataflow blocks"
        for operand in op.operands:
            unbound = [name for name in _read(operand) if self._constant(name) is None]
            if operand.fold is not None and unbound:
                return _UNBOUND.format(unbound[0])
        return ""

    def unpacked(self, op: LiftedOp, match: Match) -> str:
        """Why the constants of a library cannot be packed at build time; empty if they can."""
        for operand, tensor in zip(op.operands, match.library.workload.inputs, strict=True):
            if tensor.name in match.library.manifest["packed_layouts"] and self._constant(operand.node) is None:
                return _UNBOUND.format(operand.node)
        return ""

    def expression(self, op: LiftedOp, match: Match, linked: Linkable, visit: Visit) -> Any:
        """What takes the place of the value of ``op``."""
        library = match.library
        operands = [
            self._operand(operand, tensor.name, match, visit)
            for operand, tensor in zip(op.operands, library.workload.inputs, strict=True)
        ]
        whole = op.output_shape
        order = _order(op.output_view, len(whole))
        dims = [product([whole[axis] for axis in group]) for group in op.output_view]
        (output,) = library.workload.outputs
        result = relax.op.call_dps_packed(linked.name, operands, relax.TensorType(self._sizes(dims), output.dtype))
        result = self._reshaped(result, dims, [whole[axis] for axis in order])
        return _permuted(result, sorted(range(len(order)), key=order.__getitem__))

    def _operand(self, operand: Operand, tensor: str, match: Match, visit: Visit) -> Any:
        if tensor in match.library.workload.constants or operand.fold is not None:
            constants = {name: self._constant(name) for name in _read(operand)}
            if all(value is not None for value in constants.values()):
                return self._packed_constant(operand, tensor, match, constants)
        shape = self._graph.shape(operand.node)
        order = _order(operand.view, len(shape))
        dims = [product([shape[axis] for axis in group]) for group in operand.view]
        if operand.split:
            *dims, last = dims
            dims += [last // operand.split, DimExpr.of(operand.split)]
        value = _permuted(visit(self._values[operand.node]), order)
        return self._reshaped(value, [shape[axis] for axis in order], dims)

    def _packed_constant(self, operand: Operand, tensor: str, match: Match, constants: Mapping[str, Any]) -> Any:
        key = match.library.digest, tensor, _read(operand), operand.view, operand.fold
        if key not in self._packed:
            value = operand.value({name: constant.value.numpy() for name, constant in constants.items()})
            if tensor in match.library.workload.constants:
                self._packed[key] = relax.const(match.library.pack(tensor, value).tensor)
            else:
                self._packed[key] = relax.const(value)
        return self._packed[key]

    def _constant(self, name: str) -> Any:
        """The constant of a node; None where its value is not known at build time."""
        value = self._values.get(name)
        return value if type(value).__name__ == CONSTANT else None

    def _reshaped(self, value: Any, old: Sequence[DimExpr], new: Sequence[DimExpr]) -> Any:
        return value if list(old) == list(new) else relax.op.reshape(value, self._sizes(new))

    def _sizes(self, dims: Sequence[DimExpr]) -> list[Any]:
        return [self._size(dim) for dim in dims]

    def _size(self, dim: DimExpr) -> Any:
        if dim.constant is not None:
            return tirx.IntImm("int64", dim.constant)
        return dim.evaluate({name: self._symbols[name] for name in dim.variables})


_UNBOUND = "its weight {} is a parameter: bind its value first, by relax.transform.BindParams"


def _read(operand: Operand) -> tuple[str, ...]:
    """The nodes that an operand is made of."""
    return tuple(name for name in operand.fold.nodes if name is not None) if operand.fold else (operand.node,)


def _inputs(op: LiftedOp) -> list[str]:
    return [name for operand in op.operands for name in _read(operand)]


def _order(view: View, rank: int) -> list[int]:
    """The axes as a view has them, those of size 1 that it leaves out behind."""
    order = [axis for group in view for axis in group]
    return order + [axis for axis in range(rank) if axis not in order]


def _permuted(value: Any, order: Sequence[int]) -> Any:
    return value if list(order) == list(range(len(order))) else relax.op.permute_dims(value, list(order))
