"""What a search is made of: the tools that it works with, what it starts from, and what its parts share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.measure import Builder, KeptBuilds, Runner, never
from tuner.program.job.task import SearchTask
from tuner.records import NO_BASELINES, Baselines, MeasureResult, TuningRecord
from tuner.search.budget import BudgetTracker
from tuner.search.cost_model import CostModel
from tuner.search.policy import SearchPolicy
from tuner.search.reuse import NOTHING, Knowledge
from tuner.search.stopping import Stopping
from tuner.search.summary import SearchSummary
from tuner.storage import NewEvent

GPU_KERNELS = 4
"""Kernels that are under way on a GPU for each that would be on a CPU. An H100 measures one in less than a tenth of a
build; with more than so many, rounds learn less from one another in searches of a simulated GPU (decision 96)."""


def equivalent_devices(task: SearchTask, runner: Runner) -> int:
    """The number of CPUs for which as many kernels would be under way as for the runner's devices."""
    return runner.devices * (1 if task.known_target.gpu is None else GPU_KERNELS)


class Recorder(Protocol):
    """Where a search stores its results as it goes. A call returns only when they are stored."""

    def record(
        self, results: Sequence[MeasureResult], events: Sequence[NewEvent], spent_s: float, summary: SearchSummary
    ) -> None:
        """``spent_s``: wall time charged to the task so far."""

    def record_baselines(self, baselines: Baselines) -> None:
        """Store what the task's kernels are compared with: once in a search, unless it was measured before."""


@dataclass(frozen=True, slots=True)
class SearchTools:
    """What a search builds, measures and records with, and who ends it early.

    ``should_stop`` ends the search at once (Cancelled); ``should_finish`` says that only the library of what was
    measured is wanted (Finishing, after which ``finish`` is called).
    """

    builder: Builder
    runner: Runner
    recorder: Recorder
    should_stop: Callable[[], bool] = never
    should_finish: Callable[[], bool] = never


@dataclass(frozen=True, slots=True)
class SearchStart:
    """What a search starts from.

    ``past`` are this very task's own records (after a worker's death): the policy is rebuilt from them and they count
    against the budget, as does ``spent_s``; ``baselines`` are measured unless they were. ``knowledge`` is of other
    searches: its best kernels are timed again first, and the default is theory's whatever it says.
    """

    past: Sequence[TuningRecord] = ()
    baselines: Baselines = NO_BASELINES
    knowledge: Knowledge = NOTHING
    spent_s: float = 0.0


FROM_NOTHING = SearchStart()


@dataclass(frozen=True, slots=True)
class SearchContext:
    """What the parts of one search share."""

    task: SearchTask
    tools: SearchTools
    model: CostModel
    policy: SearchPolicy
    builds: KeptBuilds
    budget: BudgetTracker
    stop: Stopping
