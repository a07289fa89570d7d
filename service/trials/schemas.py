"""Responses of the routes of trial tables. Times are in seconds."""

from __future__ import annotations

from pydantic import BaseModel

from service.schemas import FromAttributes
from tuner.storage.trials import TrialLine, TrialTable


class TrialLineOut(BaseModel):
    """A trial in a table. ``choices`` are its kernel's, by the names that people are shown."""

    seq: int
    kernel_id: str
    rule: str
    choices: dict[str, int]
    instance: dict[str, int]
    weight: float
    latency_s: float | None
    predicted_s: float | None
    samples_s: list[float]
    error_kind: str | None
    error: str
    round: int
    phase: str
    attempt: int
    build_s: float
    run_s: float
    anchor_s: float | None
    device: str | None
    created_at: str

    @staticmethod
    def of(line: TrialLine) -> TrialLineOut:
        same = {name: getattr(line, name) for name in TrialLineOut.model_fields if hasattr(line, name)}
        about = {"rule": line.kernel.rule, "choices": line.kernel.named, "weight": line.instance.weight}
        return TrialLineOut(**same | about | {"instance": dict(line.instance.shape), "samples_s": list(line.samples_s)})


class TrialTableOut(BaseModel):
    """A part of a table of trials. ``cursor`` asks for the next part, with the same order; null at the end."""

    items: list[TrialLineOut]
    cursor: str | None

    @staticmethod
    def of(table: TrialTable) -> TrialTableOut:
        return TrialTableOut(items=[TrialLineOut.of(line) for line in table.items], cursor=table.cursor)


class TrialFacetOut(FromAttributes):
    """How many trials have this error (null: they succeeded), this phase and this instance."""

    error_kind: str | None
    phase: str
    instance: str
    trials: int


class TrialFacets(BaseModel):
    """How the trials of a search task are spread: what a table of them can be filtered by."""

    items: list[TrialFacetOut]
