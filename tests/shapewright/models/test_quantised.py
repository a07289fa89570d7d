"""Layers with packed weights, spelled out: what they compute, what is lifted of them, and which stay packed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.ao import quantization
from torch.ao.nn.quantized import Linear as OfQuantised
from torch.ao.nn.quantized.dynamic import Linear
from torch.export import Dim

import shapewright as sw
from shapewright.models.quantised import HalfLinear, Int8Linear, _scale_and_zero, packed_layers, unpacked_layers
from tests.shapewright.models.checking import check_values, exported, labels, lifting_of
from tests.shapewright.models.packed import HIDDEN, INPUTS, KINDS, K, N, packed, quantised, with_relu
from tests.shapewright.torch.replacing import same
from tuner.errors import InvalidInput

COUNT = ({0: Dim("rows", min=1, max=64)},)
QUANTISED = "multiply_add + round + relu + sub + clamp + cast"


def unpacked(model: nn.Module) -> nn.Module:
    """The only layer of a model, unpacked."""
    ((made,), kept) = (values := unpacked_layers(model))[0].values(), values[1]
    assert not kept
    return made


@pytest.mark.parametrize("rows", INPUTS.values(), ids=list(INPUTS))
def test_scales_and_zero_points_are_those_of_pytorch(rows: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    for size in ((1, 1), (1, 9), (7, 50), (200, 3)):
        given = rows(*size)
        scale, zero = _scale_and_zero(given)
        right, zero_point = torch._choose_qparams_per_tensor(given, True)
        assert scale == torch.tensor(right, dtype=torch.float32)
        assert zero == zero_point


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", INPUTS.values(), ids=list(INPUTS))
def test_a_layer_computes_what_it_computed_packed(rows: Callable[..., torch.Tensor], kind: str) -> None:
    """Without a bias bit for bit, where it multiplies integers: PyTorch adds biases in the instruction that scales."""
    torch.manual_seed(0)
    for layer in (packed(kind)[0], packed(kind)[2]):
        made = unpacked(layer)
        for size in ((1, layer.in_features), (7, layer.in_features), (2, 3, layer.in_features)):
            given = rows(*size)
            found, right = made(given), layer(given)
            same(found / right.abs().max().clamp(min=1e-30), right / right.abs().max().clamp(min=1e-30))
            assert layer.bias() is not None or kind == "float16" or torch.equal(found, right)


def test_an_activation_in_the_operator_stays_with_it() -> None:
    model = with_relu()
    made = unpacked(model[0])
    rows = torch.randn(9, K)
    assert made(rows).min() == 0.0
    same(made(rows), model(rows))


@pytest.mark.parametrize("kind", ["one scale", "float16"])
def test_what_others_ask_of_a_layer_is_the_same(kind: str) -> None:
    layer = packed(kind)[0]
    made = unpacked(layer)
    weights = [each.weight().dequantize() if kind == "one scale" else each.weight() for each in (made, layer)]
    same(*weights)
    assert torch.equal(made.bias(), layer.bias())
    for size in ((0, K), (2, 0, K)):
        assert made(torch.empty(size)).shape == layer(torch.empty(size)).shape == (*size[:-1], HIDDEN)
    for wrong in (torch.randn(K), torch.randn(3, K, dtype=torch.bfloat16), torch.randn(3, 2 * K)):
        for each in (made, layer):
            with pytest.raises(RuntimeError):
                each(wrong)
    asking = torch.randn(3, K, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, right = made(asking), layer(asking)
    same(found, right)
    assert not found.requires_grad


def test_infinity_and_what_is_no_number_are_never_hidden() -> None:
    """PyTorch raises, or passes over it, or gives any number."""
    made = unpacked(packed()[0])
    for wrong in (torch.inf, -torch.inf, torch.nan):
        rows = torch.randn(3, K)
        rows[1, 2] = wrong
        assert not made(rows).isfinite().any()


def test_layers_are_products_of_bytes_behind_what_rounds_all_of_an_input() -> None:
    model = sw.torch.unpacked(packed())
    rows = torch.randn(3, 2, K)
    program = exported(model, (rows,), COUNT)
    lifting = lifting_of(program)
    for size in (1, 5, 64):
        check_values(program, lifting, (torch.randn(size, 2, K),))
    first, second = "dense + cast + mul + bias + gelu", "dense + cast + mul"
    assert labels(lifting) == [QUANTISED, first, QUANTISED, second]
    # The extremes of an input, and the scales of the columns: a vector.
    assert [each.op for each in lifting.left] == ["unknown", "mul"] * 2
    for op in lifting.ops[1::2]:
        assert (op.workload.constants[0], dict(op.workload.dtypes)["x"]) == ("w", "int8")


def test_a_layer_of_float16_is_one_of_float32_whose_weight_is_cast_once() -> None:
    program = exported(sw.torch.unpacked(packed("float16")), (torch.randn(3, K),), COUNT)
    lifting = lifting_of(program)
    check_values(program, lifting, (torch.randn(5, K),))
    assert labels(lifting) == ["dense + bias + gelu", "dense"]
    assert all(each.fold and each.fold.dtype == "float32" for op in lifting.ops for each in op.operands if each.constant
               and each.tensor == "w")  # fmt: skip


def test_zero_points_of_weights_are_subtracted_as_integers() -> None:
    program = exported(sw.torch.unpacked(packed("zero points")), (torch.randn(3, K),), COUNT)
    lifting = lifting_of(program)
    check_values(program, lifting, (torch.randn(5, K),))
    assert labels(lifting)[:2] == [QUANTISED, "dense"]


def test_a_product_and_a_sum_in_float64_are_one_step_only_for_floats() -> None:
    def steps(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return (x.double() * y.double() + z.double()).float().round()

    def lifted(*dtypes: torch.dtype) -> list[str]:
        x, y, z = (torch.randn(shape).to(dtype) for shape, dtype in zip([(3, K), (K,), ()], dtypes, strict=True))
        module = nn.Module()
        module.forward = steps
        return labels(lifting_of(exported(module, (x, y, z), ({0: Dim("m", max=64)}, None, None))))

    assert lifted(torch.float32, torch.float32, torch.float32) == ["multiply_add + round"]
    assert lifted(torch.float32, torch.bfloat16, torch.float32) == []
    assert lifted(torch.float32, torch.float32, torch.float64) == []


class Mixed(nn.Module):  # type: ignore[misc]
    """Layers that are quantised, and others."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(K, K, batch_first=True)
        self.plain = nn.LayerNorm(K)
        self.linear = nn.Linear(K, N)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.plain(self.rnn(x)[0]))


def test_other_layers_stay_packed_and_are_right() -> None:
    for kind in (nn.LSTM, nn.GRU):
        model = Mixed()
        model.rnn = kind(K, K, batch_first=True)
        model = quantised(model, layers=(nn.Linear, kind))
        assert list(packed_layers(model)) == ["rnn", "linear"]
        found = sw.torch.unpacked(model)
        assert [each.where for each in sw.torch.report(found).kept] == ["rnn"]
        assert isinstance(found.linear, Int8Linear)
        assert found.plain.weight is model.plain.weight
        rows = torch.randn(2, 5, K)
        with torch.no_grad():
            same(found(rows), model(rows))


class Derived(Linear):  # type: ignore[misc]
    """A layer of somebody's own."""


def test_what_holds_layers_is_no_layer() -> None:
    held = quantization.QuantWrapper(packed())
    assert list(packed_layers(held)) == ["module.0", "module.2"]
    made, kept = unpacked_layers(held)
    assert (len(made), dict(kept)) == (2, {})
    layer = packed()[0]
    layer.__class__ = Derived
    assert unpacked_layers(nn.Sequential(layer)) == (
        {},
        {"0": ("Derived", "what its packed weights mean is not known here")},
    )


def test_layers_of_quantised_tensors_stay_packed() -> None:
    model = nn.Sequential(OfQuantised(K, N))
    made, kept = unpacked_layers(model)
    assert not made
    assert kept == {"0": ("Linear", "what its packed weights mean is not known here")}


def test_what_would_be_computed_in_another_way_stays_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    old = packed()[0]
    old.version = 3
    hooked = packed()[0]
    hooked.register_forward_hook(lambda *_: None)
    narrow = quantised(nn.Sequential(nn.Linear(1, N)))[0]
    others = []
    for engine in {"qnnpack", "onednn"} & set(torch.backends.quantized.supported_engines):
        monkeypatch.setattr(torch.backends.quantized, "engine", engine)
        others.append((packed()[0], "another engine"))
    assert others
    for layer, reason in [(old, "eight bits"), (hooked, "hooks"), (narrow, "single input feature"), *others]:
        made, kept = unpacked_layers(nn.Sequential(layer))
        assert not made
        assert reason in kept["0"][1]


def test_a_model_is_extracted_as_it_is() -> None:
    tasks = sw.extract(packed(), (torch.randn(3, K),), COUNT)
    assert len(list(tasks)) == 4
    with pytest.raises(InvalidInput, match=r"rnn \(LSTM\) has packed weights: what its"):
        sw.extract(quantised(Mixed(), layers=(nn.LSTM,)), (torch.randn(3, 2, K),), COUNT)


def test_both_kinds_of_layers_say_what_they_are() -> None:
    assert isinstance(unpacked(packed("float16")[0]), HalfLinear)
    assert str(unpacked(packed()[0])) == f"Int8Linear(in_features={K}, out_features={HIDDEN}, bias=True)"
