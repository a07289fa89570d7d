"""ONNX's operators that compute along rows: norms, softmax, attention, reductions."""

from __future__ import annotations

from collections.abc import Callable

from shapewright.models.graph import ONE, CannotLift, Shape
from shapewright.models.onnx_schemas import Call, Result, axis_of
from shapewright.models.translated import Translated


def norm(op: str, count: int) -> Callable[[Call], Result]:
    def translate(call: Call) -> Result:
        x = call.shape(0)
        rank = len(x) - axis_of(call.attr("axis"), len(x))
        for position in range(1, len(call.tensors(count))):
            _require_of_last_axes(call, position, x, rank)
        return Translated(op, call.tensors(count), {"rank": rank, "eps": call.attr("epsilon")}), x

    return translate


def _require_of_last_axes(call: Call, position: int, x: Shape, rank: int) -> None:
    """Raises CannotLift where an input is not of the ``rank`` last axes of x: it may be broadcast along the rows."""
    if call.tensor(position) is None:
        return
    own = call.shape(position)
    whole = (*(ONE for _ in range(len(x) - len(own))), *own)
    if whole != (*(ONE for _ in range(len(x) - rank)), *x[len(x) - rank :]):
        raise CannotLift(f"its input {position} is not of the axes that it normalizes")


def batch_norm(call: Call) -> Result:
    is_test = call.attr("is_test") if call.version < 7 else not call.attr("training_mode")
    # Between an attribute that says so and another one, it was the number of the outputs.
    if not is_test or (call.version < 14 and call.outputs > 1):
        raise CannotLift("its statistics are those of the batch")
    call.attr("momentum")  # of the statistics, which are not updated
    return Translated("batch_norm", call.tensors(5), {"eps": call.attr("epsilon")}), call.shape(0)


def instance_norm(call: Call) -> Result:
    x = call.shape(0)
    if len(x) < 3:
        raise CannotLift(f"a norm of images of {len(x)} axes")
    if call.version < 6:
        call.attr("consumed_inputs")  # of inputs that may be overwritten
    return Translated("instance_norm", call.tensors(3), {"eps": call.attr("epsilon")}), x


def softmax(op: str) -> Callable[[Call], Result]:
    def translate(call: Call) -> Result:
        x = call.shape(0)
        axis = axis_of(call.attr("axis"), len(x))
        if call.version < 13 and axis != len(x) - 1:
            raise CannotLift("it is over several axes, as before operator set 13")
        return Translated(op, call.tensors(1), {"axis": axis}), x

    return translate


def attention(call: Call) -> Result:
    q, v = call.shape(0), call.shape(2)
    if len(q) != 4 or len(v) != 4:
        raise CannotLift("its tensors do not have four axes")
    if call.tensor(3) is not None and call.shape(3)[-1:] != call.shape(1)[2:3]:
        # ONNX fills a shorter one with -inf, also where its last axis is 1.
        raise CannotLift("its mask is not of as many keys as there are")
    attrs = {"causal": bool(call.attr("is_causal")), "scale": call.attr("scale")}
    return Translated("attention", (*call.tensors(4), None)[:4], attrs), (*q[:3], v[3])


def reduce(call: Call) -> Result:
    x, given, keep = call.shape(0), call.integers("axes", 1), bool(call.attr("keepdims"))
    is_noop = call.attr("noop_with_empty_axes")
    if given == [] and call.attr("axes") is not None:
        raise CannotLift("its attribute axes is empty")
    if not given and is_noop:
        return Translated("identity", call.tensors(1)), x
    axes = sorted({axis_of(axis, len(x)) for axis in given or range(len(x))})
    shape = tuple(ONE if axis in axes else dim for axis, dim in enumerate(x) if keep or axis not in axes)
    kind = call.op.removeprefix("Reduce").lower()
    return Translated("reduce", call.tensors(1), {"kind": kind, "axes": axes, "keep": keep}), shape
