"""What a library launches on a GPU, by a driver that writes it down: that of the module's own ``run``, or an error."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as drawing
from hypothesis import strategies as st

from tests.contract.rule_samples import SAMPLES
from tests.shares import every
from tests.tuner.library.gpu import launching

pytestmark = pytest.mark.together("gpu")

TIMEOUT_S = 200.0
TITLES = list(enumerate((rule, title) for rule, samples in SAMPLES.items() for title in samples))


@pytest.mark.parametrize("sample", every(24, TITLES), ids=lambda sample: "-".join(sample[1]))
def test_a_call_launches_what_run_of_its_module_does(gpu: ProcessPoolExecutor, sample: Any) -> None:
    number, (rule, title) = sample
    assert gpu.submit(launching.sample_differences, rule, title, number, 5).result(TIMEOUT_S) == []


@pytest.mark.parametrize("number", range(0, len(TITLES), 20))
def test_a_launcher_that_stands_alone_does_the_same_for_each_of_its_kernels(
    gpu: ProcessPoolExecutor, number: int
) -> None:
    assert gpu.submit(launching.alone, number).result(TIMEOUT_S) == []


def test_what_a_launcher_that_stands_alone_cannot_do_is_said(gpu: ProcessPoolExecutor) -> None:
    said = gpu.submit(launching.alone_failing).result(TIMEOUT_S)
    assert said.startswith("kernel_0 cannot be launched on GPU 0: ")


@drawing(max_examples=5, deadline=None)
@given(sizes=st.lists(st.integers(0, 100_000) | st.integers(0, 200), min_size=1, max_size=20))
def test_the_kernel_that_the_tree_chooses_is_launched_at_every_size(gpu: ProcessPoolExecutor, sizes: list[int]) -> None:
    assert gpu.submit(launching.dispatched, sizes).result(TIMEOUT_S) == []


def test_calls_are_on_the_callers_stream_and_gpu_and_ask_for_nothing_else(gpu: ProcessPoolExecutor) -> None:
    found, calls = gpu.submit(launching.on_streams).result(TIMEOUT_S)
    assert found == []
    # Code is loaded once, in a mode that no capture forbids; memory is taken and given back in the stream's order.
    kinds = [call["call"] for call in calls]
    assert kinds == ["retain", "allocate", "mode", "load", "mode", "mode", "load", "mode", "free"]
    assert [call["mode"] for call in calls if call["call"] == "mode"] == [2, 0, 2, 0]
    assert {call["stream"] for call in calls if call["call"] in ("allocate", "free")} == {4711}
    assert {call["device"] for call in calls if call["call"] in ("load", "retain")} == {1}


def test_scratch_memory_is_that_of_the_callers_framework(gpu: ProcessPoolExecutor) -> None:
    calls = gpu.submit(launching.allocated_by_framework).result(TIMEOUT_S)
    assert [call for call in calls if call not in ("mode", "load", "retain")] == [
        "taken",
        "launch",
        "launch",
        "given back",
    ]


def test_threads_that_call_at_once_load_code_once(gpu: ProcessPoolExecutor) -> None:
    assert gpu.submit(launching.of_many_threads).result(TIMEOUT_S) == (1, 32)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("no GPU", "the NVIDIA driver finds no GPU: look at CUDA_VISIBLE_DEVICES, and nvidia-smi"),
        ("no permission", "the NVIDIA driver finds no GPU: as was asked for (CUDA_ERROR_OF_FAKE); look what"),
        ("another GPU", "GPU 0 (Fake 0) is sm_86, this library has code for sm_90a, sm_100a: take one for sm_86"),
        ("a later GPU of letters", "GPU 0 (Fake 0) is sm_103, this library has code for sm_100a: take one for sm_103"),
        ("no such GPU", "there is no GPU 3: the driver finds 1"),
        ("out of memory", "GPU 0 has no 2560 bytes of scratch memory: out of memory (CUDA_ERROR_OUT_OF_MEMORY)"),
        ("the framework is out of memory", "framework has no 2560 bytes of scratch memory on GPU 0: the framework has"),
        ("no launch", "kernel_0 cannot be launched on GPU 0: as was asked for (CUDA_ERROR_OF_FAKE)"),
        ("no load", "kernel_0 cannot be loaded to GPU 0: as was asked for (CUDA_ERROR_NO_BINARY_FOR_GPU)"),
        ("too much shared memory", "kernel_0 cannot be loaded to GPU 0: as was asked for"),
    ],
)
def test_what_a_driver_refuses_is_said(gpu: ProcessPoolExecutor, case: str, said: str) -> None:
    message = gpu.submit(launching.refusal, case).result(TIMEOUT_S)
    assert said in message
    assert "left" not in message


@pytest.mark.parametrize(
    ("own", "targets", "wanted"),
    [
        ("8.6", ("sm_80", "sm_86"), 86), ("8.9", ("sm_80", "sm_86", "sm_90a"), 86), ("8.0", ("sm_80", "sm_86"), 80),
        ("9.0", ("sm_80", "sm_90a"), 90), ("10.3", ("sm_100a", "sm_100f"), 100), ("12.1", ("sm_120", "sm_100a"), 120),
    ],
)  # fmt: skip
def test_a_gpu_gets_the_latest_code_that_runs_on_it(
    gpu: ProcessPoolExecutor, own: str, targets: tuple[str, ...], wanted: int
) -> None:
    assert gpu.submit(launching.chosen_target, own, targets).result(TIMEOUT_S) == wanted


@pytest.mark.parametrize(
    ("gpus", "number", "said"),
    [
        ("9.0", (), ""), ("8.0,9.0", (), ""), ("8.0,9.0", (1,), ""), ("8.0,9.0", (0,), "GPU 0 (Fake 0) is sm_80"),
        ("8.0,7.5", (), "is sm_"), ("9.0", (1,), "there is no GPU 1"),
    ],
)  # fmt: skip
def test_a_library_says_whether_a_gpu_is_there(
    gpu: ProcessPoolExecutor, gpus: str, number: tuple[int, ...], said: str
) -> None:
    message = gpu.submit(launching.checked, gpus, *number).result(TIMEOUT_S)
    assert said in message
    assert bool(said) is bool(message)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("misaligned", "x begins at an address that is no multiple of 16: pass a tensor that"),
        ("another GPU", "w.device_id"),
        ("shape", "out.shape[0]"),
        ("many elements", "x has 3221225472 elements: this kernel takes up to 2147483647"),
        ("wide", "launched [[1048576, 1, 1]]"),
        ("many rows", "m is 2147483648: kernels take sizes of up to 2147483647"),
    ],
)
def test_operands_that_do_not_fit_are_refused(gpu: ProcessPoolExecutor, case: str, said: str) -> None:
    assert said in gpu.submit(launching.misfits, case).result(TIMEOUT_S)
