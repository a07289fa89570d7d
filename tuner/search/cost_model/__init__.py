"""Cost models: the latency of any micro-kernel at any shape, from theory and from what has been measured."""

from tuner.search.cost_model._base import CostModel, Prediction
from tuner.search.cost_model.pair_model import PairCostModel, extents_of

__all__ = ["CostModel", "PairCostModel", "Prediction", "extents_of"]
