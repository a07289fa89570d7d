"""Snapshots that earlier releases wrote are read, and their libraries compute what they always did."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import shapewright as sw
from shapewright.snapshot import Missing, Snapshot, merge
from tests.earlier import DATA
from tuner.program.target import Target, native

SAMPLE = DATA / "snapshot-1" / "sample.snapshot"
V3 = Target.from_json({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
DIGEST = "d55240e50eb51a2c9c6356615bd3dfacaeada110cee027053d3eb9ffe918b7f0"
T = sw.ShapeVar("T", range(1, 17))
DENSE = sw.SearchTask("dense", {"m": 2 * T, "n": 45, "k": 24}, (T,), target=V3, epilogue=["bias", "relu"])
MATMUL = sw.SearchTask("matmul", {"m": 8 * T, "n": 48, "k": 32}, (T,), target=V3)
RNG = np.random.default_rng(7)

needs_avx2 = pytest.mark.skipif(
    not set(native().hardware.features) >= {"avx2", "fma"}, reason="its libraries are for x86-64 CPUs with AVX2"
)


def test_it_is_whole_and_tells_what_it_holds() -> None:
    snapshot = Snapshot(SAMPLE)

    assert snapshot.digest == DIGEST
    assert list(snapshot.problems()) == []
    assert {entry.workload_key for entry in snapshot.entries} == {DENSE.workload.key, MATMUL.workload.key}
    found = snapshot.find(DENSE, target="llvm-znver9-0")
    assert isinstance(found, Missing) and V3.fingerprint in found.reason


@needs_avx2
@pytest.mark.parametrize("t", [0, 1, 5, 32, 40])
def test_its_libraries_compute(t: int) -> None:
    dense = sw.load(SAMPLE, DENSE)
    x, w, bias = (RNG.uniform(-1, 1, shape).astype(np.float32) for shape in ((2 * t, 24), (45, 24), (45,)))
    out = np.full((2 * t, 45), np.nan, np.float32)
    dense(x, dense.pack(w), bias, out)
    np.testing.assert_allclose(out, np.maximum(x.astype(np.float64) @ w.T + bias, 0), rtol=1e-4, atol=4e-5)

    matmul = sw.load(SAMPLE, MATMUL.workload, target=V3.fingerprint)
    x, y = (RNG.uniform(-1, 1, shape).astype(np.float32) for shape in ((8 * t, 32), (32, 48)))
    out = np.full((8 * t, 48), np.nan, np.float32)
    matmul(x, y, out)
    np.testing.assert_allclose(out, x.astype(np.float64) @ y, rtol=1e-4, atol=4e-5)


def test_it_is_merged_into_a_snapshot_of_today(tmp_path: Path) -> None:
    merged = merge(tmp_path / "merged.snapshot", [SAMPLE])
    assert [entry.digest for entry in merged.entries] == [entry.digest for entry in Snapshot(SAMPLE).entries]
