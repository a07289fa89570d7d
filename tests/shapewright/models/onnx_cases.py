"""ONNX's own backend tests, and ONNX models checked value by value: what is lifted against ONNX's evaluator."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import helper
from onnx.backend.test import loader
from onnx.backend.test.case import node as node_cases
from onnx.reference import ReferenceEvaluator

from shapewright.models import lifting
from shapewright.models.graph import Node
from shapewright.models.lifted import LiftedOp, Lifting, unviewed
from shapewright.models.model import Model
from shapewright.models.onnx_model import from_onnx
from tests.shapewright.models.checking import TARGET
from tuner.program.reference import compute

KINDS = ("simple", "pytorch-converted", "pytorch-operator")
"""The backend tests that lie in files, beside those of single nodes, which are made when their module is loaded."""
CLOSE: Mapping[str, float] = {
    "float32": 1e-3, "float16": 1e-2, "bfloat16": 4e-2, "int32": 0.0, "int8": 0.0, "uint8": 0.0
}  # fmt: skip
"""Of the reference's float64 to what the tests expect, for values of about 1; bfloat16 is rounded at every node, and
integers are exact."""
Values = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A model with inputs and the outputs that are right for them, by data set; None for what is no tensor."""

    name: str
    model: Any
    sets: tuple[tuple[list[Any], list[Any]], ...]


@dataclass(frozen=True)
class Found:
    """Of one model: the nodes that were lifted and compared, and those that were left with their reasons."""

    compared: frozenset[str]
    left: Mapping[str, str]


def built(
    nodes: Sequence[Any],
    inputs: Mapping[str, Sequence[Any] | None],
    constants: Mapping[str, Any] | None = None,
    opset: int = 18,
    **fields: Any,
) -> Any:
    """A model of float32, whose only output is that of the last node; None is a shape that is not given."""
    graph = helper.make_graph(
        list(nodes),
        "built",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(nodes[-1].output[0], onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )
    domains = sorted({node.domain for node in nodes} - {""})
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, **fields)


def compared(model: Any, *inputs: Any, right: Any = None) -> Found:
    """A model for float32 inputs against ONNX's evaluator, or what is right; single elementwise nodes as well."""
    given = [np.asarray(each, dtype=np.float32) for each in inputs]
    expected = None if right is None else [np.asarray(right, dtype=np.float32)]
    return check(model, [values_of(model, given, expected)], minimum=1)


def reasons_of(model: Any) -> dict[str, str]:
    """Why nodes are left, without a run: of what ONNX's evaluator has not, or gives other numbers every time."""
    return {one.node: one.reason for one in lifting.lift_graph(from_onnx(model).graph, TARGET).left}


# -- the tests of ONNX ----------------------------------------------------------------------------------------------
def node_tests(modules: Iterable[str] | None = None) -> Iterator[Case]:
    """Of single nodes, of all operators or of the modules named."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if modules is None:
            found = list(loader.load_node_model_tests())
        else:
            for name in modules:
                importlib.import_module(f"{node_cases.__name__}.{name}")
            found = list(node_cases._NodeTestCases)
    for case in found:
        sets = tuple(([*map(_array, inputs)], [*map(_array, outputs)]) for inputs, outputs in case.data_sets)
        yield Case(case.name, case.model, sets)


def stored_tests(kind: str) -> Iterator[Case]:
    """Of small models in files."""
    for case in sorted(loader.load_model_tests(kind=kind), key=lambda each: str(each.name)):
        folder, model = Path(case.model_dir), onnx.load(Path(case.model_dir, "model.onnx"))
        held = {tensor.name for tensor in model.graph.initializer}
        inputs = [value for value in model.graph.input if value.name not in held]
        sets = tuple(
            (_stored(each, "input", inputs), _stored(each, "output", model.graph.output))
            for each in sorted(folder.glob("test_data_set_*"))
        )
        yield Case(f"{kind}/{case.name}", model, sets)


def _stored(folder: Path, kind: str, declared: Sequence[Any]) -> list[Any]:
    found = []
    for number, value in enumerate(declared):
        tensor, is_tensor = onnx.TensorProto(), value.type.HasField("tensor_type")
        if is_tensor:
            tensor.ParseFromString((folder / f"{kind}_{number}.pb").read_bytes())
        found.append(onnx.numpy_helper.to_array(tensor) if is_tensor else None)
    return found


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


# -- values ---------------------------------------------------------------------------------------------------------
def values_of(model: Any, inputs: Sequence[Any], outputs: Sequence[Any] | None = None) -> Values:
    """What is known of a run: inputs, initializers, what ONNX's evaluator computes, and outputs that are right."""
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    free = [value.name for value in model.graph.input if value.name not in held]
    names = [value.name for value in model.graph.input] if len(inputs) > len(free) else free
    feeds = dict(zip(names, inputs, strict=False))
    every = _copied(model)
    known = {value.name for value in model.graph.output}
    inner = dict.fromkeys(name for node in model.graph.node for name in node.output if name and name not in known)
    every.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
    computed: list[Any] = []
    try:
        # What single nodes give is told by their tests.
        computed = ReferenceEvaluator(every).run(None, dict(feeds)) if inner or outputs is None else []
    except Exception:
        # It has not every operator of every set: then what the test itself expects must be enough.
        if outputs is None:
            raise
    values = held | feeds | dict(zip([each.name for each in every.graph.output], computed, strict=False))
    values |= dict(zip([each.name for each in model.graph.output], outputs or (), strict=False))
    return {name: np.asarray(value) for name, value in values.items() if isinstance(value, np.ndarray | np.generic)}


def runs_of(case: Case) -> list[Values]:
    """The values of each data set."""
    return [values_of(case.model, inputs, outputs) for inputs, outputs in case.sets]


def negated(model: Any, runs: Sequence[Values]) -> tuple[Any, list[Values]] | None:
    """The same between two negations: views have something to be fused with, and operators readers and producers.

    None where nothing of it is of floats, or it has no operators of ONNX's own domain.
    """
    if all(each.domain for each in model.opset_import):
        return None
    model, held = _copied(model), {tensor.name for tensor in model.graph.initializer}
    graph = model.graph
    ins = {value.name for value in graph.input if value.name not in held and _is_negated(value)}
    outs = {value.name for value in graph.output if _is_negated(value)} - {value.name for value in graph.input}
    if not ins | outs or any(each.g.node for node in graph.node for each in node.attribute):
        return None
    for node in graph.node:
        node.input[:] = [f"{name}_in" if name in ins else name for name in node.input]
    first = [helper.make_node("Neg", [name], [f"{name}_in"]) for name in sorted(ins)]
    last = [helper.make_node("Neg", [name], [f"{name}_out"]) for name in sorted(outs)]
    nodes = [*first, *graph.node, *last]
    del graph.node[:]
    graph.node.extend(nodes)
    for value in graph.output:
        value.name += "_out" if value.name in outs else ""
    return model, [_negated(values, ins, outs) for values in runs]


def _copied(model: Any) -> Any:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _negated(values: Values, ins: set[str], outs: set[str]) -> Values:
    brought = {name: -values[name] for name in ins if name in values}
    brought |= {f"{name}_in": values[name] for name in ins if name in values}
    return values | brought | {f"{name}_out": -values[name] for name in outs if name in values}


def _is_negated(value: Any) -> bool:
    kind = value.type.tensor_type.elem_type
    return kind in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)


# -- checks ---------------------------------------------------------------------------------------------------------
def check(proto: Any, runs: Sequence[Values], minimum: int = lifting.MIN_ELEMENTWISE) -> Found:
    """Raises AssertionError where a shape, a dtype, a view or a lifted program is not what ONNX has.

    ``minimum``: elementwise operations that are lifted on their own.
    """
    model = from_onnx(proto)
    with mock.patch.object(lifting, "MIN_ELEMENTWISE", minimum):
        lifted = lifting.lift_graph(model.graph, TARGET)
    compared: frozenset[str] = frozenset()
    for values in runs:
        compared |= check_values(model, lifted, values)
    return Found(compared, {one.node: one.reason for one in lifted.left})


def check_values(model: Model, lifted: Lifting, values: Values) -> frozenset[str]:
    """The same for one run; the nodes that were compared."""
    sizes = sizes_of(model, values)
    for node in model.graph:
        if node.name in values:
            _check_node(node, values, sizes)
    compared: set[str] = set()
    for op in lifted.ops:
        if {op.output, *_sources(op)} <= set(values):
            _check_op(op, values, sizes)
            compared |= set(op.nodes)
    return frozenset(compared)


def sizes_of(model: Model, values: Values) -> dict[str, int]:
    """By symbol the size that it has in a run: wherever it stands it is the same."""
    sizes: dict[str, int] = {}
    for node in model.graph:
        found = values[node.name].shape if node.name in values else ()
        for dim, size in zip(node.shape or (), found, strict=False):
            if str(dim).isidentifier():
                assert sizes.setdefault(str(dim), size) == size, f"{dim} of {node.name} is {size}"
    return sizes


def _check_node(node: Node, values: Values, sizes: Mapping[str, int]) -> None:
    found = values[node.name]
    if node.shape is not None:
        assert tuple(dim.evaluate(sizes) for dim in node.shape) == found.shape, f"shape of {node}"
    if node.dtype not in ("", "object"):
        assert node.dtype == found.dtype.name, f"dtype of {node}"
    source = values.get(node.sources[0]) if node.sources else None
    viewed = None if source is None else _viewed(node, source, found.shape)
    if viewed is not None:
        # What a test expects was rounded elsewhere than what the evaluator computes.
        close = CLOSE.get(node.dtype, 0.0)
        np.testing.assert_allclose(found, viewed, rtol=close, atol=close, err_msg=str(node))


def _viewed(node: Node, source: Any, shape: tuple[int, ...]) -> Any:
    """What a view makes of a value; None for other nodes, and for what is not compared."""
    if source.dtype.kind not in "biufc":
        return None
    if node.op == "permute":
        return source.transpose(node.attrs["order"])
    if node.op in ("reshape", "identity"):
        return source.reshape(shape)
    return np.broadcast_to(source, shape) if node.op == "expand" else None


def _check_op(op: LiftedOp, values: Values, sizes: Mapping[str, int]) -> None:
    inputs = [np.asarray(operand.value(values), order="C") for operand in op.operands]
    right, close = values[op.output], CLOSE[values[op.output].dtype.name]
    with np.errstate(all="ignore"):
        (out,) = compute(op.workload, inputs, op.workload.dims(sizes))
        out = out.astype(right.dtype).astype(np.float64)  # what is too large for it is infinite
    found = unviewed(out, op.output_view, [dim.evaluate(sizes) for dim in op.output_shape])
    message = f"{op.nodes}: {op.workload}"
    np.testing.assert_allclose(found, right.astype(np.float64), rtol=close, atol=close, err_msg=message)


def _sources(op: LiftedOp) -> set[str]:
    """What an operation's operands are made of."""
    return {
        name
        for operand in op.operands
        for name in (operand.fold.nodes if operand.fold else [operand.node])
        if name is not None
    }
