"""Graphs on GPUs: libraries for that GPU take their places, no others."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.shapewright.torch import gpu_graphs
from tuner.program.target import native

pytestmark = pytest.mark.together("gpu")

TIMEOUT_S = 200.0


def test_a_layer_on_a_gpu_is_a_call_of_a_library_for_it(gpu: ProcessPoolExecutor) -> None:
    found = gpu.submit(gpu_graphs.replaced, "cuda", "sm_90").result(TIMEOUT_S)
    assert (found["calls"], found["kept"]) == (1, [])
    assert found["output"] == ("cuda:0", (5, 64), "torch.float16", True)


@pytest.mark.parametrize(
    ("device", "target", "reason"),
    [
        ("cuda", "cpu", "it does not run on the CPU"),
        ("cpu", "sm_90", "it does not run on one GPU"),
        ("cpu", "cpu", "it is for a GPU of sm_90, not for CPUs"),
        ("cuda", "sm_80", "it is for a GPU of sm_90, not for a GPU of sm_80"),
    ],
)
def test_what_is_elsewhere_is_left_to_pytorch(gpu: ProcessPoolExecutor, device: str, target: str, reason: str) -> None:
    found = gpu.submit(gpu_graphs.replaced, device, target).result(TIMEOUT_S)
    assert found["calls"] == 0
    assert reason in found["kept"]


def test_libraries_are_for_the_gpu_of_the_inputs(gpu: ProcessPoolExecutor) -> None:
    assert gpu.submit(gpu_graphs.targets, (9, 0)).result(TIMEOUT_S) == [native().mcpu, "sm_90"]
    _, reason = gpu.submit(gpu_graphs.targets, (7, 5)).result(TIMEOUT_S)
    assert reason.startswith("no libraries are made for GPUs of sm_75: known are sm_80, ")


def test_modules_on_a_gpu_are_tuned_for_it_and_others_stay(gpu: ProcessPoolExecutor) -> None:
    found = gpu.submit(gpu_graphs.optimized).result(TIMEOUT_S)
    assert (found["calls"], found["for"], found["notes"]) == (1, ["cuda", None], [])
    assert found["output"] == ("cuda:0", (5, 64))
    assert found["kept"] == [("1", "its parameters are not in the memory of the GPU")]


def test_a_tensor_elsewhere_is_pytorchs(gpu: ProcessPoolExecutor) -> None:
    is_right, said = gpu.submit(gpu_graphs.elsewhere).result(TIMEOUT_S)
    assert is_right
    assert "elsewhere" in said
