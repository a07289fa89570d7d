"""Kernels of row reductions against the reference: ragged sizes, special values, every choice of the space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.compiled import built_problems, loaded, small_kernel
from tests.shares import diagonal
from tests.tuner.schedule.rules.rows.programs import LOG_SOFTMAX, SOFTMAX, operator, task_of, workload
from tuner.library.codegen import compile_candidate
from tuner.measure.verification.verify import difference
from tuner.program.language.workload import Workload
from tuner.program.reference import expected
from tuner.program.target import Target
from tuner.schedule import default_kernel, space_of

OPERATORS = ("softmax", "layer_norm", "rms_norm", "reduce_max")
SIZES = [{"m": m, "n": n} for m in (0, 1, 2, 5) for n in (1, 2, 7, 37, 771)]
NORM = (
    "h[m, n] = x[m, n] + r[m, n]\ns[m] = sum(n) h[m, n]\nc[m, n] = h[m, n] - s[m] / extent(n)\n"
    "q[m] = sum(n) c[m, n] * c[m, n]\nout[m, n] = c[m, n] * rsqrt(q[m] / extent(n) + 0.00001)"
)


@pytest.mark.parametrize(("name", "threads"), diagonal(OPERATORS, [1, 2], every=2))
def test_dynamic_rows_and_columns(name: str, threads: int) -> None:
    task = task_of(operator(name, m="T", n="S"), threads)
    assert built_problems(task, default_kernel(task), SIZES) == []


@pytest.mark.parametrize(("name", "columns"), diagonal(OPERATORS, [7, 37, 768], every=3))
def test_fixed_columns(name: str, columns: int) -> None:
    task = task_of(operator(name, m="T", n=columns))
    assert built_problems(task, default_kernel(task), [{"m": m} for m in (0, 1, 5, 130)]) == []


@pytest.mark.soak
@pytest.mark.parametrize("name", ["softmax", "layer_norm", "reduce_max"])
def test_every_part_of_the_space(name: str) -> None:
    """Each choice of each axis at least once."""
    task = task_of(operator(name, m="T", n=61), threads=2)
    safe = dict(default_kernel(task).values)
    space = space_of(task).spaces[0]
    kernels = [space.legal({**safe, "acc": 1, axis.name: choice}) for axis in space.axes for choice in axis.choices]
    for kernel in dict.fromkeys(kernel for kernel in kernels if kernel is not None):
        assert built_problems(task, kernel, [{"m": 21}]) == []


@pytest.mark.parametrize("mcpu", ["x86-64", "x86-64-v3"])
def test_targets_of_other_vectors(mcpu: str) -> None:
    target = Target.from_json({"kind": "llvm", "mcpu": mcpu, "num-cores": 2})
    task = task_of(operator("softmax", m="T", n="S"), target=target)
    assert built_problems(task, small_kernel(task), [{"m": 3, "n": n} for n in (1, 3, 37)]) == []


@pytest.mark.parametrize(
    ("which", "sizes"),
    [
        (workload(LOG_SOFTMAX), SIZES),
        (workload(NORM, outputs=["h", "out"]), SIZES),
        (workload(SOFTMAX, dtype={"out": "float16"}), SIZES),
        (workload("a[m] = max(n) x[m, n]\nb[m] = sum(n) x[m, n]", dtype={"x": "int64"}), SIZES),
        (workload("a[m] = min(n) x[m, n]\nb[m] = prod(n) x[m, n]\nc[m] = b[m] * s[m]", outputs=["a", "c"]), SIZES),
        (workload("s[m] = sum(n) x[m, n]\nout[m, n] = where(n <= m, x[m, n], s[m]) * n"), SIZES),
    ],
    ids=["log_softmax", "residual", "half", "int64", "stages", "axes"],
)
def test_other_chains(which: Workload, sizes: Sequence[Mapping[str, int]]) -> None:
    task = task_of(which, threads=2)
    assert built_problems(task, small_kernel(task), sizes) == []


STREAMS = {
    "gemv": "y[m] = sum(n) w[m, n] * x[n]",
    "mean": "s[m] = sum(n) x[m, n]\nout[m] = s[m] / extent(n) + b[m]",
    "largest": "a[m] = max(n) x[m, n]\nb[m] = sum(n) abs(x[m, n])\nc[m] = a[m] / (b[m] + 1.0)",
    "whole": "s[] = sum(m, n) x[m, n] * x[m, n]",
    "outer": "out[m] = sum(k, n) x[k, m, n]",
    "axes": "out[m] = sum(n) x[m, n] * cast(n, float32)",
}


DIVIDED = ((2, {"rows": 1, "acc": 4}), (3, {"rows": 4, "acc": 1}))


@pytest.mark.parametrize(("name", "at"), diagonal(STREAMS, [0, 1], every=2))
def test_columns_divided_among_threads(name: str, at: int) -> None:
    threads, values = DIVIDED[at]
    extents = {"m": "T", "n": "S", **({"k": 5} if name == "outer" else {})}
    task = task_of(workload(STREAMS[name], extents=extents), threads)
    space = space_of(task).spaces[0]
    columns = next(axis for axis in space.axes if axis.name == "split").choices[-1]
    kernel = space.legal({**dict(default_kernel(task).values), **({} if name == "whole" else values), "split": columns})
    assert kernel is not None
    sizes = [(3, 0), (3, 1), (1, 16), (5, 17), (2, 65), (5, 771), (0, 5)]
    assert built_problems(task, kernel, [{"m": m, "n": n, "k": 5} for m, n in sizes]) == []


@pytest.mark.parametrize("name", ["softmax", "rms_norm"])
def test_columns_are_divided_only_where_a_pass_does_nothing_but_reduce(name: str) -> None:
    space = space_of(task_of(operator(name, m="T", n="S"), threads=2)).spaces[0]
    assert next(axis for axis in space.axes if axis.name == "split").choices == (0,)


def _result(which: Workload, inputs: Sequence[NDArray[np.float32]], dims: Mapping[str, int]) -> NDArray[np.float32]:
    """The only output of the safe kernel, which must be what the reference says."""
    task = task_of(which)
    out = np.zeros(which.outputs[0].shape(dims), np.float32)
    loaded(compile_candidate(task, default_kernel(task)).binary)([*inputs, out])
    (wanted,) = expected(which, inputs, dims)
    assert difference(out, wanted) is None
    return out


@pytest.mark.parametrize("name", ["softmax", "reduce_max", "reduce_sum"])
def test_nan_and_infinities_anywhere_in_a_row_give_what_numpy_gives(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((3 * 37 + 2, 37)).astype(np.float32)
    for column in range(37):
        x[3 * column : 3 * column + 3, column] = np.nan, np.inf, -np.inf
    x[-2], x[-1] = np.inf, -np.inf
    with np.errstate(all="ignore"):
        _result(operator(name, m="T", n="S"), [x], {"m": len(x), "n": 37})


def test_quotients_are_right_over_the_whole_range_of_divisors() -> None:
    """Though they are products with a reciprocal, which alone would overflow or lose digits."""
    which = workload("z[m] = sum(n) y[m, n]\nout[m, n] = x[m, n] / z[m]")
    powers = np.ldexp(np.float32(1.25), np.arange(-148, 128)).astype(np.float32)
    divisors = np.concatenate([powers, -powers, [np.inf, -np.inf, np.nan, 0.0]]).astype(np.float32)
    y = np.zeros((len(divisors), 9), np.float32)
    y[:, 4] = divisors
    x = np.resize([1.0, 0.7, 1e-38, 3e38, 0.0, np.inf, np.nan, -5.0, 1e10], y.shape).astype(np.float32)
    with np.errstate(all="ignore"):
        out = _result(which, [y, x], {"m": len(divisors), "n": 9})
        exact = x / divisors[:, None]
    is_normal = np.isfinite(exact) & (np.abs(exact) > np.finfo(np.float32).tiny) & (np.abs(x) > 1e-30)
    np.testing.assert_allclose(out[is_normal], exact[is_normal], rtol=2e-7)
    np.testing.assert_array_equal(np.isinf(out), np.isinf(exact))
    np.testing.assert_array_equal(np.isnan(out), np.isnan(exact))
