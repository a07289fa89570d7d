"""An ONNX model with the shapes that ONNX's own inference finds."""

from __future__ import annotations

import math
from typing import Any

from shapewright.models.onnx_values import MAX_VALUES
from tuner.errors import InvalidInput

CHECK = "onnx.checker.check_model says more"


def inferred(proto: Any) -> Any:
    """A copy of an ``onnx.ModelProto`` with shapes, without the values of its weights. Raises InvalidInput."""
    import onnx  # noqa: PLC0415 - a frontend for those who have the framework

    if not proto.HasField("graph"):
        raise InvalidInput("model", "there is no graph in it", "what an ONNX exporter wrote to its end")
    try:
        return onnx.shape_inference.infer_shapes(_without_weights(proto), data_prop=True)
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
