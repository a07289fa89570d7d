"""Programs that no sample has, as kernels for a GPU in Triton's interpreter: what models have beside their products."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from tests.tuner.schedule.gpu.interpreting import MAX_POINTS, problems
from tuner.measure.verification.ragged import ragged_dims
from tuner.program.job.build import workload_from_json
from tuner.schedule.gpu.attention import AttentionTile
from tuner.schedule.gpu.plan import Choices
from tuner.schedule.gpu.rows import RowTile
from tuner.schedule.gpu.stages import Blocks
from tuner.schedule.gpu.tiling import Tiling

TIMEOUT_S = 200.0
CHOICES = Choices(
    product=Tiling(16, 16, 16, split_k=2), rows=RowTile(2, 32), blocks=Blocks(64, 16),
    attention=AttentionTile(rows=16, columns=16, depth=16, values=16),
)  # fmt: skip
PROGRAMS: Mapping[str, Mapping[str, Any]] = {
    "rotary": {
        "program": "out[b, i, h, d] = x[b, i, h, d] * cosine[i, d]"
        " + where(d < 4, -x[b, i, h, (d + 4) % 8], x[b, i, h, (d + 4) % 8]) * sine[i, d]",
        "extents": {"b": 2, "i": "T", "h": 3, "d": 8},
    },
    "group norm": {
        "program": "t[b, g] = sum(c, p) x[b, g, c, p]\nm[b, g] = t[b, g] / (extent(c) * extent(p))\n"
        "s[b, g] = sum(c, p) (x[b, g, c, p] - m[b, g]) * (x[b, g, c, p] - m[b, g])\n"
        "out[b, g, c, p] = (x[b, g, c, p] - m[b, g]) * rsqrt(s[b, g] / (extent(c) * extent(p)) + 0.00001) * w[g, c]",
        "extents": {"b": 2, "g": 3, "c": 4, "p": "T"},
    },
    "cross entropy": {
        "program": "t[m] = max(n) x[m, n]\nz[m] = sum(n) exp(x[m, n] - t[m])\n"
        "out[m] = log(z[m]) + t[m] - x[m, label[m]]",
        "extents": {"m": "T", "n": 37}, "shapes": {"x": ["m", 37]},
    },
    "distances": {
        "program": "out[i, j] = sum(k) (x[i, k] - y[j, k]) * (x[i, k] - y[j, k])",
        "extents": {"i": "T", "j": "S", "k": 9},
    },
    "attention with slopes": {
        "program": "a[h, i, j] = sum(d) q[h, i, d] * k[h, j, d]\n"
        "s[h, i, j] = where(j <= i, a[h, i, j] * 0.25 - slope[h] * (i - j), -inf)\n"
        "t[h, i] = max(j) s[h, i, j]\np[h, i, j] = exp(s[h, i, j] - t[h, i])\nz[h, i] = sum(j) p[h, i, j]\n"
        "o[h, i, e] = sum(j) p[h, i, j] * v[h, j, e]\nout[h, i, e] = o[h, i, e] / z[h, i]",
        "extents": {"h": 2, "i": "T", "j": "T", "d": 16, "e": 16},
    },
    "attention over ranges": {
        "program": "a[h, i, j] = sum(d) q[h, i, d] * k[h, j, d]\n"
        "s[h, i, j] = where((j >= n[i]) & (j <= i), a[h, i, j] * 0.25, -inf)\n"
        "t[h, i] = max(j) s[h, i, j]\np[h, i, j] = exp(s[h, i, j] - t[h, i])\nz[h, i] = sum(j) p[h, i, j]\n"
        "o[h, i, e] = sum(j) p[h, i, j] * v[h, j, e]\nout[h, i, e] = o[h, i, e] / z[h, i]",
        "extents": {"h": 2, "i": "T", "j": "T", "d": 16, "e": 16}, "dtype": {"n": "int32"},
    },
    "attention in one product": {
        "program": "a[h, i, j] = sum(d) y[i, h, d] * y[j, h//2 + 4, d]\n"
        "s[h, i, j] = where(j <= i, a[h, i, j] * 0.25, -inf)\n"
        "t[h, i] = max(j) s[h, i, j]\np[h, i, j] = exp(s[h, i, j] - t[h, i])\nz[h, i] = sum(j) p[h, i, j]\n"
        "o[h, i, d] = sum(j) p[h, i, j] * y[j, h//2 + 6, d]\nout[i, h, d] = o[h, i, d] / z[h, i]",
        "extents": {"h": 4, "i": "T", "j": "T", "d": 16}, "shapes": {"y": ["i", 9, "d"]},
    },
    "linear attention": {
        "program": "kv[b, d, e] = sum(j) k[b, j, d] * v[b, j, e]\nout[b, i, e] = sum(d) q[b, i, d] * kv[b, d, e]",
        "extents": {"b": "U", "i": "T", "j": "T", "d": 8, "e": 9},
    },
    "convolution and norm": {
        "program": "y[b, p, o] = sum(c, r) x[b, p + r, c] * w[o, c, r]\nt[o] = sum(b, p) y[b, p, o]\n"
        "out[b, p, o] = max(y[b, p, o] - t[o] / (extent(b) * extent(p)), 0)",
        "extents": {"b": 2, "p": "T", "o": 17, "c": 5, "r": 3}, "constant": ["w"],
    },
    "standardized columns": {
        "program": "t[n] = sum(m) x[m, n]\n"
        "v[n] = sum(m) (x[m, n] - t[n] / extent(m)) * (x[m, n] - t[n] / extent(m))\n"
        "out[m, n] = (x[m, n] - t[n] / extent(m)) / sqrt(v[n] / extent(m) + 0.1)",
        "extents": {"m": "T", "n": 21},
    },
    "gated experts": {
        "program": "z[t, n] = sum(k) x[t, k] * w[expert[t], n, k]\nout[t, n] = z[t, n] * gate[t] + y[t, n]",
        "extents": {"t": "T", "n": 19, "k": 24}, "shapes": {"w": [5, "n", "k"]}, "constant": ["w"],
    },
    "bytes to bytes": {
        "program": "z[m, n] = sum(k) x[m, k] * w[n, k]\n"
        "out[m, n] = cast(min(max(round(cast(z[m, n], float32) * s[n] + b[n]), -128), 127), int8)",
        "extents": {"m": "T", "n": 33, "k": 70}, "constant": ["w", "s", "b"],
        "dtype": {"x": "int8", "w": "int8", "out": "int8"},
    },
    "functions": {
        "program": "out[m] = sin(x[m]) * cos(x[m]) + floor(x[m] * 3) - round(x[m] * 2.5) + abs(x[m])",
        "extents": {"m": "T"},
    },
    "grouped decode": {
        "program": "a[b, g, r, j] = sum(d) q[b, g, r, d] * k[b, j, g, d]\n"
        "s[b, g, r, j] = where(j < n[b], a[b, g, r, j] * 0.3, -inf)\nt[b, g, r] = max(j) s[b, g, r, j]\n"
        "p[b, g, r, j] = exp(s[b, g, r, j] - t[b, g, r])\nz[b, g, r] = sum(j) p[b, g, r, j]\n"
        "o[b, g, r, e] = sum(j) p[b, g, r, j] * v[b, j, g, e]\nout[b, g, r, e] = o[b, g, r, e] / z[b, g, r]",
        "extents": {"b": 3, "g": 2, "r": 4, "j": "T", "d": 16, "e": 16}, "dtype": {"n": "int32"},
    },
}  # fmt: skip


@pytest.mark.parametrize("dtype", [None, "float16"], ids=["", "float16"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_right_whatever_it_is(interpreter: ProcessPoolExecutor, name: str, dtype: str | None) -> None:
    program = dict(PROGRAMS[name])
    if dtype is not None and "dtype" in program:
        pytest.skip("it names its dtypes")
    workload = workload_from_json(program if dtype is None else program | {"dtype": dtype})
    shapes = [dims for dims in ragged_dims(workload) if workload.points(dims) <= MAX_POINTS]
    chosen = sorted(shapes, key=workload.points)[-2:]
    assert interpreter.submit(problems, workload, CHOICES, chosen).result(TIMEOUT_S) == []


@pytest.mark.parametrize("reducer", ["max", "min"])
@pytest.mark.parametrize(
    "dtype", ["int8", "int16", {"x": "int8", "out": "float32"}, {"x": "float32", "out": "int8"}], ids=str
)
def test_over_nothing_there_is_the_end_of_the_tensors_dtype(
    interpreter: ProcessPoolExecutor, reducer: str, dtype: Any
) -> None:
    for read in ("x[m, n]", "x[n, m]"):
        program = {"program": f"out[m] = {reducer}(n) {read}", "extents": {"m": "T", "n": "S"}, "dtype": dtype}
        shapes = [{"m": 5, "n": 0}, {"m": 5, "n": 7}]
        found = interpreter.submit(problems, workload_from_json(program), CHOICES, shapes).result(TIMEOUT_S)
        assert found == []


@pytest.mark.parametrize(
    "value", ["x[m] << 40", "x[m] << m", "x[m] + (1 << m)", "x[m] >> (m - 5)", "x[m] + (m * 64) * (m * 64) * 64 * m"]
)
def test_integers_of_axes_are_those_of_numpy(interpreter: ProcessPoolExecutor, value: str) -> None:
    """Shifts past the number of bits, and values that 32 bits have no room for."""
    program = {"program": f"out[m] = {value}", "extents": {"m": "T"}, "dtype": "int64"}
    found = interpreter.submit(problems, workload_from_json(program), CHOICES, [{"m": 300}]).result(TIMEOUT_S)
    assert found == []
