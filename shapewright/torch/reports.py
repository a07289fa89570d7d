"""What was replaced in a model of PyTorch, and how often its calls copied operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shapewright.sources import reports
from shapewright.sources.reports import Report
from shapewright.torch.op import prepared
from tuner.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Replaced(reports.Replaced):
    """``plans``: of the calls that took the place of a part of the model."""

    plans: tuple[str, ...] = ()

    @property
    def copies(self) -> dict[str, int]:
        """How often a call copied each operand, by its name."""
        total: dict[str, int] = {}
        for plan in self.plans:
            for name, count in prepared(plan).copies.items():
                total[name] = total.get(name, 0) + count
        return total


_compiled: list[Report] = []
"""The report of the graph that was compiled last."""


def note_compiled(report: Report) -> None:
    """Set what ``report`` returns for graphs that are compiled."""
    _compiled[:] = [report]


def report(model: Any = None) -> Report:
    """What ``optimize`` replaced in ``model``, or, without one, in the graph that the backend compiled last.

    Raises InvalidInput where there is nothing to report.
    """
    if model is None:
        if not _compiled:
            remedy = 'call a model of torch.compile(backend="shapewright") first'
            raise InvalidInput("model", "is left out, and nothing was compiled yet", remedy)
        return _compiled[0]
    attached = getattr(model, "shapewright_report", None)
    if not isinstance(attached, Report):
        remedy = "one that sw.torch.optimize made; none, for the graph that was compiled last"
        raise InvalidInput("model", "has no report", remedy)
    return attached
