"""Cost models: the latency of any micro-kernel at any shape, from theory and from what has been measured."""

from tuner.search.cost_model._base import CostModel, Prediction, WarmRecord
from tuner.search.cost_model.pair_model import MAX_WARM_PAIRS, PairCostModel
from tuner.search.cost_model.residual import INTERVAL_SPREADS

__all__ = ["INTERVAL_SPREADS", "MAX_WARM_PAIRS", "CostModel", "PairCostModel", "Prediction", "WarmRecord"]
