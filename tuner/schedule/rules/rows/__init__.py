"""Reductions along rows: reduce, softmax, layer_norm, rms_norm, gemv and chains of such stages."""

from tuner.schedule.rules.rows.rule import RowReduction

__all__ = ["RowReduction"]
