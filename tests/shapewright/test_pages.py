"""Where packed constants lie: what is handed out, by whom it is kept, and what is given back."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapewright.pages import BLOCK_BYTES, HUGE_BYTES, placed
from tuner.schedule.layout import LINE_BYTES

MiB = 1 << 20


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40)), min_size=1, max_size=20))
def test_copies_are_equal_start_on_lines_and_do_not_overlap(shapes: list[tuple[int, int]]) -> None:
    rng = np.random.default_rng(0)
    given_arrays = [rng.standard_normal(shape).astype(np.float32).T for shape in shapes]
    copies = [placed(array) for array in given_arrays]
    for array, copy in zip(given_arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)
        assert copy.flags.c_contiguous
        assert copy.flags.writeable
        assert copy.ctypes.data % LINE_BYTES == 0
    spans = sorted((copy.ctypes.data, copy.ctypes.data + copy.nbytes) for copy in copies if copy.nbytes)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_constants_of_a_model_lie_in_a_row() -> None:
    first, second = placed(np.ones(100_000, np.float32)), placed(np.ones(100_000, np.float32))
    assert 0 <= second.ctypes.data - first.ctypes.data - first.nbytes < BLOCK_BYTES


def test_a_view_keeps_its_elements_when_everything_else_dies() -> None:
    kept = placed(np.arange(MiB, dtype=np.int64)).reshape(-1, 2)[5:, 1]
    gc.collect()
    others = [placed(np.full(MiB, -1, np.int64)) for _ in range(3)]
    np.testing.assert_array_equal(kept, np.arange(11, MiB, 2))
    del others


def test_what_dies_gives_its_memory_back_beside_what_stays() -> None:
    stays, process = [], psutil.Process()
    for _ in range(4):
        stays.append(placed(np.ones(10, np.float32)))
        placed(np.ones(MiB, np.float32))
    before = process.memory_info().rss
    for _ in range(100):
        stays.append(placed(np.ones(10, np.float32)))
        placed(np.ones(MiB, np.float32))
    assert process.memory_info().rss - before < 100 * MiB
    assert all((each == 1).all() for each in stays)


def test_one_larger_than_a_block_has_its_own() -> None:
    large = placed(np.broadcast_to(np.uint8(7), (BLOCK_BYTES + HUGE_BYTES,)))
    assert large[0] == large[-1] == 7


def test_threads_get_memory_of_their_own() -> None:
    with ThreadPoolExecutor(8) as threads:
        copies = list(threads.map(lambda value: placed(np.full(5000, value, np.int32)), range(200)))
    assert all((copy == value).all() for value, copy in enumerate(copies))


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the kernel does not tell of pages")
def test_huge_pages_are_asked_for() -> None:
    array = placed(np.ones(8 * MiB, np.uint8))
    region = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        ends = line.split()[0].split("-")
        if len(ends) == 2 and all(ends):
            region = line if int(ends[0], 16) <= array.ctypes.data < int(ends[1], 16) else ""
        elif region and line.startswith("VmFlags:"):
            assert "hg" in line.split()
            return
    pytest.fail("no region holds the array")
