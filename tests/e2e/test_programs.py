"""Programs of one's own through the whole service: submitted, searched, pulled, called, compared with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import shapewright as sw
from tests.e2e.conftest import Up

Start = Callable[..., Up]
Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Program:
    """A job's workload and shape variables, the sizes it is called at, and what it computes."""

    workload: Mapping[str, Any]
    shape_vars: Mapping[str, Any]
    sizes: tuple[int, ...]
    inputs: Callable[[int, np.random.Generator], Arrays]
    reference: Callable[[Arrays], Any]


def capsule(arrays: Arrays) -> Any:
    a, w = arrays["a"].astype(np.float64), arrays["w"]
    out = np.zeros((len(a), len(w), 3, 3, a.shape[4], w.shape[5]))
    for p in range(3):
        for q in range(3):
            window = a[:, :, 2 * p : 2 * p + 3, 2 * q : 2 * q + 3]
            out[:, :, p, q] = np.einsum("bhrsim,khrsmj->bkij", window, w)
    return out


PROGRAMS = {
    "capsule": Program(
        {
            "program": "c[b, k, p, q, i, j] = sum(h, r, s, m) a[b, h, 2*p + r, 2*q + s, i, m] * w[k, h, r, s, m, j]",
            "extents": {"b": "B", "k": 5, "p": 3, "q": 3, "i": 4, "j": 4, "h": 3, "r": 3, "s": 3, "m": 4},
            "constant": ["w"],
        },
        {"B": {"min": 1, "max": 4}},
        (0, 1, 3, 4, 6),
        lambda b, rng: {"a": rng.random((b, 3, 7, 7, 4, 4)), "w": rng.random((5, 3, 3, 3, 4, 4))},
        capsule,
    ),
    "bilinear": Program(
        {
            "program": "y[b, o] = sum(i, j) u[b, i] * w[o, i, j] * v[b, j]",
            "extents": {"b": "8*B", "o": 6, "i": 11, "j": 10},
            "constant": ["w"],
        },
        {"B": {"values": [1, 2, 4]}},
        (0, 1, 7, 16, 33),
        lambda b, rng: {"u": rng.random((b, 11)), "w": rng.random((6, 11, 10)), "v": rng.random((b, 10))},
        lambda arrays: np.einsum("bi,oij,bj->bo", arrays["u"].astype(np.float64), arrays["w"], arrays["v"]),
    ),
    "moe": Program(
        {
            "program": "out[t, n] = sum(k) x[t, k] * w[expert[t], n, k]",
            "extents": {"t": "T", "n": 20, "k": 17, "e": 3},
            "shapes": {"w": ["e", "n", "k"]},
            "constant": ["w"],
        },
        {"T": {"min": 1, "max": 32}},
        (0, 1, 5, 32, 50),
        lambda t, rng: {
            "x": rng.random((t, 17)),
            "w": rng.random((3, 20, 17)),
            "expert": rng.integers(0, 3, t).astype(np.int32),
        },
        lambda arrays: np.einsum("tk,tnk->tn", arrays["x"].astype(np.float64), arrays["w"][arrays["expert"]]),
    ),
}


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_programs_go_from_submit_to_a_call(start: Start, tmp_path: Path) -> None:
    up = start()
    for name, program in PROGRAMS.items():
        job = tmp_path / f"{name}.yaml"
        document = {"workload": program.workload, "shape_vars": program.shape_vars}
        job.write_text(yaml.safe_dump({**document, "budget": {"trials": 2}}))
        done = up.shapewright("submit", job, "--wait", "--timeout", 140, "--json")
        assert done.code == 0, done.out + up.logs()
        pulled = up.shapewright("pull", job, "-o", tmp_path / name, "--json")
        assert pulled.code == 0, pulled.out
        check_calls(sw.load(tmp_path / name), program)


def check_calls(library: sw.Library, program: Program) -> None:
    rng = np.random.default_rng(0)
    (constant,) = library.workload.constants
    packed = None
    for size in program.sizes:
        arrays = {
            name: value if value.dtype == np.int32 else value.astype(np.float32)
            for name, value in program.inputs(size, rng).items()
        }
        if packed is None:
            weight, packed = arrays[constant], library.pack(arrays[constant])
        arrays[constant] = weight
        expected = program.reference(arrays)
        out = np.full(expected.shape, np.nan, np.float32)
        library(*(packed if name == constant else value for name, value in arrays.items()), out)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
