"""Job files to start from, and the file of a job that was submitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml


@dataclass(frozen=True, slots=True)
class Example:
    title: str
    text: str


EXAMPLES = (
    Example(
        "A dense layer over a dynamic length, fused with bias and GELU",
        """\
name: bert-base ffn_up
workload:
  op: dense                      # out[m, n] = x[m, k] . w[n, k]^T, the weight packed once
  args: {m: 16*T, n: 3072, k: 768}
  epilogue: [bias, gelu]
shape_vars:
  T: {min: 1, max: 128}
instances:                       # what is measured, and how much each counts
  - {T: 5}
  - {T: 37, weight: 4}
  - {T: 128, weight: 2}
budget: {trials: 256, seconds: 120}
max_kernels: 8
""",
    ),
    Example(
        "Attention scores: a batch of products, the length in two dims",
        """\
name: attention scores
workload:
  op: batch_matmul_nt
  args: {b: 192, m: T, n: T, k: 64}
shape_vars:
  T: {min: 1, max: 128}
budget: {trials: 256, seconds: 120}
""",
    ),
    Example(
        "A product of two dynamic dims, both operands new at every call",
        """\
name: matmul over two variables
workload:
  op: matmul
  args: {m: 8*A, n: 16*B, k: 256}
shape_vars:
  A: {min: 1, max: 32}
  B: {min: 1, max: 16}
budget: {trials: 256, seconds: 120}
""",
    ),
    Example(
        "A program of your own: three operands, one of them constant",
        """\
name: bilinear form
workload:
  program: "y[b, o] = sum(i, j) u[b, i] * w[o, i, j] * v[b, j]"
  extents: {b: B, o: 32, i: 64, j: 64}
  constant: [w]                  # packed once: library.pack(w)
shape_vars:
  B: {min: 1, max: 64}
budget: {trials: 32, seconds: 60}
""",
    ),
    Example(
        "No search: the library that the analytic model alone chooses, in seconds",
        """\
name: analytic model only
workload:
  op: dense
  args: {m: T, n: 768, k: 768}
shape_vars:
  T: {min: 1, max: 512}
budget: {trials: 0}
""",
    ),
)


def job_text(spec: Mapping[str, Any]) -> str:
    """A submitted job as a job file in YAML."""
    return yaml.safe_dump(dict(spec), sort_keys=False, allow_unicode=True, default_flow_style=None)
