"""A Builder that builds each kernel once."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.kernel import MicroKernel
from tuner.measure._base import Builder, BuildResult
from tuner.task import SearchTask


class KeptBuilds:
    """The builds of one search task by ``builder``, kept for whoever measures a kernel again."""

    def __init__(self, task: SearchTask, builder: Builder) -> None:
        self._task, self._builder = task, builder
        self._builds: dict[MicroKernel, BuildResult] = {}

    def build(self, kernels: Sequence[MicroKernel]) -> list[BuildResult]:
        missing = [kernel for kernel in kernels if kernel not in self._builds]
        for build in self._builder.build(self._task, missing) if missing else []:
            self._builds[build.kernel] = build
        return [self._builds[kernel] for kernel in kernels]
