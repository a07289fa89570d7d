"""Models of PyTorch to workloads: what is found, what it is called, and that it computes the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional

from shapewright.models.fx import lift
from shapewright.models.lifted import Lifting
from tests.shapewright.models.checking import TARGET, check_values, constants_of, exported, lifting_of
from tests.shapewright.models.nets import DecoderBlock, Encoder, Pictures

BATCH, LENGTH = Dim("batch", min=1, max=4), Dim("length", min=1, max=32)
RAGGED = ((1, 1), (3, 7), (2, 32))


@cache
def encoder() -> Any:
    torch.manual_seed(0)
    return exported(Encoder(), (torch.zeros(2, 5, dtype=torch.long),), ({0: BATCH, 1: LENGTH},))


class Formula(nn.Module):  # type: ignore[misc]
    """A function of tensors and of the parameters of some layers."""

    def __init__(self, function: Callable[..., Any], *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, *inputs: Any) -> Any:
        return self.function(*self.layers, *inputs)


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


def test_an_encoder_is_what_it_looks_like_and_computes_the_same() -> None:
    lifting = lifting_of(encoder())
    for b, s in RAGGED:
        check_values(encoder(), lifting, (torch.randint(0, 50, (b, s)),))
    assert Counter(labels(lifting)) == {
        "layer_norm": 5,
        "dense + bias": 6,
        "attention": 2,
        "dense + bias + add": 4,
        "dense + bias + gelu": 2,
        "dense + bias + tanh": 1,
    }
    assert [one.op for one in lifting.left] == ["unknown"]
    assert "embedding" in lifting.left[0].reason


def test_equal_layers_are_one_workload() -> None:
    lifting = lifting_of(encoder())
    assert len({op.workload.key for op in lifting.ops}) == 7
    first, second = (op for op in lifting.ops if op.nodes[-1] in ("gelu", "gelu_1"))
    assert first.workload.key == second.workload.key
    assert {operand.node for operand in first.operands} != {operand.node for operand in second.operands}


def test_operators_that_were_decomposed_are_the_same_workloads() -> None:
    program = encoder().run_decompositions()
    decomposed = lifting_of(program)
    check_values(program, decomposed, (torch.randint(0, 50, (3, 7)),))
    lifting = lifting_of(encoder())
    own = {label: op.workload.key for label, op in zip(labels(lifting), lifting.ops, strict=True)}
    found = {op.workload.key for op in decomposed.ops}
    assert {own[label] for label in ("layer_norm", "dense + bias", "dense + bias + gelu")} <= found


def test_dynamos_graphs_have_weights_among_their_inputs() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    with torch.no_grad(), torch._dynamo.config.patch(specialize_float=True):
        torch.compile(Encoder().eval(), backend=backend, dynamic=True)(torch.zeros(2, 5, dtype=torch.long))
    (graph,) = graphs
    weights = {node.name for node in graph.graph.nodes if node.op == "placeholder" and "parameters" in node.name}
    found = lift(graph, weights, target=TARGET)
    assert not any("beside the first" in one.reason for one in found.left), "x[:, 0] is a part of one value"
    # TorchDynamo may still take the constants of modules for inputs: their operators are left.
    own = {op.workload.key for op in lifting_of(encoder()).ops if "layer_norm" not in str(op.workload)}
    assert own <= {op.workload.key for op in found.ops}


def test_a_decoder_block() -> None:
    example = (torch.randn(2, 5, 32), torch.randn(5, 16), torch.randn(5, 16))
    program = exported(DecoderBlock(), example, ({0: BATCH, 1: LENGTH}, {0: LENGTH}, {0: LENGTH}))
    lifting = lifting_of(program)
    for b, s in RAGGED:
        check_values(program, lifting, (torch.randn(b, s, 32), torch.randn(s, 16), torch.randn(s, 16)))
    counted = Counter(labels(lifting))
    assert counted["rms_norm"] == 2, "one of a module, one spelled out"
    assert counted["dense"] == 4
    assert counted["dense + silu + mul"] == counted["attention"] == 1
    assert counted["dense + add"] == 2
    (spelled, own) = (op for op in lifting.ops if "rms_norm" in str(op.workload))
    assert spelled.workload.key == own.workload.key
    assert len(spelled.nodes) > 1


def test_norms_of_inference_are_folded_into_convolutions() -> None:
    program = exported(Pictures(), (torch.randn(2, 3, 16, 16),), ({0: BATCH},))
    lifting = lifting_of(program)
    for b in (1, 3):
        check_values(program, lifting, (torch.randn(b, 3, 16, 16),))
    assert labels(lifting) == [
        "conv2d + bias + relu",
        "max_pool2d",
        "conv2d + bias + relu",
        "conv2d + bias + add + relu",
        "conv2d + bias + relu",
        "conv2d + bias + add + relu",
        "depthwise_conv2d + bias + clamp",
        "reduce_mean",
        "dense + bias",
    ]
    assert not lifting.left
    folds = [operand.fold.kind for op in lifting.ops for operand in op.operands if operand.fold]
    assert Counter(folds) == {"weight": 5, "bias": 5}


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": torch.relu,
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "clamp": functional.relu6,
    "leaky_relu": functional.leaky_relu,
    "elu": functional.elu,
    "hardswish": functional.hardswish,
    "hardsigmoid": functional.hardsigmoid,
    "square": lambda x: x**2,
    "sub": lambda x: 1.0 - x,
    "div": lambda x: x / -3.0,
    "maximum": lambda x: x.clamp(min=-0.5),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_fused(name: str) -> None:
    found = lifted(lambda layer, x: ACTIVATIONS[name](layer(x)), torch.randn(3, 16), layers=(nn.Linear(16, 8),))
    assert labels(found) == [f"dense + bias + {name}"]
    assert not found.left


SPELLED: dict[str, Callable[[Any], Any]] = {
    "gelu": lambda x: 0.5 * x * (1.0 + torch.erf(x / 2.0**0.5)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * torch.pow(x, 3)))),
    "silu": lambda x: x * torch.sigmoid(x),
}


@pytest.mark.parametrize("name", SPELLED)
def test_activations_that_are_spelled_out(name: str) -> None:
    layer, x = nn.Linear(16, 8), torch.randn(3, 16)
    spelled = lifted(lambda layer, x: SPELLED[name](layer(x)), x, layers=(layer,))
    own = lifted(lambda layer, x: ACTIVATIONS[name](layer(x)), x, layers=(layer,))
    assert [op.workload.key for op in spelled.ops] == [op.workload.key for op in own.ops]


def test_attention_that_is_spelled_out_is_attention() -> None:
    def spelled(q: Any, k: Any, v: Any) -> Any:
        return torch.softmax(q @ k.transpose(-2, -1) / 4.0, -1) @ v

    tensors = tuple(torch.randn(2, 3, 5, 16) for _ in range(3))
    own = lifted(functional.scaled_dot_product_attention, *tensors)
    assert [op.workload.key for op in lifted(spelled, *tensors).ops] == [op.workload.key for op in own.ops]
    assert labels(own) == ["attention"]


def test_masks_of_floats_are_added_and_those_of_bools_left() -> None:
    def masked(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    tensors = tuple(torch.randn(2, 3, 5, 16) for _ in range(3))
    found = lifted(masked, *tensors, torch.randn(1, 1, 5, 5), rows=3)
    assert labels(found) == ["attention"]
    assert [operand.tensor for operand in found.ops[0].operands] == ["q", "k", "mask", "v"]
    left = lifted(masked, *tensors, torch.ones(1, 1, 5, 5, dtype=torch.bool), rows=3)
    assert not left.ops
    assert "mask of bools" in left.left[0].reason


def test_queries_that_share_a_key() -> None:
    def own(q: Any, k: Any, v: Any) -> Any:
        return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    def repeated(q: Any, k: Any, v: Any) -> Any:
        return functional.scaled_dot_product_attention(q, _twice(k), _twice(v))

    tensors = (torch.randn(2, 4, 5, 16), torch.randn(2, 2, 5, 16), torch.randn(2, 2, 5, 16))
    found = lifted(own, *tensors)
    assert labels(found) == ["attention"]
    assert [op.workload.key for op in lifted(repeated, *tensors).ops] == [op.workload.key for op in found.ops]


def _twice(x: Any) -> Any:
    """Each head twice, as models have it that were written before PyTorch's attention could share keys."""
    b, g, s, d = x.shape
    return x[:, :, None].expand(b, g, 2, s, d).reshape(b, 2 * g, s, d)


def test_products_of_tensors_that_are_new() -> None:
    x, y = torch.randn(3, 5, 8), torch.randn(3, 8, 6)
    assert labels(lifted(torch.matmul, x, y)) == ["batch_matmul_nn"]
    assert labels(lifted(lambda x, y: x @ y.transpose(1, 2), x, torch.randn(3, 6, 8))) == ["batch_matmul_nt"]
    assert labels(lifted(torch.matmul, torch.randn(3, 8), torch.randn(8, 6), rows=1)) == ["matmul"]
    assert labels(lifted(functional.linear, torch.randn(3, 8), torch.randn(6, 8), rows=1)) == ["linear"]


CONVOLUTIONS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "conv1d": (nn.Conv1d(6, 8, 3, padding="same", groups=2), (3, 6, 9)),
    "conv2d": (nn.Conv2d(4, 8, (3, 5), stride=2, padding=1, dilation=2), (3, 4, 17, 19)),
    "conv3d": (nn.Conv3d(2, 4, 2), (2, 2, 4, 5, 6)),
    "conv2d_transpose": (nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1), (2, 4, 5, 6)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    layer, shape = CONVOLUTIONS[name]
    assert labels(lifted(lambda layer, x: layer(x), torch.randn(shape), layers=(layer,))) == [f"{name} + bias"]


def test_reductions_over_any_neighbouring_axes() -> None:
    x = torch.randn(3, 8, 6)
    assert labels(lifted(lambda x: x.sum(-1), x)) == ["reduce_sum"]
    assert labels(lifted(lambda x: x.amax((1, 2), keepdim=True), x)) == ["reduce_max"]
    assert labels(lifted(lambda x: x.mean(1), x)) == ["reduce"]


def test_elementwise_chains_are_one_pass_and_a_lone_step_is_left() -> None:
    x, y = torch.randn(3, 8, 6), torch.randn(6)
    chain = lifted(lambda x, y: torch.tanh((x + y) * 2.0), x, y, rows=1)
    assert labels(chain) == ["add + mul + tanh"]
    assert len(chain.ops[0].output_view) == 2, "axes that every tensor has are joined"
    lone = lifted(lambda x, y: x + y, x, y, rows=1)
    assert not lone.ops
    assert "gains nothing" in lone.left[0].reason


def test_dims_keep_their_relation_to_the_models() -> None:
    workloads = {labels(lifting_of(encoder()))[n]: op.workload for n, op in enumerate(lifting_of(encoder()).ops)}
    (rows,) = workloads["dense + bias + gelu"].symbol_exprs.values()
    (sequences,) = workloads["dense + bias + tanh"].symbol_exprs.values()
    assert sequences.variables < rows.variables
    (b, s) = workloads["attention"].symbol_exprs.values()
    assert b * s == rows


def test_what_is_read_twice_is_not_fused_away() -> None:
    def residual(layer: Any, x: Any) -> Any:
        y = layer(x)
        return torch.tanh(y) * y

    assert labels(lifted(residual, torch.randn(3, 8), layers=(nn.Linear(8, 8),))) == ["dense + bias", "tanh + mul"]


def test_what_is_changed_in_place_is_fused_where_nothing_else_reads_it() -> None:
    def own(layer: Any, x: Any) -> Any:
        return torch.relu_(layer(x).add_(x))

    def given(layer: Any, x: Any) -> Any:
        return layer(torch.relu_(x))

    assert labels(lifted(own, torch.randn(3, 8), layers=(nn.Linear(8, 8),))) == ["dense + bias + add + relu"]
    left = lifted(given, torch.randn(3, 8), layers=(nn.Linear(8, 8),)).left
    assert any("in place" in one.reason for one in left)


def test_halves_are_halves() -> None:
    model = nn.Sequential(nn.Linear(16, 8), nn.GELU()).to(torch.bfloat16)
    program = exported(model, (torch.randn(3, 16, dtype=torch.bfloat16),), ({0: BATCH},))
    (op,) = lifting_of(program).ops
    assert {tensor.dtype for tensor in op.workload.operands} == {"bfloat16"}


LEFT: dict[str, tuple[Callable[..., Any], tuple[nn.Module, ...], str]] = {
    "strides": (lambda c, x: c(x), (nn.Conv2d(4, 4, 3, stride=(1, 2)),), "stride [1, 2] differs"),
    "training": (lambda x: functional.dropout(x, 0.5, training=True), (), "dropout of training"),
    "axis": (lambda x: torch.softmax(x, 1), (), "another axis than the last"),
    "unknown": (lambda x: torch.cumsum(x, 1), (), "cumsum: the operator has no translation"),
    "integers": (lambda x: (x > 0).sum(-1), (), "none of float32"),
    "statistics": (
        lambda x: functional.batch_norm(x, None, None, training=True), (), "its statistics are those of the batch"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT)
def test_what_is_left_has_its_reason(case: str) -> None:
    function, layers, reason = LEFT[case]
    program = exported(Formula(function, *layers), (torch.randn(3, 4, 8, 8),), (({0: BATCH},),))
    lifting = lifting_of(program)
    assert not lifting.ops
    assert any(reason in one.reason for one in lifting.left), lifting.left


def test_constants_are_told_and_packed_by_the_workload() -> None:
    op = next(op for op in lifting_of(encoder()).ops if op.nodes[-1] == "gelu")
    constants = constants_of(encoder())
    by_tensor = {operand.tensor: operand for operand in op.operands}
    assert {tensor for tensor, operand in by_tensor.items() if operand.constant} == {"w", "bias"}
    assert op.workload.constants == ("w",)
    assert tuple(constants[by_tensor["w"].node].shape) == (128, 32)


class Rows(nn.Module):  # type: ignore[misc]
    """Elementwise steps before rows are read: each alone, a chain, one that two read, one behind a product."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.rms, self.dense = nn.LayerNorm(16), nn.RMSNorm(16, eps=1e-5), nn.Linear(16, 16)

    def forward(self, x: Any, y: Any, mask: Any) -> Any:
        shared = x * y
        first = self.norm(x + y), functional.softmax(x * 0.5 + mask, -1), (x - y).square().mean(-1)
        return (*first, self.rms(shared), shared, self.norm(self.dense(x) + y))


def test_elementwise_producers_are_computed_as_rows_are_read() -> None:
    length = Dim("length", min=1, max=64)
    example = torch.randn(2, 5, 16), torch.randn(2, 5, 16), torch.randn(16)
    program = exported(Rows(), example, ({1: length}, {1: length}, None))
    lifting = lifting_of(program)
    check_values(program, lifting, example)
    check_values(program, lifting, (torch.randn(2, 9, 16), torch.randn(2, 9, 16), torch.randn(16)))
    labels = sorted(op.workload.label.partition("(")[0] for op in lifting.ops)
    alone = ["dense", "layer_norm", "rms_norm"]
    assert labels == sorted([*alone, "add + layer_norm", "mul + add + softmax", "sub + square + reduce_mean"])
    assert [left.op for left in lifting.left] == ["mul"]
