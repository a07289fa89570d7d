"""What was replaced in a model, by which library, how it matched; what was not, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


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
    strided: tuple[str, ...] = ()
    """Operands whose strides a kernel does not take: they are copied, by the code around the call or by the call."""
    flops: int = 0
    """Of its products, convolutions and attention at the sizes of the first call, where they are counted."""

    @property
    def copies(self) -> dict[str, int]:
        """By operand how often a call copied it, where calls count that."""
        return {}


@dataclass(frozen=True, slots=True)
class Kept:
    """A part of the model that stays as it was, and the reason."""

    where: str
    what: str
    reason: str
    flops: int = 0
    key: str = ""
    """Of the workload that has no library; empty for what is no workload."""


@dataclass(slots=True)
class Report:
    """Of one model. ``notes``: what else its user should know, each once: sources that are away, gradients.

    ``rest`` is who computes what was not replaced.
    """

    replaced: list[Replaced] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rest: str = "PyTorch"

    @property
    def share(self) -> float | None:
        """The part of the floating-point operations that tuned libraries do; None where none were counted."""
        replaced, kept = (sum(each.flops for each in some) for some in (self.replaced, self.kept))
        return replaced / (replaced + kept) if replaced + kept else None

    def _next(self) -> list[str]:
        """What would have more of the model replaced."""
        missing = [each for each in self.kept if each.key]
        if not missing:
            return []
        count = len({each.key for each in missing})
        total = sum(each.flops for some in (self.replaced, self.kept) for each in some)
        part = f", {sum(each.flops for each in missing) / total:.0%} of the operations" if total else ""
        named = "this workload" if count == 1 else f"these {count} workloads"
        return [f"  next: no library for {named}{part}: shapewright tune-model searches for them"]

    def note(self, texts: Iterable[str]) -> None:
        self.notes += [text for text in dict.fromkeys(texts) if text not in self.notes]

    def to_json(self) -> dict[str, Any]:
        """``{"replaced": [...], "kept": [...], "notes": [...], "share": 0.98}``; ``share`` may be None."""
        replaced = [
            {
                "where": each.where, "workload": each.workload, "workload_key": each.key, "digest": each.digest,
                "match": each.how, "source": each.source, "threads": each.threads, "strided": list(each.strided),
                "copies": each.copies, "flops": each.flops,
            }
            for each in self.replaced
        ]  # fmt: skip
        kept = [
            {"where": each.where, "what": each.what, "reason": each.reason, "flops": each.flops} for each in self.kept
        ]
        return {"replaced": replaced, "kept": kept, "notes": list(self.notes), "share": self.share}

    def __str__(self) -> str:
        told = "" if self.share is None else f": {self.share:.1%} of the floating-point operations are replaced"
        lines = [f"{len(self.replaced)} replaced, {len(self.kept)} left to {self.rest}{told}"]
        for each in self.replaced:
            copied = "".join(f"; {name} has strides that no kernel takes, and is copied" for name in each.strided)
            copied += "".join(f"; {name} was copied {count} times" for name, count in each.copies.items())
            lines.append(f"  {each.where}: {each.workload}, {each.digest[:12]} ({each.how}) of {each.source}{copied}")
        lines += [f"  {left.where}: {left.what} stays: {left.reason}" for left in self.kept]
        return "\n".join([*lines, *self._next(), *(f"  note: {text}" for text in self.notes)])
