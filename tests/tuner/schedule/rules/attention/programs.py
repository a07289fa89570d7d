"""Programs of attention, and kernels for them, that several tests share."""

from __future__ import annotations

from typing import Any

from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import Target, native
from tuner.schedule.rules.attention import Attention
from tuner.schedule.space import MicroKernel

RULE = Attention()
NARROW = Target.from_json({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})

PRODUCTS = "a[b, i, j] = sum(d) q[b, i, d] * k[b, j, d]"
SOFTMAX = """
top[b, i] = max(j) s[b, i, j]
p[b, i, j] = exp(s[b, i, j] - top[b, i])
z[b, i] = sum(j) p[b, i, j]
o[b, i, e] = sum(j) p[b, i, j] * v[b, j, e]
out[b, i, e] = o[b, i, e] / z[b, i]"""

GUARDED = SOFTMAX.replace("o[b, i, e] / z[b, i]", "where(top[b, i] == -inf, 0.0, o[b, i, e] / z[b, i])")
"""Rows of which every column is hidden are 0, as in PyTorch."""
SOME = SOFTMAX.replace("o[b, i, e] / z[b, i]", "where(extent(j) > 0, o[b, i, e] / z[b, i], 0.0)")
"""Rows are 0 where there is no column, as in PyTorch."""
GUARDED_FIRST = """
top[b, i] = max(j) s[b, i, j]
p[b, i, j] = exp(s[b, i, j] - top[b, i])
z[b, i] = sum(j) p[b, i, j]
w[b, i, j] = where(top[b, i] == -inf, 0, p[b, i, j] / z[b, i])
out[b, i, e] = sum(j) w[b, i, j] * v[b, j, e]"""


def chain(score: str = "a[b, i, j]", behind: str = SOFTMAX, **fields: Any) -> dict[str, Any]:
    """A job's workload: scores made of the products ``a``, and the softmax behind them."""
    extents = {"b": 2, "i": "T", "j": "S", "d": 8, "e": 8} | fields.pop("extents", {})
    return {"program": f"{PRODUCTS}\ns[b, i, j] = {score}{behind}", "extents": extents, **fields}


def ragged(**args: Any) -> dict[str, Any]:
    """A batch of B sequences, of T rows and S keys in all."""
    return {"op": "ragged_attention", "args": {"b": "B", "h": 2, "i": "T", "j": "S", "d": 8} | args}


def attention(**args: Any) -> dict[str, Any]:
    return {"op": "attention", "args": {"b": 2, "h": 1, "i": "T", "j": "S", "d": 8} | args}


def one_product(**fields: Any) -> dict[str, Any]:
    """Heads of queries, keys and values side by side in one tensor; two heads of queries share one of the keys, and the
    last head is nobody's."""
    program = """
dots[b, h, i, j] = sum(d) y[b, i, h, d] * y[b, j, h//2 + 4, d]
s[b, h, i, j] = where(j <= i, dots[b, h, i, j] * 0.3, -inf)
top[b, h, i] = max(j) s[b, h, i, j]
p[b, h, i, j] = exp(s[b, h, i, j] - top[b, h, i])
z[b, h, i] = sum(j) p[b, h, i, j]
o[b, h, i, d] = sum(j) p[b, h, i, j] * y[b, j, h//2 + 6, d]
out[b, i, h, d] = o[b, h, i, d] / z[b, h, i]"""
    extents = {"b": 2, "h": 4, "i": "T", "j": "T", "d": 12}
    return {"program": program, "extents": extents, "shapes": {"y": ["b", "i", 9, "d"]}, **fields}


def task_of(data: dict[str, Any], target: Target | None = None, threads: int = 1, longest: int = 96) -> SearchTask:
    workload = workload_from_json(data)
    variables = tuple(ShapeVar(name, range(longest + 1)) for name in sorted(workload.variables))
    return SearchTask(workload, shape_vars=variables, target=target or native(), threads=threads)


def kernel_of(task: SearchTask, **values: int) -> MicroKernel:
    """The safe kernel with other values."""
    kernel = RULE.space(task).legal({**dict(RULE.default_kernel(task).values), **values})
    assert kernel is not None, values
    return kernel
