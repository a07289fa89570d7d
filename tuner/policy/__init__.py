"""Search policies: what to measure next."""

from tuner.policy._base import SearchPolicy, Suggestion
from tuner.policy.evolutionary import EvolutionarySearch, EvolutionSettings

__all__ = ["EvolutionSettings", "EvolutionarySearch", "SearchPolicy", "Suggestion"]
