"""Whole calls of libraries for GPUs, computed launch by launch in Triton's interpreter, against the reference."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.contract.rule_samples import SAMPLES
from tests.gpus import process_with_gpus
from tests.shares import every
from tests.tuner.library.gpu import computing

pytestmark = pytest.mark.together("gpu")

TIMEOUT_S = 600.0
REASON = "triton is not installed (the extra gpu; a gigabyte): launches are not interpreted"
TITLES = list(enumerate((rule, title) for rule, samples in SAMPLES.items() for title in samples))


@pytest.fixture(scope="module")
def interpreter(fake_cuda: Path) -> Iterator[ProcessPoolExecutor]:
    if importlib.util.find_spec("triton") is None:
        pytest.skip(REASON)
    with process_with_gpus(fake_cuda, computing.start) as pool:
        yield pool


def test_every_kernel_of_a_library_computes_what_the_program_says(interpreter: ProcessPoolExecutor) -> None:
    assert interpreter.submit(computing.dispatched_problems).result(TIMEOUT_S) == []


@pytest.mark.parametrize("sample", every(12, TITLES), ids=lambda sample: "-".join(sample[1]))
def test_a_call_computes_what_the_program_says(interpreter: ProcessPoolExecutor, sample: Any) -> None:
    number, (rule, title) = sample
    assert interpreter.submit(computing.sample_problems, rule, title, number).result(TIMEOUT_S) == []
