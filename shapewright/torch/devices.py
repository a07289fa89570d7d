"""On which device a model runs, as libraries name it."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from shapewright.gpu import ALIGNMENT
from tuner.program.target import Target, native
from tuner.program.target.cuda import ARCHITECTURES

CPU, CUDA = "cpu", "cuda"


def device_of(target: Target) -> str:
    """PyTorch's name of the kind of device that a library of the target computes on."""
    return CPU if target.gpu is None else CUDA


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy, so that it begins where kernels for GPUs ask for it."""
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor


def allows_tf32(target: Target) -> bool:
    """Whether PyTorch's settings of this moment let products of float32 on the target be computed in TF32."""
    own = torch.backends.cuda.matmul
    # Before PyTorch 2.9 there was but one name; since, it must not be read where the other one was set.
    precision = getattr(own, "fp32_precision", None) or ("tf32" if own.allow_tf32 else "ieee")
    return target.gpu is not None and precision == "tf32"


def target_of(values: Iterable[object]) -> Target | str:
    """What libraries for a graph of these inputs have to be for: the GPU that one of them is on, or this CPU; or why
    there are none."""
    for value in values:
        if isinstance(value, torch.Tensor) and value.device.type == CUDA:
            major, minor = torch.cuda.get_device_capability(value.device)
            arch = f"sm_{major}{minor}"
            if arch not in ARCHITECTURES:
                return f"no libraries are made for GPUs of {arch}: known are {', '.join(ARCHITECTURES)}"
            return Target.from_json({"kind": "cuda", "arch": arch})
    return native()
