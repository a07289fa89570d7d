"""Schedule rules: a pattern of computation, the space of micro-kernels for it, and how one is carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.rules.layout import PanelLayout
from tuner.rules.space import MicroKernel, SearchSpace

Extents = Mapping[str, NDArray[np.int64]]
"""The extent of each axis of the operator, by name, for several shapes at once: arrays of one length."""


class ScheduleRule(Protocol):
    """Knows one pattern of computation. Everything but ``emit`` works without a compiler.

    A change that gives any old micro-kernel another meaning takes another ``version``.
    """

    name: str
    version: int

    def refuses(self, workload: Workload) -> str | None:
        """Why this rule does not apply, or None if it does."""

    def space(self, task: SearchTask) -> SearchSpace:
        """The micro-kernels for this workload, target and number of threads. Never depends on the instances."""

    def safe_kernel(self, task: SearchTask) -> MicroKernel:
        """A micro-kernel that is right for every shape and slow for none: the fallback of a library."""

    def prior_latency_s(
        self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents
    ) -> NDArray[np.float64]:
        """[kernels, shapes]: seconds that theory expects."""

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        """[kernels, shapes, features]: what the learned residual looks at."""

    def layout(self, task: SearchTask, kernel: MicroKernel) -> PanelLayout | None:
        """How the constant operand must be packed for this micro-kernel; None if it has no constant operand."""

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        """A private ``tvm.tirx.PrimFunc`` of that name: a pointer for each operand of a call in order, then the
        distinct dynamic dims as int64; it returns 0."""
