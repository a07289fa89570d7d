"""Processes in which Triton interprets, or compiles: which of them is decided as it is imported."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

REASON = "triton is not installed (the extra gpu; a gigabyte): kernels for GPUs are neither interpreted nor compiled"


def _interpret() -> None:
    os.environ["TRITON_INTERPRET"] = "1"


def _pool(initializer: object) -> Iterator[ProcessPoolExecutor]:
    if importlib.util.find_spec("triton") is None:
        pytest.skip(REASON)
    assert callable(initializer)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=initializer) as pool:
        yield pool


@pytest.fixture(scope="package")
def interpreter() -> Iterator[ProcessPoolExecutor]:
    """A process in which Triton runs kernels in NumPy."""
    yield from _pool(_interpret)


@pytest.fixture(scope="package")
def compiler() -> Iterator[ProcessPoolExecutor]:
    """A process in which Triton makes machine code."""
    yield from _pool(int)
