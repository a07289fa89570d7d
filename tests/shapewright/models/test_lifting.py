"""Models of PyTorch to workloads: which they are, what they are called, and that they compute the same."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional

from shapewright.models import lifting as lifting_rules
from shapewright.models.aten import decomposed
from shapewright.models.fx import lift
from shapewright.models.lifted import Lifting
from shapewright.torch.normal_form import NothingReplaced, as_it_is
from tests.shapewright.models.checking import (
    TARGET,
    Formula,
    check_values,
    constants_of,
    exported,
    labels,
    lifting_of,
)
from tests.shapewright.models.nets import DecoderBlock, Encoder, Pictures
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import Target
from tuner.schedule import rules_of

BATCH, LENGTH = Dim("batch", min=1, max=4), Dim("length", min=1, max=32)
RAGGED = ((1, 1), (3, 7), (2, 32))


@cache
def encoder() -> Any:
    torch.manual_seed(0)
    return exported(Encoder(), (torch.zeros(2, 5, dtype=torch.long),), ({0: BATCH, 1: LENGTH},))


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


@pytest.mark.soak
def test_operators_that_were_decomposed_are_the_same_workloads() -> None:
    example = (torch.zeros(2, 5, dtype=torch.long),)
    exported_again = torch.export.export(Encoder().eval(), example, dynamic_shapes=({0: BATCH, 1: LENGTH},))
    program = decomposed(exported_again.run_decompositions())
    found = lifting_of(program)
    check_values(program, found, (torch.randint(0, 50, (3, 7)),))
    lifting = lifting_of(encoder())
    own = {label: op.workload.key for label, op in zip(labels(lifting), lifting.ops, strict=True)}
    keys = {op.workload.key for op in found.ops}
    assert {own[label] for label in ("layer_norm", "dense + bias", "dense + bias + gelu")} <= keys


@pytest.mark.soak
def test_compiled_graphs_have_the_workloads_of_exported_ones() -> None:
    found: list[Lifting] = []

    def rewrite(graph: Any, constants: frozenset[str]) -> bool:
        found.append(lift(graph, constants, target=TARGET))
        return False

    def backend(graph: Any, inputs: Any) -> Any:
        with contextlib.suppress(NothingReplaced):
            as_it_is(graph, inputs, rewrite)
        return graph.forward

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(Encoder().eval(), backend=backend, dynamic=True)(torch.zeros(2, 5, dtype=torch.long))
    (lifting,) = found
    assert not any("beside the first" in one.reason for one in lifting.left), "x[:, 0] is a part of one value"
    assert {op.workload.key for op in lifting_of(encoder()).ops} == {op.workload.key for op in lifting.ops}


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


def test_a_norm_of_short_floats_is_one_operator_with_its_casts() -> None:
    """Of which PyTorch makes one in float32 between two casts. Another dtype behind it is none of the norm's."""

    def other(norm: nn.RMSNorm, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x.float(), (16,), norm.weight.float(), norm.eps).half()

    norm, x = nn.RMSNorm(16, eps=1e-5).bfloat16(), torch.randn(2, 16).bfloat16()
    for model, dtype in ((Formula(nn.Module.__call__, norm), "bfloat16"), (Formula(other, norm), "float32")):
        (found,) = (op.workload for op in lifting_of(exported(model, (x,), (({0: BATCH},),))).ops)
        assert found.label.startswith("rms_norm")
        assert {found.tensors[name].dtype for name in ("x", "out")} == {dtype}


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


VECTOR = torch.linspace(-1, 1, 8)
NORMED: dict[str, tuple[Callable[..., Any], bool]] = {
    "seen otherwise": (lambda conv, norm, x: norm(conv(x).reshape(-1, 8, 8, 1, 8).squeeze(3)), True),
    "turned": (lambda conv, norm, x: norm(conv(x).transpose(1, 2)), False),
    "turned back": (lambda conv, norm, x: norm(conv(x).transpose(1, 2).transpose(1, 2)), True),
    "behind another vector": (lambda conv, norm, x: norm(conv(x) + norm.added), False),
    "behind a bias of three axes": (
        lambda conv, norm, x: norm(functional.conv2d(x, conv.weight) + norm.added), False
    ),
    "behind a bias that is new": (
        lambda conv, norm, x: norm(functional.conv2d(x, conv.weight, x[0, 0, 0] * VECTOR)), False
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMED)
def test_norms_are_folded_where_they_run_over_the_channels_behind_one_bias_at_most(name: str) -> None:
    function, is_folded = NORMED[name]
    conv, norm, x = nn.Conv2d(3, 8, 1), normed(8), torch.randn(2, 3, 8, 8)
    norm.added = nn.Parameter(VECTOR[:, None, None].clone())
    program = exported(Formula(function, conv, norm), (x,), (({0: BATCH},),))
    lifting = lifting_of(program)
    check_values(program, lifting, (x,))
    kinds = {operand.fold.kind for op in lifting.ops for operand in op.operands if operand.fold}
    assert kinds == {"weight" if is_folded else "scale", "bias"}
    assert "batch_norm" not in [one.op for one in lifting.left]


class Branches(nn.Module):  # type: ignore[misc]
    """Norms where no convolution is right before them: of a sum, of what is joined, of one's own input, of a linear
    layer, and two in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.two = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.wide, self.dense = nn.Conv2d(16, 6, 1), nn.Linear(6, 5)
        sizes = {"sum": 8, "own": 8, "again": 8, "joined": 16, "tokens": 5}
        self.norms = nn.ModuleDict({name: normed(size) for name, size in sizes.items()})
        self.norms["tokens"] = nn.BatchNorm1d(5)
        self.norms["tokens"].load_state_dict(normed(5).state_dict())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = self.norms["again"](self.norms["sum"](self.one(x) + self.two(x) + self.norms["own"](x)))
        y = self.wide(functional.relu(self.norms["joined"](torch.cat((x, self.two(x)), 1))))
        tokens = self.dense(y.flatten(2).transpose(1, 2))
        return self.norms["tokens"](tokens.flatten(0, 1)).reshape_as(tokens)


def test_norms_that_no_convolution_takes_are_passes_over_elements() -> None:
    program = exported(Branches(), (torch.randn(2, 3, 4, 5),), ({0: BATCH},))
    lifting = lifting_of(program)
    for b in (1, 3):
        check_values(program, lifting, (torch.randn(b, 3, 4, 5),))
    assert labels(lifting) == [
        "conv2d + bias",
        "conv2d + bias",
        "batch_norm",
        "conv2d + bias + add + add + batch_norm + batch_norm",
        "conv2d + bias",
        "batch_norm + relu",
        "conv + bias",
        "dense + bias + batch_norm",
    ]
    assert [one.op for one in lifting.left] == ["cat"]


def test_norms_of_statistics_that_are_new_and_of_halves_are_left() -> None:
    conv, x = nn.Conv2d(3, 8, 1), torch.randn(2, 3, 8, 8)

    def scaled(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return functional.batch_norm(layer(x), x[0, 0, 0], x[0, 0, 0].abs() + 1.0)

    lifting = lifting_of(exported(Formula(scaled, conv), (x,), (({0: BATCH},),)))
    assert [one.op for one in lifting.left] == ["batch_norm"]
    halves = Formula(lambda conv, norm, x: norm(conv(x) + conv(x)), conv, normed(8)).bfloat16()
    lifting = lifting_of(exported(halves, (x.bfloat16(),), (({0: BATCH},),)))
    assert "batch_norm" in [one.op for one in lifting.left]


@pytest.mark.parametrize("layer", [nn.Conv2d(3, 1, 3), nn.Conv2d(1, 1, 3, bias=False), nn.ConvTranspose2d(3, 1, 3)])
def test_norms_of_one_channel_are_folded(layer: nn.Module) -> None:
    x = torch.randn(2, layer.in_channels, 8, 8)
    program = exported(nn.Sequential(layer, normed(1)), (x,), ({0: BATCH},))
    lifting = lifting_of(program)
    check_values(program, lifting, (x,))
    assert not lifting.left


def normed(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels)
    for least, each in enumerate((norm.weight, norm.bias, norm.running_mean, norm.running_var), 1):
        each.data = torch.linspace(least, least + 2.0, channels)
    return norm


def test_dims_keep_their_relation_to_the_models() -> None:
    workloads = {labels(lifting_of(encoder()))[n]: op.workload for n, op in enumerate(lifting_of(encoder()).ops)}
    (rows,) = workloads["dense + bias + gelu"].symbol_exprs.values()
    (sequences,) = workloads["dense + bias + tanh"].symbol_exprs.values()
    assert sequences.variables < rows.variables
    (b, s) = workloads["attention"].symbol_exprs.values()
    assert b * s == rows


def test_halves_are_halves() -> None:
    model = nn.Sequential(nn.Linear(16, 8), nn.GELU()).to(torch.bfloat16)
    program = exported(model, (torch.randn(3, 16, dtype=torch.bfloat16),), ({0: BATCH},))
    (op,) = lifting_of(program).ops
    assert {tensor.dtype for tensor in op.workload.operands} == {"bfloat16"}


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


class Squeezed(nn.Module):  # type: ignore[misc]
    """Channels that are scaled by what all of them come to, as in MobileNetV3, before and behind which is a product."""

    def __init__(self, *, is_returned: bool) -> None:
        super().__init__()
        self.wide, self.weigh, self.narrow = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 1)
        self.is_returned = is_returned

    def forward(self, x: torch.Tensor) -> Any:
        wide = self.wide(x)
        scaled = wide * functional.hardsigmoid(self.weigh(wide.mean((2, 3), keepdim=True)))
        return (self.narrow(scaled), scaled) if self.is_returned else self.narrow(scaled)


def test_a_single_pass_between_operators_is_one_too() -> None:
    program = exported(Squeezed(is_returned=False), (torch.randn(2, 3, 5, 7),), ({0: BATCH},))
    lifting = lifting_of(program)
    assert [one.op for one in lifting.left] == []
    assert len(labels(lifting)) == 5
    for batch in (1, 3):
        check_values(program, lifting, (torch.randn(batch, 3, 5, 7),))


def test_a_single_pass_that_others_read_too_is_none() -> None:
    lifting = lifting_of(exported(Squeezed(is_returned=True), (torch.randn(2, 3, 5, 7),), ({0: BATCH},)))
    assert [one.op for one in lifting.left] == ["mul"]
    assert lifting.left[0].reason.startswith("a single pass over memory")


def test_operations_on_few_elements_are_left_where_no_operator_is_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scales(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.few, self.many = (nn.Buffer(torch.rand(size)) for size in (8, 64))

        def forward(self, x: torch.Tensor, step: torch.Tensor) -> Any:
            return torch.cos(self.few * step), torch.cos(self.many * step), self.layer(torch.tanh(self.layer(x)))

    monkeypatch.setattr(lifting_rules, "FEW", 32)
    lifting = lifting_of(exported(Scales(), (torch.randn(3, 8), torch.rand(1)), ({0: BATCH}, None)))
    left = [one for one in lifting.left if one.op in ("mul", "cos")]
    assert len(left) == 2
    assert {one.reason for one in left} == {"no more than 32 elements: a call would take longer than they do"}
    assert [op.output_shape[0].constant for op in lifting.ops if "cos" in str(op.workload)] == [64]
    assert any("tanh" in label for label in labels(lifting))


@pytest.mark.parametrize(
    ("kind", "left"), [(TARGET, []), (Target.from_json({"kind": "cuda", "arch": "sm_90"}), ["mul"])]
)
def test_a_single_pass_between_products_is_one_on_cpus_alone(kind: Target, left: list[str]) -> None:
    def weighed(one: nn.Module, weight: nn.Module, last: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = one(x)
        return last(y * weight(y))

    layers = nn.Linear(16, 16), nn.Linear(16, 1), nn.Linear(16, 16)
    program = exported(Formula(weighed, *layers), (torch.randn(3, 16),), (({0: BATCH},),))
    lifting = lift(program.graph_module, constants_of(program), target=kind)
    assert [one.op for one in lifting.left] == left
    assert len(lifting.ops) == 4 - len(left)


def test_a_model_under_autocast_is_multiplied_in_tiles_where_there_are_tiles() -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        program = exported(model, (torch.randn(3, 64),), ({0: BATCH},))
    lifting = lifting_of(program)
    assert labels(lifting) == ["dense + bias + gelu", "dense + bias"]
    target = Target.from_json({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 1})
    for op in lifting.ops:
        assert {tensor.dtype for tensor in op.workload.operands} == {"bfloat16"}
        rows = tuple(ShapeVar(name, range(1, 513)) for name in sorted(op.workload.variables))
        task = SearchTask(op.workload, shape_vars=rows, target=target, threads=1)
        (group,) = (axis for axis in rules_of(task)[0].space(task).axes if axis.name == "group")
        assert group.choices == (1, 2, 32)
