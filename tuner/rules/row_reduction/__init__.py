"""Reductions along rows: reduce, softmax, layer_norm, rms_norm, gemv and chains of such stages."""

from tuner.rules.row_reduction.rule import RowReduction

__all__ = ["RowReduction"]
