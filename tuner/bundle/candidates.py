"""What a bundle measures of a search task: theory's choices for each shape, or what a search proposes that knows the
records of earlier bundles; and kernels unlike them and one another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuner.bundle import CHOICES, OTHERS
from tuner.program.job.policies import DEFAULT_POLICY
from tuner.program.job.task import SearchTask
from tuner.schedule import space_of
from tuner.schedule.space import MicroKernel, UnionSpace
from tuner.search.cost_model import PairCostModel
from tuner.search.policy import make_policy, shortlist
from tuner.search.policy.diverse import most_diverse
from tuner.search.reuse import Reuse, shared_knowledge
from tuner.storage.jsonl import SharedRecord

SAMPLES = 500
"""Kernels that those are taken from."""


def candidates_of(
    task: SearchTask, choices: int = CHOICES, others: int = OTHERS, seed: int = 0, known: Sequence[SharedRecord] = ()
) -> list[MicroKernel]:
    """Those that theory, or the search, prefers come first. ``known``: records of the task's target, whose kernels are
    not measured again. Equal for equal seeds and records."""
    rng, space = np.random.default_rng(seed), space_of(task)
    reuse = Reuse(task, space, shared_knowledge(known, task))
    if any(each.ok for each in reuse.results):
        found = _proposed(task, space, reuse, choices, seed)
    else:
        found = shortlist(task, space, PairCostModel(task, seed).theory, rng, choices)
    pool = dict.fromkeys(space.sample(rng) for _ in range(SAMPLES))
    passed = {*found, *(each.kernel for each in reuse.results)}
    unlike = [each for each in pool if each not in passed]
    # A small space may have no more.
    return found + (most_diverse(unlike, list(passed), others) if unlike else [])


def _proposed(task: SearchTask, space: UnionSpace, reuse: Reuse, count: int, seed: int) -> list[MicroKernel]:
    """What the default policy would measure next, for as long as it would go on without an answer."""
    model = PairCostModel(task, seed)
    policy = make_policy(DEFAULT_POLICY, task, space, model, seed)
    model.update(reuse.results)
    policy.update(reuse.results)
    found = dict[MicroKernel, None]()
    while len(found) < count:
        suggestions = policy.suggest(count * len(task.instances), pending=list(found))
        before = len(found)
        found |= dict.fromkeys(each.kernel for each in suggestions)
        if len(found) == before:
            break
    return list(found)[:count]
