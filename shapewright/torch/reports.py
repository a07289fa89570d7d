"""What was replaced in a model, by which library, how it matched; what was not, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from shapewright.torch.op import prepared
from tuner.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Replaced:
    """A part of the model that a tuned library computes. ``where``: the module, or the nodes of the graph."""

    where: str
    workload: str
    key: str
    digest: str
    how: str
    source: str
    threads: int
    plans: tuple[str, ...] = ()
    strided: tuple[str, ...] = ()
    """Operands whose strides a kernel does not take: they are copied, by Inductor's code or by the call."""

    @property
    def copies(self) -> dict[str, int]:
        """By operand how often a call copied it."""
        total: dict[str, int] = {}
        for plan in self.plans:
            for name, count in prepared(plan).copies.items():
                total[name] = total.get(name, 0) + count
        return total


@dataclass(frozen=True, slots=True)
class Kept:
    """A part of the model that stays as it was, and the reason."""

    where: str
    what: str
    reason: str


@dataclass(slots=True)
class Report:
    """Of one model. ``notes``: what else its user should know, each once: sources that are away, gradients."""

    replaced: list[Replaced] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, texts: Iterable[str]) -> None:
        self.notes += [text for text in dict.fromkeys(texts) if text not in self.notes]

    def to_json(self) -> dict[str, Any]:
        """``{"replaced": [...], "kept": [...], "notes": [...]}``."""
        replaced = [
            {
                "where": each.where, "workload": each.workload, "workload_key": each.key, "digest": each.digest,
                "match": each.how, "source": each.source, "threads": each.threads, "strided": list(each.strided),
                "copies": each.copies,
            }
            for each in self.replaced
        ]  # fmt: skip
        kept = [{"where": each.where, "what": each.what, "reason": each.reason} for each in self.kept]
        return {"replaced": replaced, "kept": kept, "notes": list(self.notes)}

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} replaced, {len(self.kept)} left to PyTorch"]
        for each in self.replaced:
            copied = "".join(f"; {name} has strides that no kernel takes, and is copied" for name in each.strided)
            copied += "".join(f"; {name} was copied {count} times" for name, count in each.copies.items())
            lines.append(f"  {each.where}: {each.workload}, {each.digest[:12]} ({each.how}) of {each.source}{copied}")
        lines += [f"  {left.where}: {left.what} stays: {left.reason}" for left in self.kept]
        return "\n".join(lines + [f"  note: {text}" for text in self.notes])


_compiled: list[Report] = []
"""Of the graph that was compiled last."""


def note_compiled(report: Report) -> None:
    """What ``report`` tells of graphs that are compiled."""
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
    found = getattr(model, "shapewright_report", None)
    if not isinstance(found, Report):
        remedy = "one that sw.torch.optimize made; none, for the graph that was compiled last"
        raise InvalidInput("model", "has no report", remedy)
    return found
