"""Which kernels would make up the library, by what was measured so far."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.errors import ShapewrightError
from tuner.program.job.task import SearchTask
from tuner.schedule import default_kernel
from tuner.schedule.space import MicroKernel
from tuner.search import finalize
from tuner.search.cost_model import CostModel
from tuner.search.observations import Measured

EXTRA_FINALISTS = 4
"""Kernels timed with the best set, and as many again of another packed layout."""


class VerificationFailed(ShapewrightError):
    """No set of kernels passed verification: nothing that could be handed out."""


class Chosen:
    """The best set and the finalists. ``theory`` is the set that theory alone chooses: the default."""

    def __init__(self, task: SearchTask, model: CostModel, measured: Measured, theory: Sequence[MicroKernel]) -> None:
        self._task, self._model, self._measured, self._theory = task, model, measured, list(theory)
        self._searched = task.with_least_shape()
        self._pool: list[MicroKernel] = []

    def only_from(self, kernels: Sequence[MicroKernel]) -> None:
        """Choose from these from now on, as far as they do not fail."""
        self._pool = list(kernels)

    @property
    def default(self) -> Sequence[MicroKernel]:
        return self._theory

    def best_set(self, limit: int | None = None) -> list[MicroKernel]:
        """The set with the least objective of what is chosen from: all measured kernels, before ``only_from``.

        Of ``limit`` kernels at most, or as many as the task allows. Where the budget ended before all of theory's were
        measured, the others stand beside them as theory expects them: what was measured at one end of a range says
        little of the other. Raises VerificationFailed where everything failed.
        """
        measured = self._measured.kernels
        theory = self._theory if measured else (*self._theory, default_kernel(self._task))
        known = [each for each in dict.fromkeys([*measured, *theory, *self._pool]) if each not in self._measured.failed]
        if not known:
            raise VerificationFailed(
                f"every kernel tried for {self._task.workload} failed ({self._measured.commonest_error})"
            )
        pool = [kernel for kernel in self._pool if kernel in known] or known
        most = limit or self._task.max_kernels
        chosen = finalize.choose_set(self._searched, self._model, self._measured, pool, most)
        # The best set over the whole range may be slower than the default at the instances that were asked for.
        default = self._default(pool)
        return min(chosen, default if 0 < len(default) <= most else chosen, key=self.objective_s)

    def finalists(self, best_set: Sequence[MicroKernel]) -> list[MicroKernel]:
        """What is worth timing side by side, the most likely first: ``best_set``, the default, then alternatives."""
        measured = self._measured
        first = list(dict.fromkeys([*best_set, *self._default(measured.kernels)]))
        return finalize.finalists(self._searched, self._model, measured, measured.kernels, first, EXTRA_FINALISTS)

    def objective_s(self, kernels: Sequence[MicroKernel]) -> float:
        return finalize.objective_s(self._task, self._model, self._measured, kernels)

    def _default(self, known: Sequence[MicroKernel]) -> list[MicroKernel]:
        """The library of theory, if all of it is among ``known``."""
        return self._theory if set(self._theory) <= set(known) else []
