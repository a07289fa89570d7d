"""Relax modules as the neutral graph: the calls of ``relax.op`` in the function ``main``.

Parameters behind the first ``num_input`` are weights, as TVM's importers mark them. What was lowered to TensorIR
already (``call_tir``) is left: no program is made of loops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shapewright.models.defects import defect
from shapewright.models.graph import CannotLift, Graph, Input, Node, Shape
from shapewright.models.model import Model, Place
from shapewright.models.patterns import recognised
from shapewright.models.relax_operators import ELEMENTWISE_NAMES, TRANSLATIONS, Call
from shapewright.models.relax_parts import SLICE, SPLIT, item_of, slice_of
from shapewright.models.translated import Translated
from tuner.errors import InvalidInput
from tuner.program.language.dims import DimExpr

MAIN = "main"
PREFIX = "relax."
CONSTANT = "GenericConst"
"""What TVM calls the type of a constant."""
VARIABLES = ("Var", "DataflowVar")


class Names:
    """Names of variables by identity: Relax tells variables apart that are called alike."""

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}
        self._taken: set[str] = set()

    def __call__(self, variable: Any) -> str:
        if variable not in self._names:
            self._names[variable] = self.fresh(str(variable.name))
        return self._names[variable]

    def fresh(self, wanted: str) -> str:
        """``wanted``, or that with a number behind it."""
        name, number = wanted, 0
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name


@dataclass(frozen=True, slots=True)
class Read:
    """A function that was read.

    ``values``: by node the variable or the constant of Relax that has its value; ``scopes``: by node that is known in
    one dataflow block alone the number of that block; ``sizes``: the names of symbolic sizes.
    """

    model: Model
    values: Mapping[str, Any]
    scopes: Mapping[str, int]
    sizes: Names


def from_relax(module: Any) -> Model:
    """An ``IRModule`` with a Relax function ``main``. Raises InvalidInput where there is none."""
    functions = {variable.name_hint: function for variable, function in module.functions.items()}
    main = functions.get(MAIN)
    if main is None or not hasattr(main, "body") or not hasattr(main.body, "blocks"):
        raise InvalidInput("model", f"the module has no Relax function {MAIN}", "relax.transform.Normalize() it first")
    return read_function(main).model


def read_function(function: Any) -> Read:
    """A Relax function whose body is in blocks."""
    return _Reading().read(function)


@dataclass(frozen=True, slots=True)
class _Reading:
    """One function while it is read."""

    nodes: dict[str, Node] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    scopes: dict[str, int] = field(default_factory=dict)
    splits: dict[str, Any] = field(default_factory=dict)
    """Calls that split a tensor, by the name of what they give."""
    names: Names = field(default_factory=Names)
    sizes: Names = field(default_factory=Names)

    def read(self, function: Any) -> Read:
        attrs = function.attrs or {}
        count = int(attrs["num_input"]) if "num_input" in attrs else len(function.params)
        places: dict[str, list[Place]] = {}
        for number, param in enumerate(function.params):
            name, (shape, dtype) = self.names(param), self._described(param.ty)
            self.values[name] = param
            self.nodes[name] = Node(name, "input" if number < count else "constant", (), {}, shape, dtype)
            for axis, dim in enumerate(shape or ()):
                if dim.constant is None:
                    places.setdefault(str(dim), []).append((name, axis))
        for number, block in enumerate(function.body.blocks):
            for binding in block.bindings:
                name = self.names(binding.var)
                if type(binding.var).__name__ == "DataflowVar":
                    self.scopes[name] = number
                self.nodes[name] = self._node(name, binding)
                self.values.setdefault(name, binding.var)
        outputs = self._read_by(function.body.body)
        graph = recognised(Graph(self.nodes, outputs))
        return Read(Model(graph, places, {}, {}), self.values, self.scopes, self.sizes)

    def _node(self, name: str, binding: Any) -> Node:
        shape, dtype = self._described(binding.var.ty)
        value = binding.value
        kind = type(value).__name__
        if kind == CONSTANT:
            self.values[name] = value
            return Node(name, "constant", (), {}, shape, dtype)
        sources = self._read_by(value)
        if kind in VARIABLES and sources and shape is not None and self.nodes[sources[0]].shape == shape:
            return Node(name, "identity", sources, {}, shape, dtype)
        called: Any = getattr(value, "op", None)
        op = str(called.name).removeprefix(PREFIX) if type(called).__name__ == "Op" else kind
        if op == SPLIT:
            self.splits[name] = value
        if not hasattr(binding.var.ty, "ndim") or kind == "ShapeExpr":
            return Node(name, "scalar", sources, {}, shape, dtype)
        if kind in ("TupleGetItem", *VARIABLES) or op == SLICE:
            # Of a tuple; or one whose shape is given here, and was not known before.
            source, part = self._part(value, op, sources)
            return Node(name, "part", source, part, shape, dtype)
        try:
            translated = self._translated(op, value)
        except CannotLift as reason:
            return Node(name, "unknown", sources, {}, shape, dtype, f"{op}: {reason}")
        except Exception as error:  # a defect of ours must not end the model
            return Node(name, "unknown", sources, {}, shape, dtype, f"{op}: {defect(error, name)}")
        return Node(name, translated.op, translated.inputs, translated.attrs, shape, dtype)

    def _part(self, value: Any, op: str, sources: tuple[str, ...]) -> tuple[tuple[str, ...], Mapping[str, Any]]:
        """What a part is taken of, and its attributes; of one of several values what was split."""
        split = self.splits.get(sources[0]) if sources and op == "TupleGetItem" else None
        call = value if op == SLICE else split
        source = self._read_by(call)[:1] if call is not None else ()
        shape = self.nodes[source[0]].shape if source else None
        if call is None or shape is None:
            return sources, {}
        if op == SLICE:
            return source, slice_of(call, shape)
        fields = [self._described(each)[0] for each in value.tuple_value.ty.fields]
        return source, item_of(call, int(value.index), fields, shape)

    def _translated(self, op: str, value: Any) -> Translated:
        if op == "call_tir":
            raise CannotLift(
                f"the loops of {value.args[0].name_hint} are not read: extract before operators are lowered"
            )
        if op not in ELEMENTWISE_NAMES and op not in TRANSLATIONS:
            raise CannotLift("the operator has no translation")
        # Several tensors come as a tuple.
        args = list(getattr(value.args[0], "fields", value.args)) if op == "concat" else value.args
        inputs = tuple(self._input(each) for each in args if type(each).__name__ != "ShapeExpr")
        if op in ELEMENTWISE_NAMES:
            return Translated(ELEMENTWISE_NAMES[op], inputs)
        given = [self.nodes[each] if isinstance(each, str) else None for each in inputs]
        shapes = tuple(None if each is None else each.shape for each in given)
        dtypes = tuple("" if each is None else each.dtype for each in given)
        return TRANSLATIONS[op](Call(inputs, shapes, dtypes, value.attrs))

    def _input(self, value: Any) -> Input:
        """A variable's name, a number, or a constant that stands in the call, which becomes a node."""
        kind = type(value).__name__
        if kind in VARIABLES:
            return self.names(value)
        if kind == CONSTANT:
            shape, dtype = self._described(value.ty)
            if shape == ():
                return float(value.value.numpy())
            name = self.names.fresh("constant")
            self.nodes[name], self.values[name] = Node(name, "constant", (), {}, shape, dtype), value
            return name
        raise CannotLift(f"an argument is a {kind}")

    def _read_by(self, value: Any) -> tuple[str, ...]:
        """The variables that an expression reads, those inside of branches and functions among them."""
        from tvm import relax  # noqa: PLC0415 - for those who have a module of it

        names = map(self.names, relax.analysis.free_vars(value))
        return tuple(name for name in dict.fromkeys(names) if name in self.nodes)

    # -- types ------------------------------------------------------------------------------------------------------
    def _described(self, info: Any) -> tuple[Shape | None, str]:
        """Shape and dtype of a tensor; nothing where the value is none, or they are not known."""
        dtype, shape = getattr(info, "dtype", None), getattr(info, "shape", None)
        if not hasattr(info, "ndim"):
            return None, ""
        try:
            dims = None if shape is None or not hasattr(shape, "values") else tuple(map(self._dim, shape.values))
        except (CannotLift, InvalidInput):
            dims = None
        return dims, "" if dtype is None else str(dtype)

    def _dim(self, expr: Any) -> DimExpr:
        """The dim of an expression of TensorIR over a module's symbolic variables."""
        kind = type(expr).__name__
        if kind == "IntImm":
            return DimExpr.of(int(expr.value))
        if kind == "Var":
            return DimExpr.var(self.sizes(expr))
        if kind in ("Add", "Sub", "Mul"):
            left, right = self._dim(expr.a), self._dim(expr.b)
            return left + right if kind == "Add" else (left - right if kind == "Sub" else left * right)
        if kind in ("FloorDiv", "FloorMod") and type(expr.b).__name__ == "IntImm":
            divisor = int(expr.b.value)
            return self._dim(expr.a) // divisor if kind == "FloorDiv" else self._dim(expr.a) % divisor
        raise CannotLift(f"the size {expr} is no dim")
