"""ONNX models as the neutral graph. Nodes of that are called by the values of ONNX; weights are not read.

Shapes follow from the operators (``onnx_operators``); where they do not, those that the file or ONNX's own inference
give are taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shapewright.models.graph import CannotLift, Graph, Input, Node, Shape
from shapewright.models.model import Model, Place
from shapewright.models.onnx_operators import TRANSLATIONS, Call
from shapewright.models.onnx_values import Values, computed, followed, is_short
from shapewright.models.patterns import recognised
from shapewright.models.translated import Translated
from tuner.errors import InvalidInput
from tuner.program.dims import MAX_DIM, DimExpr, parse_dim

PARTS = frozenset({"Slice", "Split"})


def from_file(path: Path) -> Model:
    """An `.onnx` file; data that lies in further files is not read."""
    import onnx  # noqa: PLC0415 - a frontend for those who have the framework

    try:
        proto = onnx.load(path, load_external_data=False)
    except Exception as error:  # classes of protobuf's, which are not ours to import
        reason = f"{path} cannot be read: {str(error).splitlines()[0][:200]}"
        raise InvalidInput("model", reason, "a file that an ONNX exporter wrote") from error
    return from_onnx(proto)


def from_onnx(proto: Any) -> Model:
    """An ``onnx.ModelProto``."""
    return _Reader(_inferred(proto)).model()


def _inferred(proto: Any) -> Any:
    import onnx  # noqa: PLC0415

    try:
        return onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except Exception as error:  # classes of its own, which differ between releases
        reason = f"ONNX finds it inconsistent: {str(error).splitlines()[0][:200]}"
        raise InvalidInput("model", reason, "onnx.checker.check_model says more") from error


class _Reader:
    """Goes through the nodes in order, and keeps what is known of every value."""

    def __init__(self, proto: Any) -> None:
        self._proto = proto
        self._opset = max((each.version for each in proto.opset_import if each.domain in ("", "ai.onnx")), default=0)
        self._nodes: dict[str, Node] = {}
        self._integers: dict[str, Values] = {}
        self._numbers: dict[str, float] = {}
        self._symbols: dict[str, str] = {}
        self._places: dict[str, list[Place]] = {}
        self._declared = {each.name: each.type for each in (*proto.graph.value_info, *proto.graph.output)}

    def model(self) -> Model:
        graph = self._proto.graph
        for tensor in graph.initializer:
            self._constant(tensor.name, tensor)
        for value in graph.input:
            if value.name not in self._nodes:
                self._input(value)
        for node in graph.node:
            self._node(node)
        read = Graph(self._nodes, tuple(dict.fromkeys(each.name for each in graph.output)))
        names = {symbol: name for name, symbol in self._symbols.items()}
        return Model(recognised(read), self._places, {}, names)

    # -- values -----------------------------------------------------------------------------------------------------
    def _constant(self, name: str, tensor: Any) -> None:
        import onnx  # noqa: PLC0415

        shape = tuple(DimExpr.of(int(size)) for size in tensor.dims)
        dtype = _dtype(tensor.data_type)
        self._nodes[name] = Node(name, "constant", (), {}, shape, dtype)
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            return
        if dtype in ("int64", "int32") and is_short(tensor.dims):
            values = onnx.numpy_helper.to_array(tensor).reshape(-1)
            # An end of a slice may be the largest number that there is.
            self._integers[name] = tuple(DimExpr.of(max(-MAX_DIM, min(int(value), MAX_DIM))) for value in values)
        if math.prod(tensor.dims) == 1:
            self._numbers[name] = _shortest(onnx.numpy_helper.to_array(tensor).reshape(-1)[0])

    def _input(self, value: Any) -> None:
        kind = value.type.tensor_type
        dims = tuple(self._dim(dim, f"{value.name}_{axis}") for axis, dim in enumerate(kind.shape.dim))
        self._nodes[value.name] = Node(value.name, "input", (), {}, dims, _dtype(kind.elem_type))
        for axis, dim in enumerate(dims):
            if dim.constant is None:
                self._places.setdefault(str(dim), []).append((value.name, axis))

    def _dim(self, dim: Any, otherwise: str) -> DimExpr:
        """A dim of the file: a size, the text of an expression, or a name, which may be no identifier."""
        if dim.HasField("dim_value"):
            return DimExpr.of(int(dim.dim_value))
        text = dim.dim_param or otherwise
        try:
            return parse_dim(text)
        except InvalidInput:
            kept = "".join(char if char.isascii() and char.isalnum() else "_" for char in text)[:30]
            symbol = self._symbols.setdefault(
                text, f"{kept if kept[:1].isalpha() else f'd_{kept}'}_{len(self._symbols)}"
            )
            return DimExpr.var(symbol)

    def _told(self, name: str) -> tuple[Shape | None, str]:
        """What the file or ONNX's inference says of a value."""
        kind = self._declared[name].tensor_type if name in self._declared else None
        if kind is None:
            return None, ""
        known = kind.HasField("shape") and all(d.HasField("dim_value") or d.dim_param for d in kind.shape.dim)
        shape = tuple(self._dim(dim, "") for dim in kind.shape.dim) if known else None
        return shape, _dtype(kind.elem_type)

    # -- nodes ------------------------------------------------------------------------------------------------------
    def _node(self, node: Any) -> None:
        import onnx  # noqa: PLC0415

        attrs = {each.name: _attribute(onnx.helper.get_attribute_value(each)) for each in node.attribute}
        name = node.output[0]
        if node.op_type == "Constant":
            self._constant_node(name, attrs)
            return
        sources = tuple(each for each in dict.fromkeys((*node.input, *_captured(node))) if each in self._nodes)
        integers = tuple(self._integers.get(each) for each in node.input)
        shape, dtype = self._told(name)
        known = self._followed(node, attrs, integers)
        if known is not None:
            self._integers[name] = known
            self._nodes[name] = Node(name, "scalar", sources, {}, shape, dtype or "int64")
            if len(known) == 1 and known[0].constant is not None:
                self._numbers[name] = float(known[0].constant)
            return
        number = computed(node.op_type, [self._numbers.get(each) for each in node.input])
        if number is not None:
            self._numbers[name] = number
            self._nodes[name] = Node(name, "scalar", sources, {}, shape, dtype or self._dtype_of(sources))
            return
        if node.op_type in PARTS:
            for output in node.output:
                given, kind = self._told(output)
                self._nodes[output] = Node(output, "part", sources, {}, given, kind or self._dtype_of(sources))
            return
        shape, translated, reason = self._translated(node, attrs, integers, shape)
        dtype = dtype or self._dtype_of(sources)
        place = node.name or name
        if translated is None:
            self._nodes[name] = Node(name, "unknown", sources, {}, shape, dtype, reason, place=place)
        else:
            self._nodes[name] = Node(
                name, translated.op, translated.inputs, translated.attrs, shape, dtype, place=place
            )
        for output in filter(None, node.output[1:]):
            given, kind = self._told(output)
            self._nodes[output] = Node(output, "part", (name,), {}, given, kind)

    def _translated(
        self, node: Any, attrs: Mapping[str, Any], integers: tuple[Values | None, ...], told: Shape | None
    ) -> tuple[Shape | None, Translated | None, str]:
        inputs: tuple[Input, ...] = tuple(self._numbers.get(each, each or None) for each in node.input)
        shapes = tuple(self._nodes[each].shape if each in self._nodes else None for each in node.input)
        call = Call(node.op_type, inputs, attrs, shapes, integers, self._opset)
        if node.op_type == "Cast" and node.input[0] in self._nodes:
            is_same = self._nodes[node.input[0]].dtype == _dtype(attrs["to"])
            return (
                (shapes[0], Translated("identity", inputs), "") if is_same else (shapes[0], None, "Cast: another dtype")
            )
        if node.op_type not in TRANSLATIONS:
            return told, None, f"{node.op_type}: the operator has no translation"
        try:
            translated, shape = TRANSLATIONS[node.op_type](call)
        except CannotLift as reason:
            return told, None, f"{node.op_type}: {reason}"
        return shape or told, translated, ""

    def _followed(self, node: Any, attrs: Mapping[str, Any], integers: tuple[Values | None, ...]) -> Values | None:
        """The integers that a node computes from shapes."""
        if node.op_type == "Shape":
            shape = self._nodes[node.input[0]].shape if node.input[0] in self._nodes else None
            return None if shape is None else shape[attrs.get("start", 0) : attrs.get("end")]
        return followed(node.op_type, integers, attrs)

    def _constant_node(self, name: str, attrs: Mapping[str, Any]) -> None:
        import onnx  # noqa: PLC0415

        if "value" in attrs:
            self._constant(name, attrs["value"])
            return
        value = next(iter(attrs.values()))
        listed = list(value) if isinstance(value, list | tuple) else [value]
        is_float = any(isinstance(each, float) for each in listed)
        kind = onnx.TensorProto.FLOAT if is_float else onnx.TensorProto.INT64
        dims = [len(listed)] if isinstance(value, list | tuple) else []
        self._constant(name, onnx.helper.make_tensor(name, kind, dims, listed))

    def _dtype_of(self, sources: tuple[str, ...]) -> str:
        return next((self._nodes[each].dtype for each in sources if self._nodes[each].dtype), "")


def _captured(node: Any) -> list[str]:
    """What the graphs in a node, the branches of an If, may read from outside."""
    graphs = [graph for each in node.attribute for graph in (each.g, *each.graphs)]
    return [name for graph in graphs for inner in graph.node for name in (*inner.input, *_captured(inner))]


def _attribute(value: Any) -> Any:
    if isinstance(value, float):
        return _shortest(np.float32(value))
    return value.decode() if isinstance(value, bytes) else value


def _shortest(value: Any) -> float:
    """What a number was before it was stored: 1e-5, not 9.999999747e-06."""
    return float(str(value))


def _dtype(number: int) -> str:
    """NumPy's name of an element type, empty where there is none."""
    import onnx  # noqa: PLC0415

    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(number).name)
    except (KeyError, ValueError):
        return ""
