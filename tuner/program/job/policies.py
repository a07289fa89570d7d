"""The search policies that a job may name: the registry. How one is added: ``docs/howto/add-a-policy.md``.

Job files are checked where no search code may be loaded. So an entry says where its class stands in
``tuner.search.policy``, which loads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """A policy: its name in job files, ``module:Class`` in ``tuner.search.policy``, what it measures after theory's
    set, and when it ends.

    ``learns``: what it suggests depends on what was measured. ``settled``: it has chosen all that it measures before
    the first trial, and ends there.
    """

    name: str
    where: str
    measures: str
    ends: str
    learns: bool = True
    settled: bool = False


POLICIES: Mapping[str, PolicyEntry] = {
    entry.name: entry
    for entry in (
        PolicyEntry(
            "evolutionary", "evolutionary:EvolutionarySearch",
            "what the set is expected to gain most by, of a population evolved on the cost model",
            "when no gain is expected any more",
        ),
        PolicyEntry(
            "random", "random:RandomSearch",
            "uniform draws, to compare with", "when the space has no others", learns=False,
        ),
        PolicyEntry(
            "annealing", "annealing:AnnealingSearch",
            "what chains of simulated annealing over the cost model came by, varied, and a share at random (AutoTVM)",
            "after 64 kernels without a gain",
        ),
        PolicyEntry(
            "qlearning", "qlearning:QLearningSearch",
            "a step from kernels that are fast, in a direction learned from earlier steps (FlexTensor)",
            "as `annealing` does",
        ),
        PolicyEntry(
            "roller", "roller:RollerSearch",
            "the first ten full tiles of each instance, built and ranked by theory (Roller)",
            "when these are measured", learns=False, settled=True,
        ),
        PolicyEntry(
            "droplet", "droplet:DropletSearch",
            "neighbours of the fastest kernel of each instance, axis by axis (Droplet)",
            "at a local optimum of each",
        ),
        PolicyEntry(
            "theory", "theory_alone:TheoryAlone",
            "nothing more", "when theory's set is measured", learns=False, settled=True,
        ),
    )
}  # fmt: skip
DEFAULT_POLICY = "evolutionary"
