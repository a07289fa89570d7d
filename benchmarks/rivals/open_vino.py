"""OpenVINO as a rival: a model that was exported, in float32 also where the CPU has bfloat16, as one stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def prepare(model: Path, threads: int) -> Callable[..., Sequence[Any]]:
    """The call of a model in a file of ONNX, from arrays to arrays."""
    import openvino  # noqa: PLC0415 - the extra rivals

    how = {
        "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }  # fmt: skip
    request = openvino.Core().compile_model(str(model), "CPU", how).create_infer_request()
    return lambda *given: list(request.infer(list(given), share_inputs=True, share_outputs=True).values())
