"""A whole search on the synthetic device, for the tests of its loop and of its parts."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.fakes import TASK, FakeBuilder, FakeClock, FakeRecorder, FakeRunner, Time, latency_s
from tuner.library import codegen
from tuner.program.job.jobspec import Budget
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.records import PROTOCOL, MeasureResult, TuningRecord
from tuner.schedule import rules_of
from tuner.schedule.space import KernelSpace, MicroKernel
from tuner.search.cost_model import CostModel, PairCostModel, refit, residual
from tuner.search.policy import POLICIES, PolicyFactory, SearchPolicy, Suggestion, TheorySettings, theory, theory_first
from tuner.search.policy.annealing import AnnealingSettings
from tuner.search.policy.droplet import DropletSettings
from tuner.search.policy.evolutionary import EvolutionSettings
from tuner.search.policy.qlearning import QLearningSettings
from tuner.search.policy.roller import RollerSettings
from tuner.search.policy.theory_first import BasePolicy
from tuner.search.tuning import SearchStart, SearchTools, Tuned, tune

THEORY = TheorySettings(samples=200)
EVOLUTION = EvolutionSettings(population=32, generations=2, theory=THEORY)
QUICK_SETTINGS = {
    "evolutionary": EVOLUTION,
    "random": THEORY,
    "annealing": AnnealingSettings(chains=16, steps=12, theory=THEORY),
    "qlearning": QLearningSettings(theory=THEORY),
    "roller": RollerSettings(beam=3, theory=THEORY),
    "droplet": DropletSettings(theory=THEORY),
}


def _quick(name: str, policy: Any) -> PolicyFactory:
    if name in QUICK_SETTINGS:
        return partial(policy, settings=QUICK_SETTINGS[name])
    return partial(policy, settings=THEORY) if policy.__init__ is BasePolicy.__init__ else policy


QUICK_POLICIES: dict[str, PolicyFactory] = {name: _quick(name, policy) for name, policy in POLICIES.items()}
"""Every policy with settings under which a round takes a tenth of a second, those with settings of their own that are
not named above with their usual ones."""


_THEORY: dict[Hashable, tuple[list[MicroKernel], Mapping[str, Any]]] = {}


def remembered_theory_set(
    task: SearchTask,
    space: KernelSpace,
    model: CostModel,
    rng: np.random.Generator,
    settings: TheorySettings,
    failed: Collection[MicroKernel] = (),
) -> list[MicroKernel]:
    """What ``theory_set`` chose when it was asked the same of a model that had learned as little: most searches of
    these tests begin alike."""
    if not isinstance(model, PairCostModel) or model.pairs:
        return theory.theory_set(task, space, model, rng, settings, failed)
    key = task, tuple(rules_of(task)), model.rates, str(rng.bit_generator.state), settings, frozenset(failed)
    if key not in _THEORY:
        _THEORY[key] = theory.theory_set(task, space, model, rng, settings, failed), rng.bit_generator.state
    chosen, rng.bit_generator.state = _THEORY[key]
    return list(chosen)


def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cost models of the fewest trees: for tests that do not ask what was learned."""
    monkeypatch.setattr(residual, "ROUNDS", 10)


def small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cost models of fewer trees, over rates that are not fitted: for tests of what is done with predictions."""
    monkeypatch.setattr(residual, "ROUNDS", 30)
    monkeypatch.setattr(refit, "MAX_PAIRS", 0)
    monkeypatch.setattr(theory_first, "theory_set", remembered_theory_set)


def quick_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small populations and models in the searches of this process: for tests of what is around them."""
    small_models(monkeypatch)
    for name, policy in QUICK_POLICIES.items():
        monkeypatch.setitem(POLICIES, name, policy)


def make_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, models of still fewer trees, and binaries that nothing is compiled for: the loop is what is tested."""
    quick_policies(monkeypatch)
    few_trees(monkeypatch)
    monkeypatch.setattr(codegen, "module_of", lambda task, kernels, tree: (kernels, tree))
    monkeypatch.setattr(codegen, "object_of", lambda task, kernel: b"object")
    monkeypatch.setattr(codegen, "link", lambda task, kernels, tree, objects: repr((kernels, tree)).encode())
    monkeypatch.setattr(codegen, "module_json", lambda module: "{}")
    monkeypatch.setattr(codegen, "kernel_scripts", lambda module, count: [""] * count)


def measured_round(
    policy: SearchPolicy, model: CostModel, trials: int = 1000, time: Time = latency_s, task: SearchTask = TASK
) -> list[Suggestion]:
    """What the policy suggests, once the model and the policy know what a device says to it."""
    suggestions = policy.suggest(trials)
    results = [
        MeasureResult(suggestion.kernel, instance, time(task, suggestion.kernel, instance.shape))
        for suggestion in suggestions
        for instance in suggestion.instances
    ]
    model.update(results)
    policy.update(results)
    return suggestions


def taken(given: dict[str, Any], *names: str) -> dict[str, Any]:
    """Those of the arguments, which are left out of ``given``."""
    return {name: given.pop(name) for name in names if name in given}


class Bench:
    """A tune() with all its collaborators at hand."""

    def __init__(self, build_s: float = 0.0, run_s: float = 0.0, code: bytes = b"") -> None:
        self.clock = FakeClock()
        self.builder = FakeBuilder(self.clock, build_s, code=code)
        self.runner = FakeRunner(self.clock, run_s)
        self.recorder = FakeRecorder()

    def tune(
        self, trials: int | None = None, seconds: float | None = None, task: SearchTask = TASK, **more: Any
    ) -> Tuned:
        return tune(
            task,
            SearchTools(self.builder, self.runner, self.recorder, **taken(more, "should_stop", "should_finish")),
            SearchStart(**taken(more, "past", "baselines", "knowledge", "spent_s")),
            budget=Budget(trials, seconds),
            clock=self.clock,
            **{"parallel_builds": 0} | more,
        )

    @property
    def results(self) -> list[MeasureResult]:
        return self.recorder.results


def known(figure: float | None) -> float:
    """A figure of a summary that must be there."""
    assert figure is not None
    return figure


def records(results: list[MeasureResult]) -> list[TuningRecord]:
    return [TuningRecord(TASK.workload.key, "f", 1, PROTOCOL, result) for result in results]


def in_symbols(results: Sequence[MeasureResult], task: SearchTask = TASK, **fields: Any) -> list[TuningRecord]:
    """Results as the database has them for other jobs: instances in the workload's symbols."""
    entries = []
    for result in results:
        dims = WorkloadInstance.of(task.workload.dims(result.instance.shape), result.instance.weight)
        place = task.workload.key, task.known_target.fingerprint, task.threads, PROTOCOL
        record = TuningRecord(*place, result, job_id="j-1")
        entries.append(replace(record, result=replace(result, instance=dims), **fields))
    return entries
