"""Search policies: what to measure next."""

from tuner.search.policy._base import SearchPolicy, Suggestion
from tuner.search.policy.evolutionary import EvolutionarySearch, EvolutionSettings

__all__ = ["EvolutionSettings", "EvolutionarySearch", "SearchPolicy", "Suggestion"]
