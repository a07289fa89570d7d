"""Elementary functions against float64 NumPy, over floats of every exponent."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.tuner.schedule.vector.compiling import TARGETS, elementwise
from tuner.schedule.vector.functions import apply

Floats = NDArray[Any]
UNIT = 2.0**-149
"""The least float above zero."""
SAMPLES = 1 << 20

EXACT: dict[str, Callable[[Floats], Floats]] = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "sin": np.sin,
    "cos": np.cos,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "abs": np.abs,
    "floor": np.floor,
    "round": np.round,
}
RELATIVE = {
    "exp": 1e-7,
    "log": 1.5e-7,
    "tanh": 3.5e-7,
    "sigmoid": 1.5e-7,
    "erf": 4e-7,
    "sqrt": 6e-8,
    "rsqrt": 1.2e-7,
}
ABSOLUTE = {"sin": 1e-7, "cos": 1e-7, "exp": 1.7e-38, "sigmoid": 3e-39}


def samples() -> Floats:
    """Floats of every sign and exponent, denormals, infinities and NaN among them, and more of ordinary size."""
    rng = np.random.default_rng(0)
    bits = np.linspace(0, 2**32 - 1, SAMPLES).astype(np.uint64).astype(np.uint32).view(np.float32)
    near_one = (np.float32(1.0).view(np.int32) + np.arange(-5000, 5000, dtype=np.int32)).view(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, 1.5, 2.5, -0.5, -2.5, 1e-45, -1e-45], np.float32)
    ordinary = [rng.uniform(-most, most, 50_000).astype(np.float32) for most in (1, 10, 110, 1e4)]
    return np.concatenate([bits, near_one, special, *ordinary])


@pytest.fixture(scope="module")
def x() -> Floats:
    return samples()


@pytest.fixture(scope="module")
def exact(x: Floats) -> dict[str, Floats]:
    with np.errstate(all="ignore"):
        return {name: function(x.astype(np.float64)) for name, function in EXACT.items()}


@pytest.fixture(scope="module", params=TARGETS)
def computed(request: pytest.FixtureRequest, x: Floats, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Floats]:
    outputs = [("float32", lambda value, name=name: apply(name, value)) for name in EXACT]
    folder: Path = tmp_path_factory.mktemp("kernels")
    function = elementwise(folder, TARGETS[request.param], ["float32"], outputs)
    return dict(zip(EXACT, function(x), strict=True))


@pytest.mark.parametrize("name", EXACT)
def test_errors_are_within_those_stated(
    name: str, x: Floats, exact: dict[str, Floats], computed: dict[str, Floats]
) -> None:
    with np.errstate(all="ignore"):
        wanted, got = exact[name], computed[name].astype(np.float64)
        rounded = wanted.astype(np.float32).astype(np.float64)
        inside = np.isfinite(rounded)
        np.testing.assert_array_equal(got[~inside], rounded[~inside])
        allowed = np.abs(wanted) * RELATIVE.get(name, 0.0) + ABSOLUTE.get(name, 0.0) + 1.5 * UNIT
        excess = np.where(inside, np.abs(got - wanted) - allowed, 0.0)
        worst = int(np.argmax(np.where(np.isnan(excess), np.inf, excess)))
    assert excess[worst] <= 0, f"{name}({x[worst]!r}) is {wanted[worst]}, got {got[worst]}"


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_waves_of_any_size_are_no_larger_than_one(name: str, x: Floats, computed: dict[str, Floats]) -> None:
    assert (np.abs(computed[name][np.isfinite(x)]) <= 1).all()


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_waves_of_infinities_and_nan_are_nan(name: str, x: Floats, computed: dict[str, Floats]) -> None:
    assert np.isnan(computed[name][~np.isfinite(x)]).all()


def test_ends_of_the_ranges_are_exact(x: Floats, computed: dict[str, Floats]) -> None:
    assert (computed["exp"][x == 0] == 1).all()
    assert (computed["log"][x == 1] == 0).all()
    assert (computed["sigmoid"][x == 0] == 0.5).all()
    for name in ("tanh", "erf"):
        assert (computed[name][x > 10] == 1).all()
        assert (computed[name][x < -10] == -1).all()
