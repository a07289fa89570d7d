"""Relax modules as the neutral graph: the calls of ``relax.op`` in the function ``main``.

Parameters behind the first ``num_input`` are weights, as TVM's importers mark them. What was lowered to TensorIR
already (``call_tir``) is left: no program is made of loops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shapewright.models.graph import CannotLift, Graph, Input, Node, Shape
from shapewright.models.model import Model, Place
from shapewright.models.patterns import recognised
from shapewright.models.translated import Translated, literal
from tuner.errors import InvalidInput
from tuner.program.dims import DimExpr

MAIN = "main"
PREFIX = "relax."
CONSTANT = "GenericConst"
"""What TVM calls the type of a constant."""
ELEMENTWISE_NAMES: Mapping[str, str] = {
    **{name: name for name in ("sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "erf", "sin", "cos", "abs", "floor")},
    **{name: name for name in ("square", "round", "maximum", "minimum", "add", "multiply", "subtract", "divide")},
    **{f"nn.{name}": name for name in ("relu", "gelu", "gelu_tanh", "silu")},
    "negative": "neg",
    "multiply": "mul",
    "subtract": "sub",
    "divide": "div",
}
PARTS = frozenset({"split", "strided_slice", "take_item"})


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operator: its inputs, their ranks, and its attributes."""

    inputs: tuple[Input, ...]
    ranks: tuple[int, ...]
    attrs: Any

    def attr(self, name: str, default: Any = None) -> Any:
        value = getattr(self.attrs, name, default)
        return default if value is None else value

    def integers(self, name: str, default: Any = ()) -> tuple[int, ...]:
        value = self.attr(name, default)
        return tuple(int(each) for each in value) if hasattr(value, "__len__") else (int(value),)


@dataclass(frozen=True, slots=True)
class Read:
    """A function that was read. ``values``: by node the variable or the constant of Relax that has its value."""

    model: Model
    values: Mapping[str, Any]


def from_relax(module: Any) -> Model:
    """An ``IRModule`` with a Relax function ``main``. Raises InvalidInput where there is none."""
    functions = {variable.name_hint: function for variable, function in module.functions.items()}
    main = functions.get(MAIN)
    if main is None or not hasattr(main.body, "blocks"):
        raise InvalidInput("model", f"the module has no Relax function {MAIN}", "relax.transform.Normalize() it first")
    return read_function(main).model


def read_function(function: Any) -> Read:
    """A Relax function whose body is in blocks. Raises InvalidInput where names repeat."""
    attrs = function.attrs or {}
    count = int(attrs["num_input"]) if "num_input" in attrs else len(function.params)
    nodes: dict[str, Node] = {}
    values: dict[str, Any] = {}
    places: dict[str, list[Place]] = {}
    for number, param in enumerate(function.params):
        shape, dtype = _described(param.ty)
        values[param.name] = param
        nodes[param.name] = Node(param.name, "input" if number < count else "constant", (), {}, shape, dtype)
        for axis, dim in enumerate(shape or ()):
            if dim.constant is None:
                places.setdefault(str(dim), []).append((param.name, axis))
    for block in function.body.blocks:
        for binding in block.bindings:
            name = binding.var.name
            if name in nodes:
                raise InvalidInput("model", f"two values are called {name}", "relax.transform.Normalize() it first")
            nodes[name] = _node(name, binding, nodes, values)
            values.setdefault(name, binding.var)
    outputs = _names_in(function.body.body, nodes)
    return Read(Model(recognised(Graph(nodes, tuple(outputs))), places, {}, {}), values)


def _node(name: str, binding: Any, nodes: dict[str, Node], values: dict[str, Any]) -> Node:
    shape, dtype = _described(binding.var.ty)
    value = getattr(binding, "value", None)
    kind = type(value).__name__
    if kind == CONSTANT:
        values[name] = value
        return Node(name, "constant", (), {}, shape, dtype)
    sources = tuple(dict.fromkeys(_names_in(value, nodes)))
    if kind in ("Var", "DataflowVar"):
        return Node(name, "identity", sources, {}, shape, dtype)
    if not dtype:
        return Node(name, "scalar", sources, {}, shape, dtype)
    if kind == "TupleGetItem":
        return Node(name, "part", sources, {}, shape, dtype)
    op = str(getattr(getattr(value, "op", None), "name", kind)).removeprefix(PREFIX)
    try:
        translated = _translated(op, value, nodes, values)
    except CannotLift as reason:
        return Node(name, "unknown", sources, {}, shape, dtype, f"{op}: {reason}")
    return Node(name, translated.op, translated.inputs, translated.attrs, shape, dtype)


def _translated(op: str, value: Any, nodes: dict[str, Node], values: dict[str, Any]) -> Translated:
    if op == "call_tir":
        raise CannotLift(f"the loops of {value.args[0].name_hint} are not read: extract before operators are lowered")
    if op not in ELEMENTWISE_NAMES and op not in TRANSLATIONS:
        raise CannotLift("the operator has no translation")
    inputs = tuple(_input(each, nodes, values) for each in value.args if type(each).__name__ != "ShapeExpr")
    if op in ELEMENTWISE_NAMES:
        return Translated(ELEMENTWISE_NAMES[op], inputs)
    ranks = tuple(len(nodes[each].shape or ()) if isinstance(each, str) else 0 for each in inputs)
    return TRANSLATIONS[op](Call(inputs, ranks, value.attrs))


def _input(value: Any, nodes: dict[str, Node], values: dict[str, Any]) -> Input:
    """A variable's name, a number, or a constant that stands in the call, which becomes a node."""
    kind = type(value).__name__
    if kind in ("Var", "DataflowVar"):
        return str(value.name)
    if kind == CONSTANT:
        shape, dtype = _described(value.ty)
        if shape == ():
            return float(value.value.numpy())
        name = f"constant_{len(nodes)}"
        nodes[name], values[name] = Node(name, "constant", (), {}, shape, dtype), value
        return name
    raise CannotLift(f"an argument is a {kind}")


def _names_in(value: Any, nodes: Mapping[str, Node]) -> list[str]:
    """The variables that an expression reads."""
    parts = [value, *getattr(value, "args", ()), *getattr(value, "fields", ())]
    parts += [value.tuple_value] if hasattr(value, "tuple_value") else []
    names = [str(part.name) for part in parts if type(part).__name__ in ("Var", "DataflowVar")]
    names += [name for part in parts[1:] if hasattr(part, "fields") for name in _names_in(part, nodes)]
    return [name for name in names if name in nodes]


def _described(info: Any) -> tuple[Shape | None, str]:
    """Shape and dtype of a tensor; no dtype where the value is none."""
    dtype, shape = getattr(info, "dtype", None), getattr(info, "shape", None)
    if dtype is None or not hasattr(info, "ndim"):
        return None, ""
    try:
        dims = None if shape is None or not hasattr(shape, "values") else tuple(map(_dim, shape.values))
    except CannotLift:
        dims = None
    return dims, str(dtype)


def _dim(expr: Any) -> DimExpr:
    """Of an expression of TensorIR over a module's symbolic variables."""
    kind = type(expr).__name__
    if kind == "IntImm":
        return DimExpr.of(int(expr.value))
    if kind == "Var":
        return DimExpr.var(str(expr.name))
    if kind in ("Add", "Sub", "Mul"):
        left, right = _dim(expr.a), _dim(expr.b)
        return left + right if kind == "Add" else (left - right if kind == "Sub" else left * right)
    if kind in ("FloorDiv", "FloorMod") and type(expr.b).__name__ == "IntImm":
        divisor = int(expr.b.value)
        return _dim(expr.a) // divisor if kind == "FloorDiv" else _dim(expr.a) % divisor
    raise CannotLift(f"the size {expr} is no dim")


# -- operators ------------------------------------------------------------------------------------------------------
def _norm(op: str) -> Callable[[Call], Translated]:
    def translate(call: Call) -> Translated:
        axes, rank = sorted(axis % call.ranks[0] for axis in call.integers("axes")), call.ranks[0]
        if axes != list(range(rank - len(axes), rank)) or not all(
            call.attr(name, True) for name in ("center", "scale")
        ):
            raise CannotLift("it is not over the last axes, or leaves out its vectors")
        return Translated(op, call.inputs, {"rank": len(axes), "eps": float(call.attr("epsilon", 1e-5))})

    return translate


def _attention(call: Call) -> Translated:
    causal = str(call.attr("causal_mask", "") or "")
    scale = call.attr("scale")
    if call.attr("window_size"):
        raise CannotLift("a window of positions")
    attrs = {
        "causal": bool(causal),
        "scale": None if scale is None else float(getattr(scale, "value", scale)),
        "heads_behind": True,
    }
    return Translated("attention", (*call.inputs, None)[:4], attrs)


def _conv(rank: int) -> Callable[[Call], Translated]:
    layouts = {1: ("NCW", "OIW"), 2: ("NCHW", "OIHW"), 3: ("NCDHW", "OIDHW")}[rank]

    def translate(call: Call) -> Translated:
        if (str(call.attr("data_layout")), str(call.attr("kernel_layout"))) != layouts:
            raise CannotLift(f"other layouts than {' and '.join(layouts)}")
        pad = call.integers("padding")
        if len(pad) == 2 * rank and pad[:rank] != pad[rank:]:
            raise CannotLift(f"padding {list(pad)} differs between the sides")
        attrs = {
            "stride": _spread(call.integers("strides"), rank),
            "pad": _spread(pad[:rank], rank),
            "dilation": _spread(call.integers("dilation"), rank),
            "groups": int(call.attr("groups", 1)),
            "transposed": False,
        }
        return Translated("conv", call.inputs, attrs)

    return translate


def _spread(values: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return values * rank if len(values) == 1 else values


def _pool(op: str) -> Callable[[Call], Translated]:
    def translate(call: Call) -> Translated:
        pad = call.integers("padding")
        if (
            str(call.attr("layout")) != "NCHW"
            or call.attr("ceil_mode", False)
            or (pad[:2] != pad[2:] and len(pad) == 4)
        ):
            raise CannotLift("another layout than NCHW, ceil_mode, or padding that differs between the sides")
        if op == "avg_pool" and any(pad) and not call.attr("count_include_pad", False):
            raise CannotLift("its means do not count the padding")
        names = {"window": "pool_size", "stride": "strides", "dilation": "dilation"}
        attrs = {name: _spread(call.integers(attr), 2) for name, attr in names.items()}
        return Translated(op, call.inputs, {**attrs, "pad": _spread(pad[:2], 2)})

    return translate


def _reduce(kind: str) -> Callable[[Call], Translated]:
    def translate(call: Call) -> Translated:
        axes = list(call.integers("axis", tuple(range(call.ranks[0]))))
        return Translated(
            "reduce", call.inputs, {"kind": kind, "axes": axes, "keep": bool(call.attr("keepdims", False))}
        )

    return translate


def _permute(call: Call) -> Translated:
    order = call.integers("axes", tuple(reversed(range(call.ranks[0]))))
    return Translated("permute", call.inputs, {"order": tuple(axis % call.ranks[0] for axis in order)})


def _view(op: str) -> Callable[[Call], Translated]:
    return lambda call: Translated(op, call.inputs[:1])


TRANSLATIONS: Mapping[str, Callable[[Call], Translated]] = {
    "matmul": lambda call: Translated("matmul", call.inputs),
    **{f"nn.conv{rank}d": _conv(rank) for rank in (1, 2, 3)},
    "nn.max_pool2d": _pool("max_pool"),
    "nn.avg_pool2d": _pool("avg_pool"),
    "nn.layer_norm": _norm("layer_norm"),
    "nn.rms_norm": _norm("rms_norm"),
    "nn.softmax": lambda call: Translated("softmax", call.inputs, {"axis": int(call.attr("axis", -1))}),
    **dict.fromkeys(("nn.attention", "nn.attention_bias"), _attention),
    "nn.leakyrelu": lambda call: Translated("leaky_relu", call.inputs, {"slope": literal(float(call.attr("alpha")))}),
    "nn.relu6": lambda call: Translated("clamp", call.inputs, {"low": "0.0", "high": "6.0"}),
    **{kind: _reduce(kind) for kind in ("mean", "sum", "max")},
    "permute_dims": _permute,
    **dict.fromkeys(("reshape", "expand_dims", "squeeze", "flatten"), _view("reshape")),
    "broadcast_to": _view("expand"),
}
"""By name what translates a call. Raises CannotLift with the reason."""
