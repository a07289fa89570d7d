"""ONNX models as the neutral graph. Nodes of that are called by the values of ONNX; weights are not read.

Shapes follow from the operators (``onnx_operators``); where they do not, those that the file or ONNX's own inference
give are taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shapewright.models.defects import defect
from shapewright.models.elementwise import BYTES
from shapewright.models.graph import CannotLift, Graph, Node, Shape
from shapewright.models.model import Model
from shapewright.models.onnx_bytes import Spelling, spelled
from shapewright.models.onnx_dims import Dims, dtype_of
from shapewright.models.onnx_inferred import CHECK, inferred
from shapewright.models.onnx_operators import TRANSLATIONS
from shapewright.models.onnx_parts import parts_of
from shapewright.models.onnx_schemas import Call, Operator, Operators, attribute_value
from shapewright.models.onnx_values import Values, folded, is_kept, shape_values
from shapewright.models.patterns import recognised
from shapewright.models.translated import Translated
from tuner.errors import InvalidInput, shown
from tuner.program.language.dims import MAX_DIM, DimExpr

OVERRIDDEN_SINCE = 4
"""The version of the file's format since which an initializer that is an input too is only its default."""


def from_file(path: Path) -> Model:
    """An `.onnx` file; of data that lies in further files, only what may be a shape or a number is read."""
    import onnx  # noqa: PLC0415 - a frontend for those who have the framework

    try:
        proto = onnx.load(path, load_external_data=False)
    except Exception as error:  # classes of protobuf's, which are not ours to import
        reason = f"{path} cannot be read: {str(error).splitlines()[0][:200]}"
        raise InvalidInput("model", reason, "a file that an ONNX exporter wrote") from error
    for tensor in _tensors(proto.graph):
        if is_kept(dtype_of(tensor.data_type), tensor.dims):
            _load(tensor, path.parent)
    return from_onnx(proto)


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    yield from (each.t for node in graph.node for each in node.attribute if each.HasField("t"))


def _load(tensor: Any, folder: Path) -> None:
    """Read a tensor of another file; where that file is not at hand, its values are not known."""
    import onnx  # noqa: PLC0415

    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return
    try:
        onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))
    except (OSError, ValueError, onnx.checker.ValidationError):
        return
    tensor.data_location = onnx.TensorProto.DEFAULT


def from_onnx(proto: Any) -> Model:
    """An ``onnx.ModelProto``. Raises InvalidInput where it is none that could run."""
    return _Reader(inferred(proto)).model()


class _Reader:
    """Goes through the nodes in order, and keeps what is known of every value."""

    def __init__(self, proto: Any) -> None:
        graph = proto.graph
        self._proto = proto
        self._operators = Operators(proto)
        self._nodes: dict[str, Node] = {}
        self._values: dict[str, Values] = {}
        self._dims = Dims(graph)
        self._declared = {each.name: each.type for each in (*graph.value_info, *graph.output)}
        self._read = {name for node in graph.node for name in (*node.input, *_captured(node))}
        self._read |= {each.name for each in graph.output}

    def model(self) -> Model:
        graph = self._proto.graph
        given = {value.name for value in graph.input} if self._proto.ir_version >= OVERRIDDEN_SINCE else set()
        for tensor in graph.initializer:
            if tensor.name not in given:
                self._constant(tensor.name, tensor)
        for tensor in graph.sparse_initializer:
            if tensor.values.name not in given:
                self._sparse(tensor.values.name, tensor)
        held = set(self._nodes)
        for value in graph.input:
            if value.name not in held:
                self._add(Node(value.name, "input", (), {}, *self._dims.input(value)))
        for node in graph.node:
            self._node(node)
        outputs = tuple(dict.fromkeys(each.name for each in graph.output))
        for name in outputs:
            self._require(name, "the model returns")
        return Model(recognised(Graph(self._nodes, outputs)), self._dims.places, {}, {})

    def _add(self, node: Node) -> None:
        if node.name in self._nodes:
            raise InvalidInput("model", f"two values are called {shown(node.name)}", CHECK)
        self._nodes[node.name] = node

    def _require(self, name: str, reader: str) -> None:
        if name not in self._nodes:
            raise InvalidInput("model", f"{reader} {shown(name)}, which nothing before it computes", CHECK)

    # -- constants --------------------------------------------------------------------------------------------------
    def _constant(self, name: str, tensor: Any) -> None:
        import onnx  # noqa: PLC0415

        dtype, attrs = dtype_of(tensor.data_type), dict[str, Any]()
        shape = _sizes(name, tensor)
        # Of zero points, which are bytes along an axis, it matters whether there are any.
        is_read = is_kept(dtype, tensor.dims) or dtype == "bool" or (dtype in BYTES and len(tensor.dims) < 2)
        if tensor.data_location != onnx.TensorProto.EXTERNAL and is_read:
            try:
                values = onnx.numpy_helper.to_array(tensor)
            except (ValueError, TypeError) as error:
                raise InvalidInput("model", f"the constant {shown(name)} is not of its own shape", CHECK) from error
            if is_kept(dtype, tensor.dims):
                self._values[name] = values
            if (dtype == "bool" or dtype in BYTES) and values.size and (values == values.flat[0]).all():
                attrs = {"value": values.flat[0].item()}
        self._add(Node(name, "constant", (), attrs, shape, dtype))

    def _sparse(self, name: str, tensor: Any) -> None:
        self._add(Node(name, "constant", (), {}, _sizes(name, tensor), dtype_of(tensor.values.data_type)))

    def _constant_node(self, name: str, attrs: Mapping[str, Any]) -> None:
        """Raises CannotLift where it has no one value."""
        import onnx  # noqa: PLC0415

        if len(attrs) != 1:
            raise CannotLift(f"it has {len(attrs)} values")
        ((kind, value),) = attrs.items()
        if kind == "value":
            self._constant(name, value)
        elif kind == "sparse_value":
            self._sparse(name, value)
        else:
            dtype = {"float": np.float32, "int": np.int64, "string": object}[kind.removeprefix("value_").rstrip("s")]
            self._constant(name, onnx.numpy_helper.from_array(np.array(value, dtype=dtype), name))

    # -- nodes ------------------------------------------------------------------------------------------------------
    def _node(self, node: Any) -> None:
        outputs = [each for each in node.output if each]
        for each in filter(None, node.input):
            self._require(each, f"{node.op_type} reads")
        if not outputs:
            return
        try:
            self._known(node, self._operators.operator(node))
        except InvalidInput:
            raise
        except CannotLift as reason:
            self._left(node, outputs[0], f"{node.op_type}: {reason}")
        except Exception as error:
            # A node that is left leaves the others as they are, whatever went wrong.
            self._left(node, outputs[0], f"{node.op_type}: {defect(error, f'a node {node.op_type} of ONNX')}")
        for output in outputs:
            if output not in self._nodes and output in self._read:
                self._add(Node(output, "part", (outputs[0],), {}, *self._told(output)))

    def _known(self, node: Any, operator: Operator) -> None:
        """A node of ONNX's own operators. Raises CannotLift where it is left."""
        given = {each.name: attribute_value(each) for each in node.attribute}
        attrs = {**operator.defaults, **given}
        if "to" in attrs:
            attrs["to"] = dtype_of(attrs["to"])
        name = node.output[0]
        value = self._value(node, attrs)
        if node.op_type == "Constant":
            self._constant_node(name, given)
            return None
        if value is not None:
            self._values[name] = value
            dtype = "int64" if value.dtype == object else value.dtype.name
            self._add(Node(name, "scalar", self._sources(node), {}, tuple(map(DimExpr.of, value.shape)), dtype))
            return None
        call = self._call(node, operator, given)
        outputs = [each for each in node.output if each]
        if (nodes := spelled(call, Spelling(outputs, self._nodes, node.name or name))) is not None:
            for each in nodes:
                self._add(each)
            return None
        found = parts_of(call, [self._told(each)[0] if each else None for each in node.output])
        if found is None:
            return self._translate(node, call, attrs)
        for output, own in ((each, own) for each, own in zip(node.output, found, strict=True) if each):
            shape, dtype = self._told(output)
            sources = self._sources(node)[:1] if own else self._sources(node)
            self._add(Node(output, "part", sources, own, shape, dtype or self._dtype(node)))
        return None

    def _translate(self, node: Any, call: Call, attrs: Mapping[str, Any]) -> None:
        name, (told, dtype) = node.output[0], self._told(node.output[0])
        if any(each in self._read for each in node.output[1:] if each) or not name:
            raise CannotLift("what it gives beside its first output is read")
        translated, shape = self._translated(call, attrs)
        shape, place = told if shape is None else shape, node.name or name
        dtype = attrs["to"] if translated.op == "cast" else dtype or self._dtype(node)
        self._add(Node(name, translated.op, translated.inputs, translated.attrs, shape, dtype, place=place))

    def _translated(self, call: Call, attrs: Mapping[str, Any]) -> tuple[Translated, Shape | None]:
        if call.op == "Cast":
            source = self._nodes[call.inputs[0] or ""].dtype
            is_of_integers = source in (*BYTES, "int32") and attrs["to"] in ("float32", "float16", "bfloat16")
            if not is_of_integers and (attrs["to"] != source or not attrs["to"]):
                raise CannotLift("another dtype")
            return Translated("cast" if is_of_integers else "identity", call.inputs), call.shapes[0]
        if call.op not in TRANSLATIONS:
            raise CannotLift("the operator has no translation")
        try:
            found = TRANSLATIONS[call.op](call)
            call.require_all_read()
        except InvalidInput as error:  # of dims
            raise CannotLift(error.problem) from error
        return found

    def _call(self, node: Any, operator: Operator, given: Mapping[str, Any]) -> Call:
        inputs = [each or None for each in node.input]
        while inputs and inputs[-1] is None:
            inputs.pop()
        shapes = tuple(self._nodes[each].shape if each else None for each in inputs)
        values = tuple(self._values.get(each) if each else None for each in inputs)
        return Call(operator, tuple(inputs), given, shapes, values, sum(map(bool, node.output)))

    def _value(self, node: Any, attrs: Mapping[str, Any]) -> Values | None:
        """What a node computes of known values, or of shapes."""
        if len(node.output) != 1:
            return None
        if node.op_type == "Shape":
            shape = self._nodes[node.input[0]].shape
            return None if shape is None else shape_values(shape[attrs.get("start") or 0 : attrs.get("end")])
        return folded(node.op_type, [self._values.get(each) for each in node.input], attrs)

    def _left(self, node: Any, name: str, reason: str) -> None:
        shape, dtype = self._told(name)
        place = node.name or name
        self._add(Node(name, "unknown", self._sources(node), {}, shape, dtype, reason, place=place))

    def _told(self, name: str) -> tuple[Shape | None, str]:
        """What the file or ONNX's inference says of a value."""
        return self._dims.told(self._declared[name]) if name in self._declared else (None, "")

    def _sources(self, node: Any) -> tuple[str, ...]:
        return tuple(each for each in dict.fromkeys((*node.input, *_captured(node))) if each in self._nodes)

    def _dtype(self, node: Any) -> str:
        """The dtype of the first input, which all operators that are translated keep."""
        return self._nodes[node.input[0]].dtype if node.input and node.input[0] else ""


def _sizes(name: str, tensor: Any) -> Shape:
    if not all(0 <= size <= MAX_DIM for size in tensor.dims):
        raise InvalidInput("model", f"the constant {shown(name)} has sizes {list(tensor.dims)}", CHECK)
    return tuple(DimExpr.of(int(size)) for size in tensor.dims)


def _captured(node: Any) -> Iterator[str]:
    """What the graphs in a node, the branches of an If, may read from outside."""
    for graph in (graph for each in node.attribute for graph in (each.g, *each.graphs)):
        yield from (each.name for each in graph.output)
        for inner in graph.node:
            yield from (*inner.input, *_captured(inner))
