"""Libraries that earlier releases built load, and compute what they always did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shapewright.library import Library
from shapewright.loading import load
from tests.earlier import RELEASE, library_of
from tuner.errors import InvalidInput
from tuner.program.target import native

Floats = NDArray[np.float32]
NEEDS = {"avx2", "fma"}
"""What the libraries of release 0.1 use."""
RNG = np.random.default_rng(7)

pytestmark = pytest.mark.skipif(
    not set(native().hardware.features) >= NEEDS, reason="the libraries of release 0.1 are for x86-64 CPUs with AVX2"
)


def earlier(op: str, directory: Path) -> Library:
    return load(library_of(RELEASE, op, directory))


def drawn(*shape: int) -> Floats:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def assert_close(found: Floats, wanted: NDArray[Any]) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=4e-5)


@pytest.mark.parametrize("m", [0, 1, 7, 8, 33, 72, 128, 129, 301])
def test_dense_with_a_packed_weight_and_an_epilogue(m: int, tmp_path: Path) -> None:
    library = earlier("dense", tmp_path)
    x, w, bias = drawn(m, 40), drawn(96, 40), drawn(96)
    out = np.full((m, 96), np.nan, np.float32)

    library(x, library.pack(w), bias, out)

    assert_close(out, np.maximum(x.astype(np.float64) @ w.T + bias, 0))


@pytest.mark.parametrize("t", [0, 1, 5, 6, 13, 16, 40])
def test_batch_matmul_with_one_size_twice_and_a_residual(t: int, tmp_path: Path) -> None:
    library = earlier("batch_matmul_nt", tmp_path)
    x, y, residual = drawn(3, t, 16), drawn(3, t, 16), drawn(3, t, t)
    out = np.full((3, t, t), np.nan, np.float32)

    library(x, y, residual, out)

    assert_close(out, x.astype(np.float64) @ y.transpose(0, 2, 1) + residual)


@pytest.mark.parametrize("m", [0, 1, 8, 100, 128, 300])
def test_matmul(m: int, tmp_path: Path) -> None:
    library = earlier("matmul", tmp_path)
    x, y = drawn(m, 32), drawn(32, 48)
    out = np.full((m, 48), np.nan, np.float32)

    library(x, y, out)

    assert_close(out, x.astype(np.float64) @ y)


@pytest.mark.parametrize("op", ["dense", "batch_matmul_nt", "matmul"])
def test_it_says_what_runs_in_the_variables_of_its_job(op: str, tmp_path: Path) -> None:
    library = earlier(op, tmp_path)
    (name,) = library.dispatcher.task.ranges
    table = json.loads((tmp_path / op / "dispatch.json").read_text())

    for row in table["table"]:
        assert library.kernel_for(**row["shape"]).id == table["kernels"][row["kernel"]]["id"]
    assert library.kernel_for(**{name: 10**6}).id == table["kernels"][table["safe_kernel"]]["id"]


def test_operands_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    library = earlier("batch_matmul_nt", tmp_path)

    with pytest.raises(InvalidInput):
        library(drawn(3, 5, 16), drawn(3, 6, 16), drawn(3, 5, 5), drawn(3, 5, 5))
