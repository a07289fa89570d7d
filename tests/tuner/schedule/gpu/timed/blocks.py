"""Blocks of what was timed on GPUs, and kernels of products by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.program.job.build import workload_from_json
from tuner.program.language.workload import Workload
from tuner.schedule.gpu.plan import Choices
from tuner.schedule.gpu.tiling import Tiling


@dataclass(frozen=True)
class Block:
    """One workload at one shape, and the kernels that were timed there."""

    part: str
    workload: Workload
    shape: Mapping[str, int]
    kernels: Mapping[str, Choices]
    limit: str = ""


def operator(name: str, dtype: object, args: Mapping[str, Any]) -> Workload:
    return workload_from_json({"op": name, "args": dict(args), "dtype": dtype})


def kernels_of(*rows: str, **common: Any) -> dict[str, Choices]:
    """Kernels by name: ``m n k warps stages``, then letters: t descriptors, s swapped, xN shares of k, p parts."""
    result = {}
    for row in rows:
        m, n, k, warps, stages, *rest = row.split()
        flags = rest[0] if rest else ""
        split = int(flags[flags.index("x") + 1]) if "x" in flags else 1
        tiling = Tiling(
            int(m), int(n), int(k), num_warps=int(warps), num_stages=int(stages), swap="s" in flags,
            descriptors="t" in flags, split_k=split, parts=3 if "p" in flags else 1, **common,
        )  # fmt: skip
        result[row.replace(" ", "-") + "".join(f"-{value}" for value in common.values())] = Choices(product=tiling)
    return result
