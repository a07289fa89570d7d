"""How much each axis of a space matters for the time of a kernel: values that events carry and figures show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

EVENT = "importance"
"""The kind of the event of a job that has it."""


@dataclass(frozen=True, slots=True)
class AxisImportance:
    """An axis by its name in records. ``effect``: the mean of its absolute SHAP values, in log latency; 0.1 is a tenth
    of the time. ``share`` of the effects of all axes."""

    name: str
    effect: float
    share: float


@dataclass(frozen=True, slots=True)
class Importance:
    """Of the axes of ``rule``, the most important first. ``pairs``: kernels at instances that it was learned from;
    ``explained``: the share of the variance of their log times within an instance that the model predicts for a quarter
    that it has not seen (R²); a model that predicts nothing says nothing of axes."""

    rule: str
    pairs: int
    explained: float
    axes: tuple[AxisImportance, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"axes": [asdict(axis) for axis in self.axes]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Importance:
        """Raises KeyError, TypeError, ValueError for what is none."""
        axes = tuple(AxisImportance(str(a["name"]), float(a["effect"]), float(a["share"])) for a in data["axes"])
        return Importance(str(data["rule"]), int(data["pairs"]), float(data["explained"]), axes)
