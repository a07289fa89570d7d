"""torch.compile as a rival: one function for all shapes of an operator, compiled with dynamic shapes, constants frozen
where PyTorch can.

The first calls compile, and compile again where a size is 1; an operator that spends more than COMPILE_LIMIT_S on that
is left out, with what it took as the reason.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.harness.calls import Array, Call, DoesNotApply
from benchmarks.rivals.torch_kernels import kernel_of
from benchmarks.rivals.torch_products import Prepared, tensor_of
from tuner.program.language.workload import Workload

COMPILE_LIMIT_S = 120.0
WARM_CALLS = 2
"""The second one shows whether what was compiled holds for the shape."""


def prepare(workload: Workload) -> Prepared:
    """Raises DoesNotApply where PyTorch has no kernel to compile; the calls raise it where compilation fails."""
    kernel, compiled = kernel_of(workload), list[Any]()
    left_s = COMPILE_LIMIT_S
    # One whose dims depend on the shape is another tensor at every shape.
    constants = [
        position for position, tensor in enumerate(workload.inputs)
        if tensor.constant and all(dim.constant is not None for dim in tensor.dims)
    ]  # fmt: skip

    def call(inputs: Sequence[Array]) -> Call:
        nonlocal left_s
        tensors, started = [tensor_of(array) for array in inputs], time.monotonic()
        varying = [tensor for position, tensor in enumerate(tensors) if position not in constants]

        def run() -> Any:
            with torch.no_grad():
                return compiled[0](*varying)

        try:
            with deadline(left_s, f"torch.compile took longer than {COMPILE_LIMIT_S:g} s"):
                is_first = not compiled
                if is_first:
                    # Constants are the same at every shape: a module for each would be compiled anew.
                    compiled.append(_module(kernel, tensors, constants, freezing=True))
                try:
                    _warm(run)
                except DoesNotApply:
                    if not is_first or time.monotonic() - started >= left_s:
                        raise
                    # PyTorch 2.13 cannot freeze a convolution whose batch is dynamic.
                    compiled[0] = _module(kernel, tensors, constants, freezing=False)
                    _warm(run)
        finally:
            left_s -= time.monotonic() - started
        return run

    return call


def _warm(run: Call) -> None:
    """Compiles. Raises DoesNotApply where that fails."""
    try:
        for _ in range(WARM_CALLS):
            run()
    except torch._dynamo.exc.TorchDynamoException as error:
        raise DoesNotApply(f"torch.compile fails: {' '.join(str(error).split())[:300]}") from error


class _Operator(torch.nn.Module):  # type: ignore[misc]
    """The kernel with its constants as parameters, which freezing takes for constants."""

    def __init__(self, kernel: Any, tensors: Sequence[Any], constants: Sequence[int]) -> None:
        super().__init__()
        self.kernel, self.count, self.constants = kernel, len(tensors), constants
        frozen = (torch.nn.Parameter(tensors[position], requires_grad=False) for position in constants)
        self.frozen = torch.nn.ParameterList(frozen)

    def forward(self, *varying: Any) -> Any:
        operands, others = dict(zip(self.constants, self.frozen, strict=True)), iter(varying)
        return self.kernel([operands[at] if at in operands else next(others) for at in range(self.count)])()


def _module(kernel: Any, tensors: Sequence[Any], constants: Sequence[int], *, freezing: bool) -> Any:
    torch._dynamo.reset()
    return torch.compile(_Operator(kernel, tensors, constants).eval(), dynamic=True, options={"freezing": freezing})


@contextmanager
def deadline(seconds: float, reason: str) -> Iterator[None]:
    """DoesNotApply with this reason after so many seconds, in the main thread of a process."""

    def stop(*_: object) -> None:
        raise DoesNotApply(reason)

    if seconds <= 0:
        raise DoesNotApply(reason)
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
