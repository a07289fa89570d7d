"""A model exported, lifted, and every lifted program compared with what PyTorch computes for its last node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.export import Dim
from torch.fx import Interpreter

from shapewright.models.aten import decomposed
from shapewright.models.fx import lift
from shapewright.models.lifted import LiftedOp, Lifting, unviewed
from tuner.program.reference import compute
from tuner.program.target import Target

TARGET = Target.from_json({"kind": "llvm", "mcpu": "sapphirerapids"})
"""What is lifted must not depend on the machine that tests run on."""
CLOSE = 2e-4
"""Of the reference's float64 to PyTorch's float32, for values of about 1."""
Shapes = Sequence[Sequence[int]]


class Formula(nn.Module):  # type: ignore[misc]
    """A function of tensors and of the parameters of some layers."""

    def __init__(self, function: Callable[..., Any], *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, *inputs: Any) -> Any:
        return self.function(*self.layers, *inputs)


def exported(model: torch.nn.Module, example: Sequence[Any], dynamic: Any) -> Any:
    """In the normal form that is lifted."""
    return decomposed(torch.export.export(model.eval(), tuple(example), dynamic_shapes=dynamic))


def constants_of(program: Any) -> dict[str, Any]:
    """By placeholder the parameters, buffers and constants of an exported program."""
    held = {**program.state_dict, **program.constants}
    specs = program.graph_signature.input_specs
    return {spec.arg.name: held[spec.target] for spec in specs if spec.target is not None}


class _Recording(Interpreter):  # type: ignore[misc]
    """Keeps the value of every node."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.values: dict[str, Any] = {}

    def run_node(self, n: Any) -> Any:
        self.values[n.name] = super().run_node(n)
        return self.values[n.name]


def values_of(program: Any, inputs: Sequence[Any]) -> dict[str, Any]:
    """Every node's value for these inputs."""
    held = constants_of(program)
    given = iter(inputs)
    order = [held[s.arg.name] if s.target is not None else next(given) for s in program.graph_signature.input_specs]
    return recorded(program.graph_module, order)


def recorded(module: Any, inputs: Sequence[Any]) -> dict[str, Any]:
    """Every node's value of a graph that has no constants."""
    recording = _Recording(module)
    with torch.no_grad():
        recording.run(*inputs)
    return recording.values


def lifting_of(program: Any) -> Lifting:
    return lift(program.graph_module, constants_of(program), target=TARGET)


def check_values(program: Any, lifting: Lifting, inputs: Sequence[Any]) -> None:
    """Every lifted program gives what PyTorch does, from PyTorch's own inputs of it."""
    values = values_of(program, inputs)
    sizes = _sizes(program, inputs)
    for op in lifting.ops:
        found, right = reference(op, values, sizes), values[op.output].numpy()
        np.testing.assert_allclose(found, right, rtol=CLOSE, atol=CLOSE, err_msg=f"{op.nodes} {op.workload}")


def compare(module: Any, lifting: Lifting, inputs: Sequence[Any]) -> None:
    """The same for a graph of fixed sizes that has no constants."""
    values = recorded(module, inputs)
    for op in lifting.ops:
        found, right = reference(op, values, {}), values[op.output].numpy()
        assert found.shape == right.shape, f"{op.nodes} {op.workload}"
        np.testing.assert_allclose(found, right, rtol=CLOSE, atol=CLOSE, err_msg=f"{op.nodes} {op.workload}")


def lifted(function: Callable[..., Any], *tensors: Any, layers: tuple[nn.Module, ...] = (), rows: int = 0) -> Lifting:
    """What is made of a function, its first axis dynamic, checked at two sizes; ``rows`` counts the dynamic inputs."""
    count = rows or len(tensors)
    shapes = tuple({0: Dim("m", min=1, max=64)} if place < count else None for place in range(len(tensors)))
    program = exported(Formula(function, *layers), tensors, (shapes,))
    lifting = lifting_of(program)
    for size in (1, 5):
        values = [torch.randn(size, *each.shape[1:]) if n < count else each for n, each in enumerate(tensors)]
        check_values(program, lifting, values)
    return lifting


def labels(lifting: Lifting) -> list[str]:
    """``dense + bias + gelu`` of each, in order."""
    names = (str(op.workload) for op in lifting.ops)
    return [name.partition("(")[0].strip() + name.rpartition(")")[2] for name in names]


def reference(op: LiftedOp, tensors: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """The reference's output of a lifted program, as the model has it."""
    arrays = {name: each.detach() for name, each in tensors.items() if isinstance(each, torch.Tensor)}
    inputs = [operand.value(arrays).contiguous().numpy() for operand in op.operands]
    (out,) = compute(op.workload, inputs, op.workload.dims(sizes))
    return unviewed(out, op.output_view, [dim.evaluate(sizes) for dim in op.output_shape])


def _sizes(program: Any, inputs: Sequence[Any]) -> dict[str, int]:
    """The symbols' values at these inputs."""
    users = [s.arg.name for s in program.graph_signature.input_specs if s.target is None]
    nodes = {node.name: node for node in program.graph.nodes}
    sizes: dict[str, int] = {}
    for name, value in zip(users, inputs, strict=True):
        for symbolic, size in zip(nodes[name].meta["val"].shape, value.shape, strict=True):
            if not isinstance(symbolic, int):
                sizes[str(symbolic)] = size
    return sizes
