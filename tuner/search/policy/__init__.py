"""Search policies: what to measure next. Each is a class in a file of its own and an entry of POLICIES."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tuner.errors import InvalidInput
from tuner.program.job.task import SearchTask
from tuner.schedule.space import KernelSpace
from tuner.search.cost_model import CostModel
from tuner.search.policy._base import SearchPolicy, Suggestion, suggestions_of
from tuner.search.policy.annealing import AnnealingSearch, AnnealingSettings
from tuner.search.policy.droplet import DropletSearch, DropletSettings
from tuner.search.policy.evolutionary import EvolutionarySearch, EvolutionSettings
from tuner.search.policy.qlearning import QLearningSearch, QLearningSettings
from tuner.search.policy.random import RandomSearch
from tuner.search.policy.roller import RollerSearch, RollerSettings
from tuner.search.policy.theory import TheorySettings, dispatched
from tuner.search.policy.theory_alone import TheoryAlone

__all__ = [
    "POLICIES",
    "AnnealingSearch",
    "AnnealingSettings",
    "DropletSearch",
    "DropletSettings",
    "EvolutionSettings",
    "EvolutionarySearch",
    "PolicyFactory",
    "QLearningSearch",
    "QLearningSettings",
    "RandomSearch",
    "RollerSearch",
    "RollerSettings",
    "SearchPolicy",
    "Suggestion",
    "TheoryAlone",
    "TheorySettings",
    "dispatched",
    "make_policy",
    "suggestions_of",
]

PolicyFactory = Callable[[SearchTask, KernelSpace, CostModel, int], SearchPolicy]

POLICIES: dict[str, PolicyFactory] = {
    "evolutionary": EvolutionarySearch,
    "random": RandomSearch,
    "annealing": AnnealingSearch,
    "qlearning": QLearningSearch,
    "roller": RollerSearch,
    "droplet": DropletSearch,
    "theory": TheoryAlone,
}
"""Policies by the name that a job gives. tuner.program.job.jobspec repeats the names: it may not import this."""


def make_policy(
    name: str,
    task: SearchTask,
    space: KernelSpace,
    model: CostModel,
    seed: int,
    policies: Mapping[str, PolicyFactory] = POLICIES,
) -> SearchPolicy:
    """The policy of that name for one search. Raises InvalidInput for a name that is not registered."""
    if name not in policies:
        raise InvalidInput("policy", f"{name!r} is not known", f"one of: {', '.join(policies)}")
    return policies[name](task, space, model, seed)
