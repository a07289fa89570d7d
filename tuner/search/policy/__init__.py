"""Search policies: what to measure next. Each is a class in a file of its own, and an entry of the registry
``tuner.program.job.policies``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from tuner.errors import InvalidInput
from tuner.program.job import policies as registry
from tuner.program.job.task import SearchTask
from tuner.schedule.space import KernelSpace
from tuner.search.cost_model import CostModel
from tuner.search.policy._base import SearchPolicy, Suggestion, suggestions_of
from tuner.search.policy.theory import TheorySettings, dispatched, shortlist

__all__ = [
    "POLICIES",
    "PolicyFactory",
    "SearchPolicy",
    "Suggestion",
    "TheorySettings",
    "dispatched",
    "make_policy",
    "shortlist",
    "suggestions_of",
]

PolicyFactory = Callable[[SearchTask, KernelSpace, CostModel, int], SearchPolicy]


def _loaded(where: str) -> PolicyFactory:
    module, _, name = where.partition(":")
    return getattr(import_module(f".{module}", __package__), name)  # type: ignore[no-any-return]


POLICIES: dict[str, PolicyFactory] = {name: _loaded(entry.where) for name, entry in registry.POLICIES.items()}
"""The class of each policy, by the name that a job gives."""


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
