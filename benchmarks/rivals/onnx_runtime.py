"""ONNX Runtime as a rival: a model that was exported, with its own pool of threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def prepare(model: Path, threads: int) -> Callable[..., Sequence[Any]]:
    """The call of a model in a file of ONNX, from arrays to arrays."""
    import onnxruntime  # noqa: PLC0415 - the extra rivals

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return lambda *given: session.run(None, dict(zip(names, given, strict=True)))
