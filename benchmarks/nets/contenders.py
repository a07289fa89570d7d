"""The contenders of ``benchmarks.models``, to be made in a process of its own each (see harness/remote.py)."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch._dynamo.utils import counters
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.harness.calls import DoesNotApply
from benchmarks.harness.turns import once_awake, sampler
from benchmarks.nets.decoding import Step, with_pytorchs_kernels
from benchmarks.nets.llama_cpp import LLAMA_CPP, PACKAGES, decoder
from benchmarks.nets.zoo import MODELS, SEED
from benchmarks.rivals.onnx_files import EXPORTED

OURS, EAGER, COMPILED = "ours", "eager", "compile"


class Contender:
    """A model as one contender has it. ``libraries``: a directory or a snapshot of ours, which is called by a program
    that was exported, as those of other runtimes are, where ``is_exported``."""

    def __init__(self, name: str, model: str, threads: int, libraries: Path, is_exported: bool = False) -> None:
        torch.set_num_threads(threads)
        self._name, self._zoo, self._libraries, self._threads = name, MODELS[model], libraries, threads
        # Other runtimes read float32, and compute in what they have of the model's dtype.
        self._dtype = torch.float32 if name in EXPORTED else self._zoo.dtype
        self._model, self._is_exported = (
            self._zoo.build(self._dtype),
            name in EXPORTED or (name == OURS and is_exported),
        )
        # Such read arrays.
        self._is_foreign = name in EXPORTED or name == LLAMA_CPP
        if name in (EAGER, COMPILED):
            self._model = with_pytorchs_kernels(self._model)
        self._given: tuple[Any, ...] = ()
        self._notes, self._compiled_at, self._compile_s = list[str](), list[dict[str, Any]](), 0.0

    @cached_property
    def _call(self) -> Callable[..., Any]:
        if self._name == LLAMA_CPP:
            return self._of_llama_cpp()
        return self._exported() if self._is_exported else self._compiled()

    def _compiled(self, *, freezing: bool = True) -> Callable[..., Any]:
        how: dict[str, Any] = {"options": {"freezing": freezing, "max_autotune": True}}
        if self._name == EAGER:
            return self._model  # type: ignore[no-any-return]
        if self._name == OURS:
            from shapewright.torch.backend import shapewright  # noqa: PLC0415

            how = {"backend": shapewright, "options": {"source": self._libraries}}
        # Images keep their size: of them the batch alone is marked as dynamic.
        return torch.compile(self._model, dynamic=True if self._zoo.axis else None, **how)  # type: ignore[no-any-return]

    def _of_llama_cpp(self) -> Callable[..., Any]:
        if not isinstance(self._model, Step):
            raise DoesNotApply("it is compared at steps of decoders alone")
        _need(*PACKAGES)
        with tempfile.TemporaryDirectory() as folder:
            return decoder(self._model, Path(folder), self._threads)

    def _exported(self) -> Callable[..., Any]:
        _need(*((self._name, "onnxscript") if self._name in EXPORTED else ()))
        example, axes = self._zoo.example(self._dtype)
        if self._name == OURS:
            import shapewright as sw  # noqa: PLC0415 - none of the others'

            program = torch.export.export(self._model, example, dynamic_shapes=axes)
            return sw.torch.compile_exported(program, self._libraries, threads=self._threads, freeze=True)  # type: ignore[no-any-return]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.onnx"
            torch.onnx.export(self._model, example, str(file), dynamo=True, dynamic_shapes=axes, verbose=False)
            return EXPORTED[self._name](file, self._threads, str(self._zoo.dtype).removeprefix("torch."))

    def prepare(self, batch: int, length: int) -> list[NDArray[Any]]:
        """Compile for a size if need be, and call once: the outputs."""
        torch.manual_seed(SEED)
        self._given, before = self._zoo.inputs(batch, length, self._dtype), counters["stats"]["unique_graphs"]
        if self._is_foreign:
            self._given = tuple(
                tensor.float().numpy() if tensor.is_floating_point() else tensor.numpy() for tensor in self._given
            )
        elif self._zoo.axis == 0 and length > 1:
            torch._dynamo.mark_dynamic(self._given[0], 0)
        # An export is no part of the first call.
        _, started = self._call, time.perf_counter()
        try:
            result = self._run()
        except torch._dynamo.exc.TorchDynamoException as error:
            if self._name != COMPILED or self._notes:
                raise
            # PyTorch 2.13 cannot freeze a convolution whose batch is dynamic.
            self._notes.append(f"without freezing, which fails: {' '.join(str(error).split())[:200]}")
            torch._dynamo.reset()
            self._call = self._compiled(freezing=False)
            result = self._run()
        first_s = time.perf_counter() - started
        if (graphs := counters["stats"]["unique_graphs"] - before) > 0:
            self._compiled_at.append({"size": f"batch {batch}, length {length}", "graphs": graphs})
            self._compile_s = max(self._compile_s, first_s - self.sample(1))
        outputs = result if isinstance(result, tuple | list) else (result,)
        return [np.array(torch.as_tensor(output).float().numpy()) for output in outputs]

    def _run(self) -> Any:
        with torch.no_grad():
            return self._call(*self._given)

    def flops(self) -> int:
        """Operations of matrix products and convolutions in the last call, a multiply-add counting as two."""
        with FlopCounterMode(display=False) as counter:
            self._run()
        return int(counter.get_total_flops())

    def sample(self, number: int) -> float:
        """The mean seconds of so many calls in a row, at the size that was prepared last."""
        with torch.no_grad():
            call, given = self._call, self._given
            return once_awake(sampler(lambda: call(*given)), number)

    def facts(self) -> dict[str, Any]:
        """``compile_s``: what a first call at a size took more than another one, at most."""
        told = {"notes": self._notes, "compiled_at": self._compiled_at, "compile_s": self._compile_s}
        if self._name != OURS:
            return told
        from shapewright.torch.reports import report  # noqa: PLC0415

        return {**told, "report": report().to_json()}


def _need(*packages: str) -> None:
    """Raises DoesNotApply where one is not installed."""
    for name in packages:
        if find_spec(name) is None:
            raise DoesNotApply(f"{name} is not installed: pip install -e '.[rivals]'")
