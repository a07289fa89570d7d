"""The contenders of ``benchmarks.models``, each in a process of its own: their thread pools disturb one another."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.alternating import sampler
from benchmarks.contenders import limit_threads

ANSWER_S = 3600.0
"""The longest that a compilation or a sample may take."""
OURS, EAGER, COMPILED = "ours", "eager", "compile"


class ContenderFailed(Exception):
    """A contender that raised, or did not answer; the message is its error."""


@dataclass(frozen=True)
class Contender:
    """A model as one contender has it, in another process."""

    name: str
    connection: Connection

    def prepare(self, batch: int, length: int) -> tuple[float, list[NDArray[Any]]]:
        """Compile for a size if need be, and call once: the seconds of that, and the outputs."""
        answer: tuple[float, list[NDArray[Any]]] = self._asked(("prepare", batch, length))
        return answer

    def sample(self, number: int) -> float:
        """The mean seconds of so many calls in a row, at the size that was prepared last."""
        return float(self._asked(("sample", number)))

    def facts(self) -> dict[str, Any]:
        """Facts for the document once all is timed."""
        answer: dict[str, Any] = self._asked(("facts",))
        return answer

    def _asked(self, question: tuple[Any, ...]) -> Any:
        try:
            self.connection.send(question)
            if not self.connection.poll(ANSWER_S):
                raise ContenderFailed(f"{self.name} gave no answer in {ANSWER_S:g} s")
            answer = self.connection.recv()
        except (EOFError, BrokenPipeError) as error:
            raise ContenderFailed(f"the process of {self.name} has died") from error
        if isinstance(answer, str):
            raise ContenderFailed(answer)
        return answer


@contextmanager
def contender(
    name: str, model: str, threads: int, libraries: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Contender]:
    """The process of one contender, ended at the end. ``libraries``: a directory or a snapshot of ours."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_serve, args=(theirs, environment or {}, name, model, threads, libraries), daemon=True
    )
    process.start()
    theirs.close()
    try:
        yield Contender(name, ours)
    finally:
        ours.close()
        process.join(10.0)
        if process.is_alive():
            process.kill()
            process.join()


def _serve(
    connection: Connection, environment: Mapping[str, str], name: str, model: str, threads: int, libraries: Path
) -> None:
    os.environ.update(environment)
    limit_threads(threads)
    served: _Served | None = None
    while True:
        try:
            question, *arguments = connection.recv()
        except EOFError:
            return
        try:
            served = served or _Served(name, model, threads, libraries)
            connection.send(getattr(served, question)(*arguments))
        except Exception as error:  # whatever a compiler raises is the answer
            connection.send(f"{type(error).__name__}: {' '.join(str(error).split())[:500]}")


class _Served:
    def __init__(self, name: str, model: str, threads: int, libraries: Path) -> None:
        import torch  # noqa: PLC0415 - after the threads are limited

        from benchmarks.model_zoo import MODELS, SEED, build  # noqa: PLC0415

        torch.set_num_threads(threads)
        self._torch, self._seed, self._inputs, self._axis = torch, SEED, MODELS[model].inputs, MODELS[model].axis
        # Images keep their size: of them the batch alone is marked as dynamic.
        self._dynamic = True if self._axis else None
        self._name, self._model, self._notes = name, build(model), list[str]()
        self._call: Callable[..., Any] = self._compiled(libraries)
        self._given: tuple[Any, ...] = ()
        self._compiled_at: list[dict[str, Any]] = []

    def _compiled(self, libraries: Path, *, freezing: bool = True) -> Callable[..., Any]:
        torch = self._torch
        if self._name == EAGER:
            return self._model  # type: ignore[no-any-return]
        if self._name == OURS:
            from shapewright.torch.backend import shapewright  # noqa: PLC0415

            options = {"source": libraries}
            return torch.compile(self._model, backend=shapewright, dynamic=self._dynamic, options=options)  # type: ignore[no-any-return]
        options_of = {"freezing": freezing, "max_autotune": True}
        return torch.compile(self._model, dynamic=self._dynamic, options=options_of)  # type: ignore[no-any-return]

    def prepare(self, batch: int, length: int) -> tuple[float, list[NDArray[Any]]]:
        torch = self._torch
        torch.manual_seed(self._seed)
        before = self._graphs()
        self._given, started = self._inputs(batch, length), time.perf_counter()
        if self._axis == 0 and length > 1:
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
        outputs = result if isinstance(result, tuple) else (result,)
        seconds = time.perf_counter() - started
        if (graphs := self._graphs() - before) > 0:
            self._compiled_at.append({"size": f"batch {batch}, length {length}", "graphs": graphs})
        return seconds, [np.array(output.float().numpy()) for output in outputs]

    def _graphs(self) -> int:
        """How many graphs TorchDynamo has compiled in this process."""
        return int(self._torch._dynamo.utils.counters["stats"]["unique_graphs"])

    def _run(self) -> Any:
        with self._torch.no_grad():
            return self._call(*self._given)

    def sample(self, number: int) -> float:
        with self._torch.no_grad():
            call, given = self._call, self._given
            return sampler(lambda: call(*given))(number)

    def facts(self) -> dict[str, Any]:
        told = {"notes": self._notes, "compiled_at": self._compiled_at}
        if self._name != OURS:
            return told
        from shapewright.torch.reports import report  # noqa: PLC0415

        return {**told, "report": report().to_json()}
