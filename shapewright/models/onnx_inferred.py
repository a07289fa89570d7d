"""An ONNX model with the shapes that ONNX's own inference finds."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from shapewright.models.onnx_dims import name_dims
from shapewright.models.onnx_values import MAX_VALUES
from tuner.errors import InvalidInput

CHECK = "onnx.checker.check_model says more"


def inferred(proto: Any) -> Any:
    """A copy of an ``onnx.ModelProto`` with shapes, without the values of its weights. Raises InvalidInput.

    What a file says of values in between counts only where it agrees with what follows from the inputs: who makes an
    input dynamic leaves the sizes of an earlier batch behind, and ONNX's inference prefers these.
    """
    if not proto.HasField("graph"):
        raise InvalidInput("model", "there is no graph in it", "what an ONNX exporter wrote to its end")
    light = _without_weights(proto)
    alone = _inferred(_without_shapes(light))
    return alone if _disagree(light.graph, alone.graph) else _inferred(light)


def _inferred(light: Any) -> Any:
    import onnx  # noqa: PLC0415 - a frontend for those who have the framework

    try:
        return onnx.shape_inference.infer_shapes(light, data_prop=True)
    except Exception as error:  # classes of its own, which differ between releases
        reason = f"ONNX finds it inconsistent: {(str(error).splitlines() or [''])[0][:200]}"
        raise InvalidInput("model", reason, CHECK) from error


def _without_weights(proto: Any) -> Any:
    """What is read of a model: ONNX's inference copies all that it is given, and takes no more than 2 GiB."""
    import onnx  # noqa: PLC0415

    whole = proto.graph
    graph = onnx.GraphProto(
        name=whole.name,
        node=whole.node,
        input=whole.input,
        output=whole.output,
        value_info=whole.value_info,
        initializer=[_without_data(tensor) for tensor in whole.initializer],
        sparse_initializer=whole.sparse_initializer,
    )
    name_dims(graph)
    return onnx.ModelProto(
        ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions, graph=graph
    )


def _without_data(tensor: Any) -> Any:
    """A tensor as one whose data lies in another file; masks, and what may be a shape or a number, as they are."""
    import onnx  # noqa: PLC0415

    if tensor.data_type == onnx.TensorProto.BOOL or math.prod(tensor.dims) <= MAX_VALUES:
        return tensor
    location = onnx.TensorProto.EXTERNAL
    return onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, data_location=location)


def _without_shapes(light: Any) -> Any:
    """A copy that says nothing of values but the inputs."""
    import onnx  # noqa: PLC0415

    copy = onnx.ModelProto()
    copy.CopyFrom(light)
    del copy.graph.value_info[:]
    for value in copy.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return copy


def _disagree(declared: Any, alone: Any) -> bool:
    """Whether a graph declares a size of a value that is another one, or dynamic, as it follows from the inputs."""
    found = {value.name: value.type.tensor_type for value in (*alone.value_info, *alone.output)}
    dynamic = {dim.dim_param for value in alone.input for dim in value.type.tensor_type.shape.dim} - {""}
    values = (*declared.value_info, *declared.output)
    return any(_differ(value.type.tensor_type, found[value.name], dynamic) for value in values if value.name in found)


def _differ(declared: Any, found: Any, dynamic: Collection[str]) -> bool:
    if not declared.HasField("shape") or not found.HasField("shape"):
        return False
    own, other = declared.shape.dim, found.shape.dim
    if len(own) != len(other):
        return True
    return any(
        each.HasField("dim_value")
        and (dim.dim_param in dynamic or (dim.HasField("dim_value") and dim.dim_value != each.dim_value))
        for each, dim in zip(own, other, strict=True)
    )
