"""Layers of ``torch.ao.quantization.quantize_dynamic``, their weights as tensors, in place of PyTorch's packed ones.

PyTorch keeps the weights of such a layer in an object of C++, which neither TorchDynamo nor ``torch.export`` reads, and
its operator says to nobody what it computes. Here that is spelled out by operators of ATen, in FBGEMM's arithmetic:
one scale and one zero point for all of the input, seven bits, products of integers, which are scaled as floats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.ao.nn.intrinsic.quantized.dynamic import LinearReLU
from torch.ao.nn.quantized.dynamic import Linear
from torch.nn import functional

MOST = 127
"""The largest byte of an input: FBGEMM leaves a bit, so that sums of two products fit in 16 bits."""
LEAST_SCALE = float(torch.tensor(6.1e-5, dtype=torch.float32))
"""FBGEMM's least scale, about the least normal number of float16."""
USUAL_SCALE = 0.1
"""FBGEMM's scale for an input of zeros, or of numbers so small that the scale has no reciprocal."""
SEVEN_BITS = 4
"""The version of PyTorch's modules since which inputs have seven bits."""
CLOSE = 1e-5
"""Of a layer to PyTorch's own, relative to the largest number of the result."""
PYTORCHS = tuple(f"torch.ao.nn.{kind}." for kind in ("quantized", "intrinsic.quantized", "sparse.quantized"))
"""Where PyTorch's quantised layers are, which hold packed weights in modules of their own."""


class Unknown(Exception):
    """Why a layer stays as PyTorch has it."""


class Int8Linear(nn.Module):  # type: ignore[misc]
    """A layer with weights of int8: ``x``, rounded to bytes, times ``weight_int8`` [n, k], with a scale and perhaps a
    zero point for each of the n columns."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, has_relu: bool) -> None:
        """``weight`` is a quantised tensor of PyTorch's."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.has_relu = has_relu
        scales, zeros = _quantisation(weight)
        self.register_buffer("weight_int8", weight.int_repr())
        self.register_buffer("weight_scales", scales)
        self.register_buffer("weight_zeros", zeros if zeros.any() else None)
        self.register_buffer("bias_float", None if bias is None else bias.detach().clone())

    def weight(self) -> torch.Tensor:
        """Quantised, with a scale for each row: others may ask a layer for it."""
        scales, zeros = self.weight_scales, self.weight_zeros
        zeros = torch.zeros_like(scales, dtype=torch.int32) if zeros is None else zeros
        return torch._make_per_channel_quantized_tensor(self.weight_int8, scales, zeros, 0)

    def bias(self) -> torch.Tensor | None:
        return self.bias_float

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = _rows(x)
        if not rows.numel():
            # There is no least and no largest number.
            return x.new_empty([*x.shape[:-1], self.out_features])
        scale, zero = _scale_and_zero(rows)
        bytes_ = _bytes(rows, scale, zero)
        sums = torch._int_mm(bytes_, self.weight_int8.t())
        if self.weight_zeros is not None:
            sums = sums - bytes_.sum(-1, keepdim=True, dtype=torch.int32) * self.weight_zeros
        out = sums.float() * (scale * self.weight_scales)
        if self.bias_float is not None:
            out = out + self.bias_float
        out = out.relu() if self.has_relu else out
        return out if x.dim() == 2 else out.reshape([*x.shape[:-1], self.out_features])

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias_float is not None}"


class HalfLinear(nn.Module):  # type: ignore[misc]
    """A layer with weights of float16, which are multiplied as float32."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, has_relu: bool) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.has_relu = has_relu
        self.register_buffer("weight_half", weight.half())
        self.register_buffer("bias_float", None if bias is None else bias.detach().clone())

    def weight(self) -> torch.Tensor:
        return self.weight_half.float()

    def bias(self) -> torch.Tensor | None:
        return self.bias_float

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _check(x)
        if torch.is_autocast_enabled("cpu"):
            with torch.autocast("cpu", enabled=False):
                return self._of(x.detach())
        return self._of(x.detach())

    def _of(self, x: torch.Tensor) -> torch.Tensor:
        out = functional.linear(x, self.weight_half.float(), self.bias_float)
        return out.relu() if self.has_relu else out

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias_float is not None}"


def _check(x: torch.Tensor) -> None:
    """What PyTorch's operator takes, and no more."""
    if x.dtype is not torch.float32 or x.dim() < 2:
        raise RuntimeError(f"a layer that is quantised takes float32 of two axes or more, not {x.dtype} of {x.dim()}")


def _rows(x: torch.Tensor) -> torch.Tensor:
    _check(x)
    x = x.detach()
    return x if x.dim() == 2 else x.flatten(0, -2)


def _scale_and_zero(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What one step of a byte stands for, and the byte of 0.0: both float32, without axes."""
    low, high = torch.aminmax(rows)
    low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    scale = (high.double() - low.double()) / MOST
    rounded = scale.float()
    scale = torch.where((rounded == 0.0) | torch.isinf(1.0 / rounded), USUAL_SCALE, scale)
    # What has too small a scale gets the least one, and is stretched so that its zero stays where it is.
    is_small = scale < LEAST_SCALE
    stretched = LEAST_SCALE / scale.float()
    least = torch.where(high == 0.0, -LEAST_SCALE * MOST, torch.where(low == 0.0, low, low * stretched))
    largest = torch.where(low == 0.0, LEAST_SCALE * MOST, torch.where(high == 0.0, high, high * stretched))
    scale = torch.where(is_small, LEAST_SCALE, scale)
    least = torch.where(is_small, least, low).double() / scale
    largest = torch.where(is_small, largest, high).double() / scale
    zero = torch.where(-least.abs() < MOST - largest.abs(), -least, MOST - largest)
    return scale.float(), zero.round().clamp(0.0, MOST).float()


def _bytes(rows: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """Rows as int8, less the byte of 0.0.

    FBGEMM multiplies and adds in one instruction, which rounds once. A product of two floats is exact in float64.
    """
    inverse = 1.0 / scale
    steps = (rows.double() * inverse.double() + zero.double()).float()
    # All fit by then: the limits say so to who reads the graph.
    return (steps.round().relu() - zero).clamp(-128, 127).to(torch.int8)


def _quantisation(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale and the zero point of each row of a quantised tensor. Raises Unknown."""
    count = weight.shape[0]
    if weight.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        zeros = torch.full((count,), weight.q_zero_point(), dtype=torch.int32)
        return torch.full((count,), weight.q_scale(), dtype=torch.float32), zeros
    if weight.qscheme() in (torch.per_channel_affine, torch.per_channel_symmetric) and weight.q_per_channel_axis() == 0:
        return weight.q_per_channel_scales().float(), weight.q_per_channel_zero_points().int()
    raise Unknown(f"its weight is quantised by {weight.qscheme()}")


# -- in a model -----------------------------------------------------------------------------------------------------
Kept = Mapping[str, tuple[str, str]]
"""By the names of layers: their types, and why their weights stay packed."""


def unpacked_layers(model: nn.Module) -> tuple[Mapping[int, nn.Module], Kept]:
    """What takes the place of each layer with packed weights, by its id; and what stays."""
    made: dict[int, nn.Module] = {}
    kept: dict[str, tuple[str, str]] = {}
    for name, layer in packed_layers(model).items():
        try:
            made[id(layer)] = _unpacked(layer).train(layer.training)
        except Unknown as error:
            kept[name] = type(layer).__name__, str(error)
        except Exception as error:  # of PyTorch's, for a layer that it cannot call itself
            kept[name] = type(layer).__name__, f"{type(error).__name__}: {error}"
    return made, kept


def packed_layers(model: nn.Module) -> Mapping[str, nn.Module]:
    """The layers that hold packed weights, by name: those of PyTorch whole, where these are part of one."""
    modules = dict(model.named_modules())
    wholes = {name for name, module in modules.items() if _is_pytorchs(module)}
    found = {}
    for name, module in modules.items():
        if any(isinstance(value, torch.ScriptObject) for value in vars(module).values()):
            parts = name.split(".")
            within = [".".join(parts[:count]) for count in range(len(parts) + 1)]
            whole = next((each for each in within if each in wholes), name)
            found[whole] = modules[whole]
    return found


def _is_pytorchs(module: nn.Module) -> bool:
    """Whether it is a quantised layer of PyTorch's, or of a class that is derived from one."""
    return any(kind.__module__.startswith(PYTORCHS) for kind in type(module).__mro__)


def _unpacked(module: Any) -> nn.Module:
    """Raises Unknown."""
    if type(module) not in (Linear, LinearReLU):
        raise Unknown("what its packed weights mean is not known here")
    if "forward" in vars(module) or any(value for name, value in vars(module).items() if name.endswith("_hooks")):
        raise Unknown("it has hooks, or a forward of its own")
    packed, has_relu = module._packed_params, type(module) is LinearReLU
    weight, bias = packed._weight_bias()
    if packed.dtype is torch.float16:
        made: nn.Module = HalfLinear(weight, bias, has_relu)
    elif module.version is None or module.version < SEVEN_BITS:
        raise Unknown("it was saved by a PyTorch whose inputs had eight bits, and sums of 16 bits overflow then")
    elif weight.shape[1] < 2:
        raise Unknown("torch._int_mm is wrong for a single input feature")
    else:
        made = Int8Linear(weight, bias, has_relu)
    if not all(_agree(module, made, rows) for rows in _probes(weight.shape[1])):
        raise Unknown("its weights were packed for another engine than FBGEMM, which rounds in another way")
    return made


def _probes(k: int) -> Iterator[torch.Tensor]:
    """Rows that show how inputs are rounded, also halfway between two bytes."""
    generator = torch.Generator().manual_seed(0)
    yield torch.randn(2, k, generator=generator)
    halves = torch.randint(-3, 4, (2, k), generator=generator) * 0.5
    halves[:, :2] = torch.tensor([-1.5, 1.5])
    yield halves


def _agree(module: nn.Module, made: nn.Module, rows: torch.Tensor) -> bool:
    with torch.no_grad():
        right, found = module(rows), made(rows)
    return bool(torch.allclose(found, right, rtol=CLOSE, atol=CLOSE * float(right.abs().max())))
