"""Operators with an epilogue: one library that fuses them, against two libraries of ours, one after the other.

A family gives three workloads of the same sizes: fused, bare (the operator alone) and chain, whose first input is what
bare computes and whose other inputs are the fused one's remaining ones, in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.operator_programs import RMS_NORM_MUL
from benchmarks.suite import Benchmark
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask

Sizes = Mapping[str, Any]

GELU = "out[m, n] = y[m, n] * 0.5 * (1.0 + erf(y[m, n] * 0.7071067811865476))"


@dataclass(frozen=True)
class Fusion:
    """``op`` with ``epilogue``, or ``program`` where the catalogue has no such epilogue; ``chain`` is the program of
    the rest over ``chain_axes``: axes of the output, each with the name of its size."""

    op: str
    chain: str
    chain_axes: Mapping[str, str]
    sizes: Sequence[Sizes]
    epilogue: Sequence[str] = ()
    program: str = ""

    def fused(self, sizes: Sizes) -> Mapping[str, Any]:
        if self.program:
            return {"program": self.program, "extents": sizes}
        return {"op": self.op, "args": sizes, "epilogue": list(self.epilogue)}

    def parts(self, sizes: Sizes) -> Mapping[str, Mapping[str, Any]]:
        """The workloads of the bare operator and of the rest."""
        extents = {axis: sizes[size] for axis, size in self.chain_axes.items()}
        return {"bare": {"op": self.op, "args": sizes}, "chain": {"program": self.chain, "extents": extents}}


_IMAGES = {"b": "T", "r": 3, "s": 3, "pad": 1}

FUSED: Mapping[str, Fusion] = {
    "fused_dense_bias_gelu": Fusion(
        "dense", f"y[m, n] = z[m, n] + bias[n]; {GELU}", {"m": "m", "n": "n"},
        [{"m": "4*T", "n": 3072, "k": 768}, {"m": "T", "n": 4096, "k": 1024}], ("bias", "gelu"),
    ),
    "fused_conv2d_bias_relu": Fusion(
        "conv2d",
        "y[b, o, p, q] = z[b, o, p, q] + bias[o]; out[b, o, p, q] = where(y[b, o, p, q] < 0, 0, y[b, o, p, q])",
        {"b": "b", "o": "o", "p": "h", "q": "w"},
        [{**_IMAGES, "c": 32, "h": 14, "w": 14, "o": 32}, {**_IMAGES, "c": 64, "h": 7, "w": 7, "o": 128}],
        ("bias", "relu"),
    ),
    "fused_batch_matmul_add": Fusion(
        "batch_matmul_nn", "out[b, m, n] = z[b, m, n] + residual[b, m, n]", {"b": "b", "m": "m", "n": "n"},
        [{"b": 12, "m": "T", "n": 64, "k": "T"}], ("add",),
    ),
    "fused_rms_norm_mul": Fusion(
        "rms_norm", "out[m, n] = z[m, n] * y[m, n]", {"m": "m", "n": "n"},
        [{"m": "T", "n": 768}, {"m": "8*T", "n": 4096}], program=RMS_NORM_MUL,
    ),
}  # fmt: skip


def parts_of(benchmark: Benchmark) -> dict[str, Benchmark]:
    """The benchmarks of the bare operator and of the rest of a family's benchmark, at the same shapes."""
    data, task = benchmark.task.workload.to_json(), benchmark.task
    result = {}
    for part, workload in FUSED[benchmark.operator].parts(data.get("args") or data["extents"]).items():
        its = SearchTask(
            workload_from_json(workload), shape_vars=task.shape_vars, instances=task.instances, target=task.target,
            threads=task.threads,
        )  # fmt: skip
        result[part] = replace(benchmark, name=f"{benchmark.name}: {part}", task=its)
    return result
