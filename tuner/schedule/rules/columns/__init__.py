"""The rule for reductions that leave the axis along which tensors are contiguous: sums of columns."""

from tuner.schedule.rules.columns.rule import ColumnReduction

__all__ = ["ColumnReduction"]
