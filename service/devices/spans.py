"""Spans that people look at, made of slots of trials: what a device measured for one job without a pause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tuner.storage import Slot


@dataclass(frozen=True, slots=True)
class Span:
    """Trials of one job, one after another, in seconds from the begin of a window. ``busy_s`` of it they ran."""

    job_id: str
    start_s: float
    end_s: float
    trials: int
    failed: int
    busy_s: float


def spans_of(slots: Iterable[Slot], origin_s: float, gap_s: float) -> tuple[Span, ...]:
    """The slots of one device, in the order of time, as spans that do not overlap: those of one job that are at most
    ``gap_s`` apart are one. What ended before ``origin_s`` is left out."""
    result: list[Span] = []
    for slot in slots:
        start_s, end_s = max(0.0, slot.start_s - origin_s), slot.end_s - origin_s
        if end_s <= 0.0:
            continue
        new = Span(slot.job_id, start_s, end_s, slot.trials, slot.failed, slot.busy_s)
        if not result:
            result.append(new)
        elif result[-1].job_id == new.job_id and new.start_s - result[-1].end_s <= gap_s:
            result[-1] = _joined(result[-1], new)
        else:
            result[-1:] = _apart(result[-1], new)
    return tuple(result)


def newest(spans: Sequence[tuple[Span, ...]], most: int) -> tuple[list[tuple[Span, ...]], float]:
    """The ``most`` spans of all devices that ended last, and since when none is missing: 0 if none was cut."""
    ends = sorted((span.end_s for each in spans for span in each), reverse=True)
    if len(ends) <= most:
        return list(spans), 0.0
    cut_s = ends[most]
    return [tuple(span for span in each if span.end_s > cut_s) for each in spans], cut_s


def _joined(first: Span, second: Span) -> Span:
    return replace(
        first,
        end_s=max(first.end_s, second.end_s),
        trials=first.trials + second.trials,
        failed=first.failed + second.failed,
        busy_s=first.busy_s + second.busy_s,
    )


def _apart(first: Span, second: Span) -> list[Span]:
    """Two jobs that took turns in one slot: the second gets the time that its trials took, at the end."""
    if second.start_s >= first.end_s:
        return [first, second]
    border_s = max(first.start_s, second.start_s, min(second.end_s - second.busy_s, first.end_s))
    return [replace(first, end_s=border_s), replace(second, start_s=border_s, end_s=max(border_s, second.end_s))]
