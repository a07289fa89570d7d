"""The roof of this machine, measured."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.measure.roof import READ_BYTES, measure_roof, peak_work, read_bytes, read_call
from tuner.measure.roof.kernels import loaded_roof
from tuner.measure.timing.protocol import Timer
from tuner.program.target import native

TIMER = Timer(lambda: 3e-6, least=2, again=0)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def module(threads: int) -> Any:
    return loaded_roof(native(), threads)


def test_a_roof_is_what_a_machine_can_do(module: Any, threads: int) -> None:
    roof = measure_roof(module, native(), threads, TIMER)
    # Of any machine that this runs on, disturbed or not.
    assert 1e8 < roof.flops_per_s < 1e13
    assert 1e7 < roof.bytes_per_s < 1e13
    assert roof.anchor_s is not None


def test_threads_share_what_is_read_and_each_have_all_of_the_multiply_adds(module: Any, threads: int) -> None:
    read_call(module, native(), threads)()
    assert 0.999 * READ_BYTES < read_bytes(native(), threads) <= READ_BYTES
    assert peak_work(native(), threads) == threads * peak_work(native())


def test_what_was_built_for_other_vectors_is_refused(module: Any, threads: int) -> None:
    """The device and whoever builds for it must mean the same machine."""
    with pytest.raises(ValueError, match="source"):
        read_call(module, native(), threads + 1)()
