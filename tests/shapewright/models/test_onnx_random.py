"""Random ONNX graphs of the operators that are known, with all that these may say, against ONNX's evaluator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.shapewright.models.onnx_cases import check, values_of

OPSETS = (13, 17, 18, 21, 23)
"""Sets of which ONNX's evaluator has every operator here. What older ones mean is told case by case elsewhere."""
SIZES = (1, 2, 3, 4, 8)
UNARY = ("Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Abs", "Neg", "Sin", "Cos", "Floor", "Round", "Softplus", "Identity")


@dataclass
class Growing:
    """A model that grows node by node, and the value of everything in it."""

    random: Random
    opset: int
    nodes: list[Any] = field(default_factory=list)
    inputs: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    """By name a float32 value, as a graph gives it that has been run so far."""

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def weight(self, *shape: int) -> str:
        values = np.random.default_rng(self.random.randrange(2**31)).standard_normal(shape) * 0.5
        return self.constant(values.astype(np.float32))

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        """The first output of a node that has one, or ``outputs`` of them."""
        outputs = attrs.pop("outputs", 1)
        names = [f"v{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attrs))
        return names[0]

    def model(self, output: str) -> Any:
        graph = helper.make_graph(
            self.nodes,
            "grown",
            [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims) for name, dims in self.inputs.items()],
            [helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None)],
            [onnx.numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])

    def picked(self) -> tuple[str, Any]:
        """A value so far, the last one more often than the others."""
        names = list(self.values)
        name = names[-1] if self.random.random() < 0.7 else self.random.choice(names)
        return name, self.values[name]


Step = Callable[[Growing, str, Any, Random], str]


def _unary(grown: Growing, x: str, value: Any, random: Random) -> str:
    return grown.add(random.choice(UNARY), x)


def _number(grown: Growing, x: str, value: Any, random: Random) -> str:
    number = grown.constant(np.full((1,) * random.randrange(5), random.choice((0.5, 2.0, -1.5)), np.float32))
    order = (x, number) if random.random() < 0.7 else (number, x)
    return grown.add(random.choice(("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum")), *order)


def _vector(grown: Growing, x: str, value: Any, random: Random) -> str:
    kept = value.shape[random.randrange(value.ndim + 1) :]
    sizes = [size if random.random() < 0.7 else 1 for size in kept]
    return grown.add(random.choice(("Add", "Mul")), x, grown.weight(*sizes))


def _other(grown: Growing, x: str, value: Any, random: Random) -> str:
    fitting = [name for name, each in grown.values.items() if _is_broadcast(each.shape, value.shape)]
    return grown.add(random.choice(("Add", "Sub", "Mul", "Max", "Min")), x, random.choice(fitting))


def _is_broadcast(left: Any, right: Any) -> bool:
    try:
        return int(np.prod(np.broadcast_shapes(left, right))) <= 4096
    except ValueError:
        return False


def _several(grown: Growing, x: str, value: Any, random: Random) -> str:
    return grown.add(random.choice(("Max", "Min", "Sum", "Mean")), *[x] * random.choice((1, 1, 2, 3)))


def _power(grown: Growing, x: str, value: Any, random: Random) -> str:
    exponent = random.choice((np.float32(2.0), np.int64(2), np.float32(3.0), np.array([[2.0]], np.float32)))
    return grown.add("Pow", grown.add("Abs", x), grown.constant(exponent))


def _clip(grown: Growing, x: str, value: Any, random: Random) -> str:
    low, high = (grown.constant(np.float32(each)) if random.random() < 0.7 else "" for each in (-0.5, 0.5))
    return grown.add("Clip", x, low, high)


def _rounded(grown: Growing, x: str, value: Any, random: Random) -> str:
    name = grown.add("Cast", x, to=random.choice((1, 6, 7, 10, 11)))
    return grown.add("Cast", name, to=1)


def _computed_number(grown: Growing, x: str, value: Any, random: Random) -> str:
    """A number that is computed from a size, or of constants."""
    if value.ndim and random.random() < 0.5:
        name = grown.add("Gather", grown.add("Shape", x), grown.constant(np.array(random.randrange(value.ndim))))
        kind: Any = np.int64
    else:
        kind = random.choice((np.int64, np.int32, np.float32))
        name = grown.constant(kind(random.choice((-7.6, 7.6, 5.0))))
    for _ in range(random.randrange(3)):
        part = grown.constant(kind(random.choice((2, 3, -2))))
        name = grown.add(random.choice(("Add", "Sub", "Mul", "Div")), name, part)
    if kind is not np.float32:
        name = grown.add("Cast", name, to=1)
    if random.random() < 0.3:
        name = grown.add("Sqrt", grown.add("Mul", name, name))
    return grown.add(random.choice(("Mul", "Add")), x, name)


def _reduce(grown: Growing, x: str, value: Any, random: Random) -> str:
    op = random.choice(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"))
    axes = sorted(random.sample(range(value.ndim), random.randint(0, value.ndim)))
    axes = [axis - value.ndim if random.random() < 0.5 else axis for axis in axes]
    attrs: dict[str, Any] = {"keepdims": random.randrange(2)}
    if op != "ReduceSum" and grown.opset < 18:
        return grown.add(op, x, **attrs, **({"axes": axes} if axes else {}))
    if random.random() < 0.5:
        attrs["noop_with_empty_axes"] = random.randrange(2)
    given = [grown.constant(np.array(axes, np.int64))] if axes or random.random() < 0.5 else []
    return grown.add(op, x, *given, **attrs)


def _softmax(grown: Growing, x: str, value: Any, random: Random) -> str:
    return grown.add("Softmax", x, axis=random.randrange(-value.ndim, value.ndim)) if value.ndim else x


def _layer_norm(grown: Growing, x: str, value: Any, random: Random) -> str:
    if not value.ndim or grown.opset < 17:
        return x
    axis = random.randrange(value.ndim)
    gamma = grown.weight(*value.shape[axis:])
    beta = [grown.weight(*value.shape[axis:])] if random.random() < 0.5 else []
    return grown.add("LayerNormalization", x, gamma, *beta, axis=axis, epsilon=random.choice((1e-5, 1e-3)))


def _matmul(grown: Growing, x: str, value: Any, random: Random) -> str:
    if not value.ndim:
        return x
    batch = value.shape[:-2] if random.random() < 0.3 and value.ndim > 2 else ()
    return grown.add("MatMul", x, grown.weight(*batch, value.shape[-1], random.choice(SIZES)))


def _gemm(grown: Growing, x: str, value: Any, random: Random) -> str:
    if value.ndim != 2:
        return x
    n, is_nk = random.choice(SIZES), random.randrange(2)
    k = value.shape[1]
    shape = random.choice(((), (1,), (n,), (value.shape[0], n), (value.shape[0], 1), (1, n)))
    added = [grown.weight(*shape)] if random.random() < 0.7 else []
    scaled = {"alpha": random.choice((1.0, 0.5)), "beta": random.choice((1.0, 0.5))} if random.random() < 0.3 else {}
    return grown.add("Gemm", x, grown.weight(*((n, k) if is_nk else (k, n))), *added, transB=is_nk, **scaled)


def _conv(grown: Growing, x: str, value: Any, random: Random) -> str:
    if value.ndim not in (3, 4) or min(value.shape[2:]) < 2:
        return x
    rank, groups = value.ndim - 2, random.choice((1, value.shape[1]))
    attrs: dict[str, Any] = {"group": groups}
    if random.random() < 0.4:
        attrs["pads"] = [1] * 2 * rank
    if random.random() < 0.4:
        attrs["strides"] = [2] * rank
    out = groups * random.choice((1, 2))
    bias = [grown.weight(out)] if random.random() < 0.5 else []
    return grown.add("Conv", x, grown.weight(out, value.shape[1] // groups, *[2] * rank), *bias, **attrs)


def _pool(grown: Growing, x: str, value: Any, random: Random) -> str:
    if value.ndim != 4 or min(value.shape[2:]) < 2:
        return x
    if random.random() < 0.2:
        return grown.add("GlobalAveragePool", x)
    attrs: dict[str, Any] = {"kernel_shape": [2, 2]}
    if random.random() < 0.5:
        attrs["strides"] = [random.choice((1, 2))] * 2
    if random.random() < 0.4:
        attrs["pads"] = [1, 1, 1, 1]
    if random.random() < 0.5:
        return grown.add("MaxPool", x, outputs=random.choice((1, 2)), **attrs)
    return grown.add("AveragePool", x, **attrs, count_include_pad=random.randrange(2))


def _reshape(grown: Growing, x: str, value: Any, random: Random) -> str:
    cut = random.randrange(value.ndim + 1)
    whole = [int(np.prod(value.shape[:cut])), -1]
    shape = random.choice((whole, [-1], [1, *value.shape], [0, -1] if value.ndim else [-1]))
    return grown.add("Reshape", x, grown.constant(np.array(shape, np.int64)))


def _moved(grown: Growing, x: str, value: Any, random: Random) -> str:
    op = random.choice(("Transpose", "Flatten", "Unsqueeze", "Squeeze", "Expand"))
    if op == "Transpose":
        order = random.sample(range(value.ndim), value.ndim)
        return grown.add(op, x, **({"perm": order} if order and random.random() < 0.8 else {}))
    if op == "Flatten":
        return grown.add(op, x, axis=random.randrange(-value.ndim, value.ndim + 1))
    if op == "Unsqueeze":
        return grown.add(op, x, grown.constant(np.array([random.randrange(-value.ndim - 1, value.ndim + 1)])))
    if op == "Squeeze":
        ones = [axis for axis, size in enumerate(value.shape) if size == 1]
        chosen = [grown.constant(np.array(ones[:1]))] if ones and random.random() < 0.6 else []
        return grown.add(op, x, *chosen)
    return grown.add(op, x, grown.constant(np.array([random.choice((1, 2)), *[1] * value.ndim])))


def _other_view(grown: Growing, x: str, value: Any, random: Random) -> str:
    """A shape that is computed, as exporters do."""
    if value.ndim < 2:
        return x
    sizes = grown.add("Shape", x)
    first = grown.add("Slice", sizes, *(grown.constant(np.array([each])) for each in (0, 1)))
    return grown.add("Reshape", x, grown.add("Concat", first, grown.constant(np.array([-1])), axis=0))


def _dropout(grown: Growing, x: str, value: Any, random: Random) -> str:
    return grown.add("Dropout", x, outputs=random.choice((1, 2)))


STEPS: tuple[Step, ...] = (
    *(_unary, _unary, _number, _number, _vector, _vector, _other, _several, _power, _clip, _rounded, _computed_number),
    *(_reduce, _reduce, _softmax, _layer_norm, _matmul, _matmul, _gemm, _conv, _pool, _reshape, _moved, _moved),
    *(_other_view, _dropout),
)


def grown(seed: int) -> tuple[Any, list[Any]]:
    """A model of two to nine steps, and its inputs."""
    random = Random(seed)
    growing = Growing(random, random.choice(OPSETS))
    given = []
    for number in range(random.choice((1, 1, 2))):
        shape = [random.choice(SIZES) for _ in range(random.choice((1, 2, 2, 3, 4)))]
        dims = [random.choice((size, size, f"s{random.randrange(9)}", None)) for size in shape]
        dims = [f"{dim}_{size}" if isinstance(dim, str) else dim for dim, size in zip(dims, shape, strict=True)]
        values = np.random.default_rng(seed + number).standard_normal(shape).astype(np.float32)
        growing.inputs[f"x{number}"], growing.values[f"x{number}"] = tuple(dims), values
        given.append(values)
    for _ in range(random.randint(2, 9)):
        name, value = growing.picked()
        output = random.choice(STEPS)(growing, name, value, random)
        if output not in growing.values:
            growing.values[output] = values_of(growing.model(output), given)[output]
            if not 0 < growing.values[output].size <= 4096:
                break
    return growing.model(growing.nodes[-1].output[0] if growing.nodes else "x0"), given


def faults(seeds: range) -> tuple[list[str], int]:
    """What is wrong with random models, and how many of them had something to compare."""
    found, lifted = [], 0
    for seed in seeds:
        with np.errstate(all="ignore"):
            model, inputs = grown(seed)
            try:
                lifted += bool(check(model, [values_of(model, inputs)], minimum=1).compared)
            except Exception as error:  # whatever it is, with the seed
                found.append(f"{seed}: {type(error).__name__}: {str(error)[:500]}")
    return found, lifted


def test_random_graphs_are_right() -> None:
    found, lifted = faults(range(30))
    assert found == []
    assert lifted >= 20


@pytest.mark.soak
@pytest.mark.parametrize("part", range(8))
def test_many_random_graphs_are_right(part: int) -> None:
    first = 1000 * (part + 1)
    found, lifted = faults(range(first, first + 500))
    assert found == []
    assert lifted >= 400
