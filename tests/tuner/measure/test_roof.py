"""The roof of this machine, measured."""

from __future__ import annotations

import pytest

from tuner.measure.roof import READ_BYTES, measure_roof, peak_work, read_call
from tuner.measure.timing import Timer
from tuner.program.target import native

TIMER = Timer(lambda: 3e-6, least=2, again=0)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_roof_is_what_a_machine_can_do(threads: int) -> None:
    roof = measure_roof(native(), threads, TIMER)
    # Of any machine that this runs on, disturbed or not.
    assert 1e8 < roof.flops_per_s < 1e13
    assert 1e7 < roof.bytes_per_s < 1e13
    assert roof.anchor_s is not None


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_share_what_is_read_and_each_have_all_of_the_multiply_adds(threads: int) -> None:
    read_bytes, call = read_call(native(), threads)
    call()
    assert 0.999 * READ_BYTES < read_bytes <= READ_BYTES
    assert peak_work(native(), threads) == threads * peak_work(native())
