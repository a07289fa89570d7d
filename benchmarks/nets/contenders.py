"""The contenders of ``benchmarks.models``, to be made in a process of its own each (see harness/remote.py)."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.harness.turns import once_awake, sampler
from benchmarks.nets.zoo import MODELS, SEED, build, dynamic_axes
from benchmarks.rivals.onnx_files import EXPORTED

OURS, EAGER, COMPILED = "ours", "eager", "compile"


def lacking(name: str) -> str:
    """Why a contender takes no part here; empty if it does."""
    lacks = [each for each in (name, "onnxscript") if name in EXPORTED and find_spec(each) is None]
    return f"{', '.join(lacks)} is not installed: pip install -e '.[rivals]'" if lacks else ""


class Contender:
    """A model as one contender has it. ``libraries``: a directory or a snapshot of ours, which is called by a program
    that was exported, as those of other runtimes are, where ``is_exported``."""

    def __init__(self, name: str, model: str, threads: int, libraries: Path, is_exported: bool = False) -> None:
        torch.set_num_threads(threads)
        self._inputs, self._axis = MODELS[model].inputs, MODELS[model].axis
        self._name, self._model, self._notes = name, build(model), list[str]()
        self._call: Callable[..., Any] = (
            self._exported(model, threads) if name in EXPORTED
            else self._frozen(model, threads, libraries) if name == OURS and is_exported
            else self._compiled(libraries)
        )  # fmt: skip
        self._given: tuple[Any, ...] = ()
        self._compiled_at: list[dict[str, Any]] = []

    def _compiled(self, libraries: Path, *, freezing: bool = True) -> Callable[..., Any]:
        how: dict[str, Any] = {"options": {"freezing": freezing, "max_autotune": True}}
        if self._name == EAGER:
            return self._model  # type: ignore[no-any-return]
        if self._name == OURS:
            from shapewright.torch.backend import shapewright  # noqa: PLC0415

            how = {"backend": shapewright, "options": {"source": libraries}}
        # Images keep their size: of them the batch alone is marked as dynamic.
        return torch.compile(self._model, dynamic=True if self._axis else None, **how)  # type: ignore[no-any-return]

    def _frozen(self, model: str, threads: int, libraries: Path) -> Callable[..., Any]:
        import shapewright as sw  # noqa: PLC0415 - none of the others'

        example, axes = dynamic_axes(model)
        program = torch.export.export(self._model, example, dynamic_shapes=(axes,))
        return sw.torch.compile_exported(program, libraries, threads=threads, freeze=True)  # type: ignore[no-any-return]

    def _exported(self, model: str, threads: int) -> Callable[..., Any]:
        example, axes = dynamic_axes(model)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.onnx"
            torch.onnx.export(self._model, example, str(file), dynamo=True, dynamic_shapes=(axes,), verbose=False)
            return EXPORTED[self._name](file, threads)

    def prepare(self, batch: int, length: int) -> tuple[float, list[NDArray[Any]]]:
        """Compile for a size if need be, and call once: the seconds of that, and the outputs."""
        torch.manual_seed(SEED)
        before = self._graphs()
        self._given, started = self._inputs(batch, length), time.perf_counter()
        if self._name in EXPORTED:
            self._given = tuple(tensor.numpy() for tensor in self._given)
        elif self._axis == 0 and length > 1:
            torch._dynamo.mark_dynamic(self._given[0], 0)
        try:
            result = self._run()
        except torch._dynamo.exc.TorchDynamoException as error:
            if self._name != COMPILED or self._notes:
                raise
            # PyTorch 2.13 cannot freeze a convolution whose batch is dynamic.
            self._notes.append(f"without freezing, which fails: {' '.join(str(error).split())[:200]}")
            torch._dynamo.reset()
            self._call = self._compiled(Path(), freezing=False)
            result = self._run()
        outputs = result if isinstance(result, tuple | list) else (result,)
        seconds = time.perf_counter() - started
        if (graphs := self._graphs() - before) > 0:
            self._compiled_at.append({"size": f"batch {batch}, length {length}", "graphs": graphs})
        return seconds, [np.array(torch.as_tensor(output).float().numpy()) for output in outputs]

    def _graphs(self) -> int:
        return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])

    def _run(self) -> Any:
        with torch.no_grad():
            return self._call(*self._given)

    def sample(self, number: int) -> float:
        """The mean seconds of so many calls in a row, at the size that was prepared last."""
        with torch.no_grad():
            call, given = self._call, self._given
            return once_awake(sampler(lambda: call(*given)), number)

    def facts(self) -> dict[str, Any]:
        told = {"notes": self._notes, "compiled_at": self._compiled_at}
        if self._name != OURS:
            return told
        from shapewright.torch.reports import report  # noqa: PLC0415

        return {**told, "report": report().to_json()}
