"""Emitted modules in Triton's interpreter, compared with the reference between guard regions.

The interpreter is chosen as Triton is imported: whoever calls ``problems`` does so in a process of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import torch

from tests.contract.rule_samples import SAMPLES
from tests.tuner.schedule.gpu.sampled import sample_choices
from tuner.measure.verification.inputs import random_inputs
from tuner.measure.verification.ragged import ragged_dims
from tuner.program.job.build import workload_from_json
from tuner.program.language.workload import Workload
from tuner.program.reference import expected
from tuner.schedule.gpu.plan import Choices, emit

GUARD, POISON = 64, 77
MAX_POINTS = 20_000
"""Evaluations of stage bodies: the interpreter takes some milliseconds for each tile."""


def patch_bfloat16() -> None:
    """The interpreter keeps a bfloat16 as bits: it multiplies these, cuts off instead of rounding, and takes integers
    for bits."""
    import triton.language as tl  # noqa: PLC0415
    from triton.runtime import interpreter as own  # noqa: PLC0415

    convert = own.InterpreterBuilder.cast_impl

    def wide(handle: Any) -> Any:
        is_short = handle.dtype.scalar == tl.bfloat16
        return (handle.data.astype(np.uint32) << 16).view(np.float32) if is_short else handle.data

    def dot(self: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
        return own.TensorHandle(np.matmul(wide(a), wide(b), dtype=d.data.dtype) + d.data, d.dtype.scalar)

    def cast(self: Any, handle: Any, dtype: Any) -> Any:
        if dtype.scalar == tl.bfloat16 and handle.dtype.scalar != tl.bfloat16:
            rounded = handle.data.astype(np.float32).astype(ml_dtypes.bfloat16)
            return own.TensorHandle(rounded.view(np.uint16), tl.bfloat16)
        return convert(self, handle, dtype)

    own.InterpreterBuilder.create_dot = dot
    own.InterpreterBuilder.cast_impl = cast
    for name in ("create_fp_trunc", "create_fp_ext", "create_si_to_fp", "create_ui_to_fp"):
        setattr(own.InterpreterBuilder, name, lambda self, handle, dtype: self.cast_impl(handle, dtype))
    own.InterpreterBuilder.create_fp_to_fp = lambda self, handle, dtype, mode: self.cast_impl(handle, dtype)


def sample_workload(rule: str, title: str, dtype: str | None) -> Workload:
    """A sample of the rules' contract suite, in another dtype if that is given."""
    sample = dict(SAMPLES[rule][title])
    return workload_from_json(sample if dtype is None else sample | {"dtype": dtype})


def sample_problems(rule: str, title: str, dtype: str | None, number: int) -> list[str]:
    """What is wrong with a sample's kernels at its smallest ragged shapes, with the tiles of that number."""
    workload = sample_workload(rule, title, dtype)
    shapes = sorted(ragged_dims(workload), key=workload.points)
    small = [dims for dims in shapes if workload.points(dims) <= MAX_POINTS][-2:] or shapes[:1]
    return problems(workload, sample_choices(number), small)


def problems(workload: Workload, choices: Choices, shapes: list[dict[str, int]]) -> list[str]:
    """What is wrong with a workload's kernels at these values of its symbols."""
    from tuner.schedule.gpu.cubins import loaded  # noqa: PLC0415

    patch_bfloat16()
    module, found = loaded(emit(workload, choices).text), list[str]()
    for dims in shapes:
        found += [f"{dims}: {problem}" for problem in _at(workload, module, dims)]
    return found


def _at(workload: Workload, module: Any, dims: Mapping[str, int]) -> list[str]:
    inputs, found, guarded = random_inputs(workload, dims), list[str](), []
    packed = [module.pack(each.name, _tensor(array)) for each, array in zip(workload.inputs, inputs, strict=True)]
    for tensor in workload.outputs:
        shape = tensor.shape(dims)
        count = int(np.prod(shape))
        buffer = torch.full((count + 2 * GUARD,), POISON).to(getattr(torch, tensor.dtype))
        guarded.append((tensor.name, buffer, buffer[GUARD : GUARD + count].view(shape)))
    module.run(*packed, *(output for _, _, output in guarded), *(dims[symbol] for symbol in workload.symbols))
    for (name, buffer, output), wanted in zip(guarded, expected(workload, inputs, dims), strict=True):
        wrong = wanted.wrong(_array(output))
        if wrong.any():
            found.append(f"{int(wrong.sum())} of {wrong.size} elements of {name} are wrong")
        rest = torch.cat([buffer[:GUARD], buffer[len(buffer) - GUARD :]])
        if not bool((rest == torch.full((), POISON).to(buffer.dtype)).all()):
            found.append(f"{name} is written outside")
    return found


def _tensor(array: Any) -> torch.Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array).copy())


def _array(tensor: torch.Tensor) -> Any:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()
