"""A program of one's own, in the notation of docs/reference/programs.md: tuned in this process, checked against NumPy.

    python -m examples.own_program [--width 1024] [--rows 256] [--trials 32] [--seconds 60]

The rows of x are scaled to unit mean square and gated by another tensor. Both intermediates stay in registers and L1.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

import shapewright as sw

GATED_NORM = """
total[m] = sum(n) x[m, n] * x[m, n]
out[m, n] = x[m, n] / sqrt(total[m] / extent(n) + 1e-6) * weight[n] * sigmoid(gate[m, n])
"""
TOLERANCE = 1e-4


def expected(x: Any, weight: Any, gate: Any) -> Any:
    """The same in NumPy, in float64."""
    x, weight, gate = (each.astype("float64") for each in (x, weight, gate))
    return x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * weight / (1.0 + np.exp(-gate))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=256, help="the most rows that it is tuned for")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()

    m = sw.ShapeVar("M", range(1, options.rows + 1))
    task = sw.SearchTask(sw.ops.program(GATED_NORM), args={"m": m, "n": options.width}, shape_vars=(m,))
    result = sw.tune(task, trials=options.trials, seconds=options.seconds)
    print(result)
    library = result.build()

    random, worst = np.random.default_rng(0), 0.0
    weight = random.standard_normal(options.width).astype("float32")
    # More rows than it was tuned for are computed as correctly.
    for rows in (1, 7, options.rows, 2 * options.rows + 1):
        x, gate = (random.standard_normal((rows, options.width)).astype("float32") for _ in range(2))
        out = np.empty_like(x)
        library(x, weight, gate, out)
        error = float(np.abs(out - expected(x, weight, gate)).max())
        print(f"{rows} rows: largest difference to NumPy {error:.1e}, kernel {library.kernel_for(M=rows)}")
        worst = max(worst, error)
    return 0 if worst < TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
