"""What was replaced in a model, by which library, how it matched; what was not, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shapewright.models.lifted import Left
from shapewright.models.tasks import ModelTasks, Occurrence, Weights, tasks_of
from tuner.errors import InvalidInput
from tuner.program.job.task import parse_target
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.language.workload import Workload
from tuner.program.target import Target

TUNED_FOR = {"streamed": "streamed weights", "warm": "warm caches", "cold": "cold caches"}


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
    """Operations of its products, convolutions and attention at the sizes of the first call, where they are counted."""
    cache: str = "warm"
    """What the library was tuned for: ``streamed``, weights that come from memory, as they do here; or another state of
    the caches, where there was none for that."""

    @property
    def copies(self) -> dict[str, int]:
        """How often a call copied each operand, by its name, where calls count that."""
        return {}


@dataclass(frozen=True, slots=True)
class NotReplaced:
    """A part of the model that stays as it was, and the reason."""

    where: str
    what: str
    reason: str
    flops: int = 0
    workload: Workload | None = None
    """The workload that has no library; None for what is no workload."""


@dataclass(slots=True)
class Report:
    """The report of one model. ``notes``: what else its user should know, each once: sources that are away, gradients.

    ``rest`` is who computes what was not replaced.
    """

    replaced: list[Replaced] = field(default_factory=list)
    kept: list[NotReplaced] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rest: str = "PyTorch"

    @property
    def share(self) -> float | None:
        """The part of the floating-point operations that tuned libraries do; None where none were counted."""
        replaced, kept = (sum(each.flops for each in some) for some in (self.replaced, self.kept))
        return replaced / (replaced + kept) if replaced + kept else None

    def _next(self) -> list[str]:
        """What would have more of the model replaced."""
        missing = [each for each in self.kept if each.workload]
        if not missing:
            return []
        count = len({each.workload.key for each in missing if each.workload})
        total = sum(each.flops for some in (self.replaced, self.kept) for each in some)
        part = f", {sum(each.flops for each in missing) / total:.0%} of the operations" if total else ""
        named = "this workload" if count == 1 else f"these {count} workloads"
        return [f"  next: no library for {named}{part}: shapewright tune-model, or tasks() of this report"]

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols of the workloads that have no library."""
        return frozenset().union(*(each.workload.variables for each in self.kept if each.workload))

    def tasks(
        self,
        shape_vars: Mapping[str, Iterable[int]],
        *,
        weights: Weights | None = None,
        target: Target | str | Mapping[str, Any] | None = "native",
        threads: int = 1,
        max_kernels: int = 8,
        cache: str = "streamed",
    ) -> ModelTasks:
        """The search tasks of the workloads that have no library, as of ``sw.extract``: what is compiled need not be
        exported. ``shape_vars`` gives the sizes of their symbols, which the report names: ``{"s27": range(1, 513)}``.
        ``cache`` as of ``sw.extract``.

        Raises InvalidInput for a symbol without sizes, and where every workload has its library.
        """
        found = [Occurrence(each.workload, each.where, each.where) for each in self.kept if each.workload]
        symbols = sorted(self.symbols)
        if not found:
            raise InvalidInput("report", "no workload lacks a library", "one of a model that was compiled or optimized")
        if missing := [name for name in symbols if name not in shape_vars]:
            remedy = f"as in {{{', '.join(f'{name!r}: range(1, 129)' for name in symbols)}}}"
            raise InvalidInput(f"shape_vars.{missing[0]}", "it is not said how large it may be", remedy)
        variables = [ShapeVar(name, values) for name, values in shape_vars.items()]
        left = [Left(each.where, each.what, each.reason) for each in self.kept if not each.workload]
        options = {"target": parse_target(target), "threads": threads, "max_kernels": max_kernels, "cache": cache}
        return tasks_of("compiled model", found, left, variables, weights, options)

    def note(self, texts: Iterable[str]) -> None:
        self.notes += [text for text in dict.fromkeys(texts) if text not in self.notes]

    def to_json(self) -> dict[str, Any]:
        """``{"replaced": [...], "kept": [...], "notes": [...], "share": 0.98}``; ``share`` may be None."""
        replaced = [
            {
                "where": each.where, "workload": each.workload, "workload_key": each.key, "digest": each.digest,
                "match": each.how, "source": each.source, "threads": each.threads, "cache": each.cache,
                "strided": list(each.strided), "copies": each.copies, "flops": each.flops,
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
            how = f"{each.how}, tuned for {TUNED_FOR[each.cache]}"
            lines.append(f"  {each.where}: {each.workload}, {each.digest[:12]} ({how}) of {each.source}{copied}")
        lines += [f"  {left.where}: {left.what} stays: {left.reason}" for left in self.kept]
        return "\n".join([*lines, *self._next(), *(f"  note: {text}" for text in self.notes)])
