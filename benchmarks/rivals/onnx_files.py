"""Rivals that call a model in a file of ONNX, from arrays to arrays: ONNX Runtime, with its own pool of threads, in
float32 alone, and OpenVINO, as one stream, in the model's dtype. Both are of the extra ``rivals``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def _onnx_runtime(model: Path, threads: int, _: str) -> Callable[..., Sequence[Any]]:
    import onnxruntime  # noqa: PLC0415

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return lambda *given: session.run(None, dict(zip(names, given, strict=True)))


def _open_vino(model: Path, threads: int, dtype: str) -> Callable[..., Sequence[Any]]:
    import openvino  # noqa: PLC0415

    how = {
        "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[dtype],
    }  # fmt: skip
    request = openvino.Core().compile_model(str(model), "CPU", how).create_infer_request()
    return lambda *given: list(request.infer(list(given), share_inputs=True, share_outputs=True).values())


EXPORTED: Mapping[str, Callable[[Path, int, str], Callable[..., Sequence[Any]]]] = {
    "onnxruntime": _onnx_runtime, "openvino": _open_vino,
}  # fmt: skip
"""From a file, a number of threads and a dtype to the call, by package."""
