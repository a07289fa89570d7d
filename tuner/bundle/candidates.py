"""What a bundle measures of a search task: theory's choices for each shape, and kernels unlike them and one another."""

from __future__ import annotations

import numpy as np

from tuner.bundle import CHOICES, OTHERS
from tuner.program.job.task import SearchTask
from tuner.schedule import space_of
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import PairCostModel
from tuner.search.policy import shortlist
from tuner.search.policy.diverse import most_diverse

SAMPLES = 500
"""Kernels that those are taken from."""


def candidates_of(task: SearchTask, choices: int = CHOICES, others: int = OTHERS, seed: int = 0) -> list[MicroKernel]:
    """Those that theory prefers come first. Equal for equal seeds."""
    rng, space = np.random.default_rng(seed), space_of(task)
    found = shortlist(task, space, PairCostModel(task, seed).theory, rng, choices)
    pool = dict.fromkeys(space.sample(rng) for _ in range(SAMPLES))
    unlike = [each for each in pool if each not in found]
    # A small space may have no more.
    return found + (most_diverse(unlike, found, others) if unlike else [])
