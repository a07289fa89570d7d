"""The stream: how many bytes its calls move, and that they do."""

from __future__ import annotations

import pytest

from benchmarks.streaming import Stream
from tuner.program.target import native


@pytest.fixture(scope="module")
def stream() -> Stream:
    return Stream(native())


@pytest.mark.parametrize(
    ("reads", "writes"), [(4, 4), (1, 1), (12, 4), (100, 1), (1, 9), (7, 3)], ids=lambda rows: f"{rows}"
)
def test_every_ratio_of_reads_to_writes_is_carried_out(stream: Stream, reads: int, writes: int) -> None:
    sizes = (reads * stream.row_bytes, writes * stream.row_bytes)
    assert stream.moved_bytes(*sizes) == sum(sizes)
    stream.call(*sizes)()


def test_sizes_are_rounded_down_to_rows_and_up_to_one(stream: Stream) -> None:
    assert stream.moved_bytes(2 * stream.row_bytes - 4, 4) == 2 * stream.row_bytes
    stream.call(0, 0)()
