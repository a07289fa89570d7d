"""A second rule for the workloads of the synthetic device: a small space, a plain theory, no code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from tuner.errors import IllegalKernel
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Workload
from tuner.program.target import Target
from tuner.schedule import RULES, Extents, NoMatch, Rule, TirRule
from tuner.schedule.function import KernelFunction
from tuner.schedule.space import Axis, MicroKernel, SearchSpace


@dataclass(frozen=True)
class Rival(TirRule):
    """Takes what has an axis m; a micro-kernel is its width and its depth. ``slowness`` is a factor of its theory."""

    slowness: float = 1.0
    name = "rival"
    version = 7
    kinds = frozenset({"llvm", "simulated"})

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        if "m" not in workload.program.axes:
            return NoMatch("there is no axis m")
        return dict.fromkeys(workload.program.axes, "any")

    def space(self, task: SearchTask) -> SearchSpace:
        axes = (Axis("width", "", (1, 2, 4, 8, 16, 32)), Axis("depth", "", (0, 1, 2, 3, 4, 5, 6, 7)))
        return SearchSpace(self.name, self.version, axes, check=_check)

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        return self.space(task).kernel({"width": 4, "depth": 1})

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        rows = extents["m"].astype(np.float64)
        return np.stack([self.slowness * (1e-6 + 1e-7 * rows / kernel["width"]) for kernel in kernels])

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        columns = [[kernel["width"], kernel["depth"]] for kernel in kernels]
        return np.repeat(np.array(columns, np.float32)[:, None, :], len(extents["m"]), axis=1)

    def body(self, task: SearchTask, kernel: MicroKernel, function: KernelFunction) -> None:
        raise NotImplementedError("the rival's kernels are never compiled")


def _check(kernel: MicroKernel) -> None:
    if kernel["width"] * kernel["depth"] > 64:
        raise IllegalKernel(f"width={kernel['width']} depth={kernel['depth']} take more than 64")


@contextmanager
def registered(*rules: Rule) -> Iterator[None]:
    """Inside, these rules are there too, before all others."""
    with mock.patch("tuner.schedule.registry.RULES", (*rules, *RULES)):
        yield
