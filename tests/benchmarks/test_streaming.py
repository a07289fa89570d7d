"""The stream: it is carried out whatever the ratio of reads to writes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'shapewright[bench]'")

from benchmarks.rivals.torch_products import stream


@pytest.mark.parametrize(("reads", "writes"), [(4, 4), (1, 1), (12, 4), (100, 1), (1, 9), (7, 3), (0, 0)])
def test_every_ratio_of_reads_to_writes_is_carried_out(reads: int, writes: int) -> None:
    stream(1024 * reads, 1024 * writes)()
