"""Operators of PyTorch, alone and in short chains, to workloads: each computes the same, or is left for a reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import shapewright as sw
from shapewright.models.elementwise import literal
from tests.shapewright.models.checking import (
    Formula,
    check_values,
    exported,
    labels,
    lifted,
    lifting_of,
    reference,
    values_of,
)
from tests.shares import diagonal, every
from tuner.program.job.build import make_workload

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": torch.relu,
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "clamp": functional.relu6,
    "leaky_relu": functional.leaky_relu,
    "elu": functional.elu,
    "scaled_elu": functional.selu,
    "log_sigmoid": functional.logsigmoid,
    "mish": functional.mish,
    "softplus": functional.softplus,
    "threshold": lambda x: functional.threshold(x, 0.1, -2.0),
    "hardswish": functional.hardswish,
    "hardsigmoid": functional.hardsigmoid,
    "square": lambda x: x**2,
    "sub": lambda x: 1.0 - x,
    "div": lambda x: x / -3.0,
    "maximum": lambda x: x.clamp(min=-0.5),
}


@pytest.mark.parametrize("name", every(2, ACTIVATIONS))
def test_activations_are_fused(name: str) -> None:
    found = lifted(lambda layer, x: ACTIVATIONS[name](layer(x)), torch.randn(3, 16), layers=(nn.Linear(16, 8),))
    assert labels(found) == [f"dense + bias + {name}"]
    assert not found.left


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "conv1d": (nn.Conv1d(8, 12, 3, padding=1), (2, 8, 9)),
    "conv2d": (nn.Conv2d(8, 12, 3, padding=1), (2, 8, 9, 9)),
    "pointwise": (nn.Conv2d(8, 12, 1), (2, 8, 7, 7)),
    "grouped": (nn.Conv2d(8, 12, 3, groups=2), (2, 8, 9, 9)),
    "depthwise": (nn.Conv2d(8, 8, 3, groups=8), (2, 8, 9, 9)),
    "conv3d": (nn.Conv3d(4, 6, 3), (2, 4, 5, 5, 5)),
    "conv2d_transpose": (nn.ConvTranspose2d(8, 12, 2, stride=2), (2, 8, 5, 5)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("activation", every(2, ["silu", "hardswish", "clamp", "leaky_relu"]))
def test_activations_are_fused_behind_convolutions(name: str, activation: str) -> None:
    """Those of the catalogue are its epilogues, others are written out behind the program."""
    layer, shape = LAYERS[name]
    program = exported(Formula(lambda layer, x: ACTIVATIONS[activation](layer(x)), layer), (torch.randn(shape),), None)
    lifting = lifting_of(program)
    assert [label.split(" + ", 1)[1] for label in labels(lifting)] == [f"bias + {activation}"]
    check_values(program, lifting, (torch.randn(shape),))


def test_slopes_that_are_learnt_are_fused() -> None:
    """One for all elements, or one for each channel."""
    layer, x = nn.Conv2d(3, 8, 1), torch.randn(3, 3, 5, 5)
    for slopes in (nn.PReLU(), nn.PReLU(8)):
        slopes.weight.data = torch.linspace(0.1, 2.0, slopes.num_parameters)
        found = lifted(lambda layer, slopes, x: slopes(layer(x)), x, layers=(layer, slopes))
        assert labels(found) == ["conv2d + bias + prelu"]


def test_activations_of_other_forms_are_left() -> None:
    forms = (functional.softplus, (2.0,)), (functional.softplus, (1.0, 5.0)), (functional.celu, (-1.0,))
    for function, settings in forms:
        left = lifted(lambda x, call=function, own=settings: call(x, *own), torch.randn(3, 16)).left
        assert [one.op for one in left] == ["unknown"]


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


OF_FEW_KEYS: dict[str, Callable[..., Any]] = {
    "plain": lambda q, k, v, _: functional.scaled_dot_product_attention(q, k, v),
    "causal": lambda q, k, v, _: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
    "scaled": lambda q, k, v, _: functional.scaled_dot_product_attention(q, k, v, scale=0.5),
    "transposed": lambda q, k, v, _: functional.scaled_dot_product_attention(q, k, v).transpose(1, 2),
    "floats": lambda q, k, v, mask: functional.scaled_dot_product_attention(q, k, v, attn_mask=mask),
    "bools": lambda q, k, v, mask: functional.scaled_dot_product_attention(q, k, v, attn_mask=mask),
    "spelled out": lambda q, k, v, _: torch.softmax(q @ k.transpose(-2, -1) / 4.0, -1) @ v,
    "spelled out, masked": lambda q, k, v, mask: torch.softmax(q @ k.transpose(-2, -1) / 4.0 + mask, -1) @ v,
}


@pytest.mark.parametrize("way", every(2, OF_FEW_KEYS))
def test_where_there_is_no_key_rows_are_zero(way: str) -> None:
    def given(count: int) -> tuple[Any, ...]:
        mask = torch.randn(5, count)
        return (
            torch.randn(2, 3, 5, 16),
            *(torch.randn(2, 3, count, 16) for _ in "kv"),
            mask > 0 if way == "bools" else mask,
        )

    keys = Dim("keys", min=0, max=64)
    program = exported(Formula(OF_FEW_KEYS[way]), given(7), ((None, {2: keys}, {2: keys}, {1: keys}),))
    found = lifting_of(program)
    assert labels(found) == ["attention"]
    (size,) = map(str, program.range_constraints)
    for count in (0, 1, 9):
        # Eager's own: the operator that exports hold divides by zero in PyTorch where there is no key.
        values = dict(zip(program.graph_signature.user_inputs, given(count), strict=True))
        out, right = reference(found.ops[0], values, {size: count}), OF_FEW_KEYS[way](*values.values())
        torch.testing.assert_close(torch.from_numpy(out).float(), right, rtol=1e-5, atol=1e-5)


SEES = {
    "floats": lambda *shape: torch.randn(shape).masked_fill(torch.rand(shape) < 0.2, -torch.inf),
    "bools": lambda *shape: torch.rand(shape) < 0.8,
}
"""Masks that hide some keys, and every key of the second query."""
MASKS = {
    "of all": (3, 3, 5, 7),
    "of heads": (1, 3, 5, 7),
    "of queries": (5, 7),
    "of keys": (3, 1, 1, 7),
    "of one": (1, 7),
}


@pytest.mark.parametrize(("shape", "kind"), diagonal(MASKS, SEES, every=2))
def test_masks_hide_keys_and_rows_that_see_none_are_zero(kind: str, shape: str) -> None:
    def masked(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    mask = SEES[kind](*MASKS[shape])
    hidden = False if kind == "bools" else -torch.inf
    if shape != "of one":
        mask[(slice(None), slice(None), 1) if mask.shape[-2] > 1 and mask.ndim > 2 else (1,)] = hidden
    tensors = (torch.randn(3, 3, 5, 16), torch.randn(3, 3, 7, 16), torch.randn(3, 3, 7, 16))
    program = exported(Formula(masked), (*tensors, mask), None)
    found = lifting_of(program)
    assert labels(found) == ["attention"]
    assert {tensor.name: tensor.dtype for tensor in found.ops[0].workload.inputs}["mask"] == (
        "bool" if kind == "bools" else "float32"
    )
    check_values(program, found, (*tensors, mask))
    whole = values_of(program, (*tensors, mask))[found.ops[0].output]
    assert (whole == 0).all(-1).any() == (shape != "of one")


@pytest.mark.parametrize("keys", [5, 9, 3])
def test_causal_masks_hide_from_the_first_key_on(keys: int) -> None:
    """PyTorch's way, where queries are not as many as keys."""

    def causal(q: Any, k: Any, v: Any) -> Any:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    k, v = torch.randn(3, 2, keys, 16), torch.randn(3, 2, keys, 16)
    found = lifted(causal, torch.randn(3, 2, 5, 16), k, v)
    own = OPS_CAUSAL.key if keys == 5 else None
    assert labels(found) == ["attention"]
    assert own in (None, found.ops[0].workload.key)


OPS_CAUSAL = make_workload("attention", {"b": "m", "h": 2, "i": 5, "j": 5, "d": 16, "causal": True})


def test_a_mask_beside_a_causal_one() -> None:
    def both(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=True)

    tensors = tuple(torch.randn(2, 3, 5, 16) for _ in range(3))
    mask = torch.rand(2, 1, 5, 5) < 0.6
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        program = exported(Formula(both), (*tensors, mask), None)
        found = lifting_of(program)
        check_values(program, found, (*tensors, mask))
    assert labels(found) == ["attention"]


def test_a_mask_that_is_spelled_out_gives_nan_where_it_hides_all() -> None:
    def spelled(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return torch.softmax(q @ k.transpose(-2, -1) * 0.25 + mask, -1) @ v

    tensors = tuple(torch.randn(2, 3, 5, 16) for _ in range(3))
    mask = torch.zeros(5, 5)
    mask[1] = -torch.inf
    program = exported(Formula(spelled), (*tensors, mask), None)
    found = lifting_of(program)
    assert labels(found) == ["attention"]
    check_values(program, found, (*tensors, mask))
    added = exported(Formula(spelled), (*tensors, torch.ones(5, 5, dtype=torch.bool)), None)
    assert "attention" not in labels(lifting_of(added)), "bools are added there, as 0 and 1"


def test_products_of_heads_that_were_one_axis_are_of_heads() -> None:
    def flat(q: Any, k: Any, v: Any) -> Any:
        b, h, s, d = q.shape
        q, v, turned = q.reshape(b * h, s, d), v.reshape(b * h, s, d), k.transpose(2, 3).reshape(b * h, d, s)
        scores = torch.bmm(q, turned).reshape(b, h, s, s)
        return torch.bmm(torch.softmax(scores * 0.25, -1).reshape(b * h, s, s), v).reshape(b, h, s, d)

    tensors = tuple(torch.randn(2, 3, 5, 16) for _ in range(3))
    own = lifted(functional.scaled_dot_product_attention, *tensors)
    assert [op.workload.key for op in lifted(flat, *tensors).ops] == [op.workload.key for op in own.ops]


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
    assert labels(lifted(functional.linear, torch.randn(3, 8), torch.randn(6, 8), rows=1)) == ["matmul"]


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


class Padded(nn.Module):  # type: ignore[misc]
    """A layer whose input is padded before, as TensorFlow's models are when they are PyTorch's."""

    def __init__(self, pad: tuple[int, ...], layer: nn.Module, value: float = 0.0) -> None:
        super().__init__()
        self.pad, self.layer, self.value = pad, layer, value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(functional.pad(x, self.pad, value=self.value))


WINDOWS: dict[str, tuple[nn.Module, tuple[int, ...], str]] = {
    "one by seven": (nn.Conv2d(4, 6, (1, 7), padding=(0, 3)), (3, 4, 9, 9), "conv + bias"),
    "steps of two and one": (nn.Conv2d(4, 6, 3, stride=(2, 1), padding=1), (3, 4, 9, 8), "conv + bias"),
    "in groups": (nn.Conv2d(4, 6, (3, 1), padding=(1, 0), groups=2), (3, 4, 9, 9), "conv + bias"),
    "of single channels": (nn.Conv2d(4, 4, (1, 5), padding=(0, 2), groups=4), (3, 4, 9, 9), "conv + bias"),
    "an even window": (nn.Conv2d(4, 6, 4, padding="same"), (3, 4, 9, 9), "conv + bias"),
    "behind alone": (Padded((0, 1, 0, 1), nn.Conv2d(4, 6, 3, stride=2)), (3, 4, 8, 8), "conv + bias"),
    "single channels, behind": (Padded((1, 2, 1, 2), nn.Conv2d(4, 4, 5, 2, groups=4)), (3, 4, 8, 8), "conv + bias"),
    "padded twice": (Padded((1, 1, 1, 1), nn.Conv2d(4, 6, 3, padding=1)), (3, 4, 5, 5), "conv2d + bias"),
    "a line": (Padded((0, 3), nn.Conv1d(4, 6, 4)), (3, 4, 9), "conv + bias"),
    "a volume": (nn.Conv3d(2, 4, (3, 1, 1), padding=(1, 0, 0)), (2, 2, 4, 5, 6), "conv + bias"),
    "rounded up": (nn.MaxPool2d(3, 2, ceil_mode=True), (3, 4, 8, 8), "max_pool"),
    "rounded up, padded": (nn.MaxPool2d(3, 2, padding=1, ceil_mode=True), (3, 4, 8, 9), "max_pool"),
    "rounded up, a window left out": (nn.MaxPool2d(2, 3, padding=1, ceil_mode=True), (3, 4, 8, 10), "max_pool2d"),
    "rounded up to the same": (nn.MaxPool2d(3, 2, ceil_mode=True), (3, 4, 9, 9), "max_pool2d"),
    "maxima by three and one": (nn.MaxPool2d((3, 1), (2, 1), padding=(1, 0)), (3, 4, 9, 9), "max_pool"),
    "maxima, behind": (Padded((0, 1, 0, 1), nn.MaxPool2d(3, 2), -math.inf), (3, 4, 8, 8), "max_pool"),
    "means by three and one": (nn.AvgPool2d((3, 1), (2, 1), padding=(1, 0)), (3, 4, 9, 9), "avg_pool"),
    "means of fewer": (nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), (3, 4, 9, 12), "avg_pool"),
    "means, rounded up": (nn.AvgPool2d(3, 2, ceil_mode=True), (3, 4, 8, 10), "avg_pool"),
    "means, rounded up, padded": (nn.AvgPool2d(3, 2, padding=1, ceil_mode=True), (3, 4, 8, 10), "avg_pool"),
    "means of fewer, rounded up": (
        nn.AvgPool2d(3, 2, padding=1, ceil_mode=True, count_include_pad=False), (3, 4, 8, 10), "avg_pool"
    ),
    "means of fewer, padded before": (
        Padded((1, 2, 0, 1), nn.AvgPool2d(3, 2, padding=1, count_include_pad=False)), (3, 4, 8, 10), "avg_pool"
    ),
    "another divisor": (nn.AvgPool2d(3, 2, padding=1, divisor_override=5), (3, 4, 9, 9), "avg_pool"),
    "means, rounded up to the same": (nn.AvgPool2d(3, 2, ceil_mode=True), (3, 4, 9, 9), "avg_pool2d"),
}  # fmt: skip


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_that_differ_between_axes_and_sides(name: str) -> None:
    layer, shape, label = WINDOWS[name]
    assert labels(lifted(lambda layer, x: layer(x), torch.randn(shape), layers=(layer,))) == [label]


@pytest.mark.parametrize("name", [name for name, (_, _, label) in WINDOWS.items() if "conv" in label])
def test_norms_are_folded_into_any_windows(name: str) -> None:
    layer, shape, label = WINDOWS[name]
    norms = {3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    norm = norms[len(shape)](layer(torch.randn(shape)).shape[1])
    for value in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        value.data = torch.rand_like(value) + 0.5
    found = lifted(lambda layer, norm, x: norm(layer(x)), torch.randn(shape), layers=(layer, norm))
    assert labels(found) == [label]
    assert {each.fold.kind for each in found.ops[0].operands if each.fold} == {"weight", "bias"}


@pytest.mark.parametrize("name", ["s", "q", "c"])
def test_a_variable_may_have_the_name_of_an_axis(name: str) -> None:
    """Of a convolution that is spelled out, and of one that is for the stage behind it."""
    for layer in (Padded((2, 0), nn.Conv1d(4, 6, 3)), nn.Sequential(nn.Conv1d(4, 6, 3, padding=1), nn.Softsign())):
        own, other = (
            sw.extract(layer.eval(), (torch.randn(2, 4, 10),), ({2: Dim(size, min=4, max=32)},))[0].workload
            for size in (name, "T")
        )
        assert own.key == other.key
        assert own.tensors["x"].dims[2].constant is None


KEPT_PADDING: dict[str, nn.Module] = {
    "another value": Padded((1, 1, 1, 1), nn.Conv2d(4, 6, 3), 1.0),
    "maxima of zeros": Padded((1, 1, 1, 1), nn.MaxPool2d(3, 1)),
    "channels": Padded((0, 0, 0, 0, 1, 1), nn.Conv2d(6, 6, 3)),
    "cut": Padded((-1, -1, -1, -1), nn.Conv2d(4, 6, 3)),
}


@pytest.mark.parametrize("name", KEPT_PADDING)
def test_padding_of_another_kind_is_left(name: str) -> None:
    found = lifted(lambda layer, x: layer(x), torch.randn(3, 4, 8, 8), layers=(KEPT_PADDING[name],))
    assert len(found.ops) == 1
    assert [each.reason for each in found.left] == ["pad on its own is not lifted"]


DEPTHWISE: dict[str, nn.Module] = {
    "wide": nn.Conv2d(1152, 1152, 5, padding=2, groups=1152),
    "two for each": nn.Conv2d(1152, 2304, 3, padding=1, groups=1152, bias=False),
    "strided": nn.Conv2d(1152, 1152, 3, stride=2, padding=1, groups=1152),
}


ONES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "every place": (nn.Conv2d(8, 8, 1, groups=8), (2, 8, 9, 9)),
    "every second place": (nn.Conv2d(8, 8, 1, stride=2, groups=8, bias=False), (2, 8, 9, 9)),
    "of a row": (nn.Conv1d(8, 8, 1, stride=3, groups=8), (2, 8, 20)),
}


@pytest.mark.parametrize("name", ONES)
def test_windows_of_one_element_of_single_channels_are_no_sum(name: str) -> None:
    """A norm of inference behind them is folded, as behind others."""
    conv, shape = ONES[name]
    norm = (nn.BatchNorm2d(8) if len(shape) == 4 else nn.BatchNorm1d(8)).eval()
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    found = lifted(lambda conv, norm, x: torch.relu(norm(conv(x))), torch.randn(*shape), layers=(conv, norm))
    assert labels(found) == ["conv + bias + relu"]
    assert not found.left
    assert not any(stage.reducer for stage in found.ops[0].workload.program.stages)


@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise_convolutions_of_any_number_of_channels_have_a_rule(name: str) -> None:
    found = lifted(lambda layer, x: torch.relu(layer(x)), torch.randn(2, 1152, 14, 14), layers=(DEPTHWISE[name],))
    assert labels(found)[0].endswith("+ relu")
    assert not found.left


def test_reductions_over_any_neighbouring_axes() -> None:
    x = torch.randn(3, 8, 6)
    assert labels(lifted(lambda x: x.sum(-1), x)) == ["reduce_sum"]
    assert labels(lifted(lambda x: x.amax((1, 2), keepdim=True), x)) == ["reduce_max"]
    assert labels(lifted(lambda x: x.mean(1), x)) == ["reduce"]
    pooled = x[..., None, None]
    for model in (lambda x: x.mean(2), lambda x: x.mean(2, keepdim=True), lambda x: x.mean((2, 3), keepdim=True)):
        assert labels(lifted(model, pooled)) == ["reduce_mean"]


def test_lengths_of_vectors_and_sums_with_products_are_operators() -> None:
    """Norms of responses (ConvNeXt V2), and the cosines of attention."""
    x, y = torch.randn(3, 8, 6), torch.randn(6)
    assert labels(lifted(lambda x: x.norm(dim=1, keepdim=True), x)) == ["mul + reduce + sqrt"]
    assert labels(lifted(lambda x: functional.normalize(x, dim=-1), x)) == ["mul + reduce_sum + sqrt + maximum"]
    for value, steps in ((1, "mul + bias"), (2, "mul + mul + bias")):
        found = lifted(lambda x, y, value=value: torch.tanh(torch.addcmul(y, x, y, value=value)), x, y, rows=1)
        assert labels(found) == [f"{steps} + tanh"]
    left = lifted(lambda x: torch.linalg.vector_norm(x, 1, -1), x).left
    assert [one.reason for one in left] == ["linalg_vector_norm: the operator has no translation"]


SINGLE_NUMBERS: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "doubled": (lambda x: x.sum() * 2, ["reduce + mul"]),
    "activated": (lambda x: torch.relu(x.amax()), ["reduce + relu"]),
    "with a reader": (lambda x: x / (x * x).sum().sqrt(), ["mul + reduce + sqrt"]),
    "of two": (lambda x: x.sum() + x.mean(), ["reduce", "reduce + add"]),
    "kept": (lambda x: torch.tanh(x.mean((0, 1), keepdim=True)) - 1, ["reduce + tanh + sub"]),
    "chained": (lambda x: torch.tanh(x.sum() * 2 + 1), ["reduce + mul + add + tanh"]),
}


@pytest.mark.parametrize("name", SINGLE_NUMBERS)
def test_what_reads_a_single_number_is_fused(name: str) -> None:
    function, expected = SINGLE_NUMBERS[name]
    assert labels(lifted(function, torch.randn(3, 8))) == expected


def test_logarithms_of_a_softmax_are_one_operator() -> None:
    assert labels(lifted(lambda x: functional.log_softmax(x * 3.0, -1), torch.randn(3, 8))) == ["mul + log_softmax"]


def test_steps_beside_views_of_numbers_are_lifted_or_left() -> None:
    assert lifted(torch.linalg.matrix_rank, torch.randn(3, 5, 5)).left


def test_softmax_of_a_single_number_is_left() -> None:
    found = lifted(lambda x: torch.softmax(x.sum(), 0), torch.randn(3, 8))
    assert [one.reason for one in found.left] == ["a softmax of a single number"]


def test_elementwise_chains_are_one_pass_and_a_lone_step_is_left() -> None:
    x, y = torch.randn(3, 8, 6), torch.randn(6)
    chain = lifted(lambda x, y: torch.tanh((x + y) * 2.0), x, y, rows=1)
    assert labels(chain) == ["add + mul + tanh"]
    assert len(chain.ops[0].output_view) == 2, "axes that every tensor has are joined"
    lone = lifted(lambda x, y: x + y, x, y, rows=1)
    assert not lone.ops
    assert "gains nothing" in lone.left[0].reason


def test_what_is_read_twice_is_not_fused_away() -> None:
    def residual(layer: Any, x: Any) -> Any:
        y = layer(x)
        return torch.tanh(y) * y

    assert labels(lifted(residual, torch.randn(3, 8), layers=(nn.Linear(8, 8),))) == ["dense + bias", "tanh + mul"]


def test_what_is_changed_in_place_is_fused_like_what_is_not() -> None:
    def own(layer: Any, x: Any) -> Any:
        return torch.relu_(layer(x).add_(x))

    def given(layer: Any, x: Any) -> Any:
        return layer(torch.relu_(x))

    assert labels(lifted(own, torch.randn(3, 8), layers=(nn.Linear(8, 8),))) == ["dense + bias + add + relu"]
    assert labels(lifted(given, torch.randn(3, 8), layers=(nn.Linear(8, 8),))) == ["dense + bias"]


def test_numbers_that_float32_hardly_has() -> None:
    least = torch.finfo(torch.float32).min
    assert literal(least, "bfloat16") == f"({least!r})"
    assert [literal(sign * 1e300, "float32") for sign in (1, -1)] == ["inf", "(-inf)"]
    assert literal(1e300, "float64") == "1e+300"


HELD: dict[str, Callable[[Any], Any]] = {
    "bfloat16": lambda x: torch.full((), 0.3, dtype=torch.bfloat16),
    "integer": lambda x: torch.full((), 2.7, dtype=torch.int32),
    "float16": lambda x: torch.scalar_tensor(0.1, dtype=torch.float16),
}


@pytest.mark.parametrize("name", HELD)
def test_a_number_is_what_its_dtype_holds(name: str) -> None:
    found = lifted(lambda layer, x: layer(x) * HELD[name](x), torch.randn(3, 16), layers=(nn.Linear(16, 8),))
    assert labels(found) == ["dense + bias + mul"]


LEFT: dict[str, tuple[Callable[..., Any], tuple[nn.Module, ...], str]] = {
    "strides": (lambda c, x: c(x), (nn.ConvTranspose2d(4, 4, 3, stride=(1, 2)),), "differs between axes or sides"),
    "training": (lambda x: functional.dropout(x, 0.5, training=True), (), "native_dropout: the operator"),
    "axis": (lambda x: torch.softmax(x, 1), (), "another axis than the last"),
    "unknown": (lambda x: torch.cumsum(x, 1), (), "cumsum: the operator has no translation"),
    "integers": (lambda x: (x > 0).sum(-1), (), "none of float32"),
    "statistics": (
        lambda x: functional.batch_norm(x, None, None, training=True), (), "_native_batch_norm_legit: the operator"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT)
def test_what_is_left_has_its_reason(case: str) -> None:
    function, layers, reason = LEFT[case]
    program = exported(Formula(function, *layers), (torch.randn(3, 4, 8, 8),), (({0: Dim("batch", min=1, max=4)},),))
    lifting = lifting_of(program)
    assert not lifting.ops
    assert any(reason in one.reason for one in lifting.left), lifting.left


def test_arithmetic_of_single_values_is_no_work_that_is_left() -> None:
    def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * (y.sin() + y) * 0.5)

    lifting = lifted(scaled, torch.randn(3, 5), torch.tensor(0.5), rows=1)
    assert labels(lifting) == ["mul + mul + relu"]
    assert not lifting.left


def test_another_output_of_an_operator_is_a_tensor_as_any() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.aminmax(x, dim=0)[1] * 0.5)

    lifting = lifted(scaled, torch.randn(3, 5))
    assert labels(lifting) == ["mul + relu"]
    assert [left.reason for left in lifting.left] == ["aminmax: the operator has no translation"]
