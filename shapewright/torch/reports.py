"""What was replaced in a model of PyTorch, how often its calls copied operands, and where its time goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shapewright.models.copies import Note
from shapewright.sources import reports
from shapewright.torch.op import prepared
from shapewright.torch.profiling import Profile, profiled
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


@dataclass(slots=True)
class Report(reports.Report):
    """The report of one model. ``notes``: what else its user should know, each once: sources that are away, gradients.

    ``rest`` is who computes what was not replaced.
    """

    def profile(self, model: Callable[..., Any], *inputs: Any, seconds: float = 1.0) -> Profile:
        """Where the time of ``model(*inputs)`` goes: by tuned kernel, by what PyTorch does between, and overhead.

        It is called, under ``torch.no_grad()``, for about ``seconds``. Nothing else of this process should call tuned
        libraries meanwhile. Raises InvalidInput where a call of it runs none.
        """
        if not 0.0 < seconds <= MOST_SECONDS:
            raise InvalidInput("seconds", f"{seconds:g} is out of range", f"more than 0, at most {MOST_SECONDS:g}")
        found = profiled(lambda: model(*inputs), seconds)
        if not found.kernels:
            remedy = "a model that was compiled with the backend, or that sw.torch.optimize made, and has libraries"
            raise InvalidInput("model", "calls no tuned library", remedy)
        return found


MOST_SECONDS = 600.0
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


def note_shared(report: Report) -> Note:
    """What notes in a report that a value cannot be copied with its model."""

    def note(where: str, value: Any, error: Exception) -> None:
        reason = f"it cannot be copied, and is shared with the model: {error}"
        report.kept.append(reports.NotReplaced(where, type(value).__name__, reason))

    return note
