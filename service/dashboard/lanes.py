"""The spans of a device as a lane of a Gantt chart: a path of SVG for each job, so hundreds of lanes stay small."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from service.devices.spans import Span
from tuner.durations import format_duration
from tuner.storage import ActiveJob

WIDTH, HEIGHT = 1000, 10
NARROWEST = 2.0
"""The least width of a bar, so that what ran for a moment is seen, too."""
COLOURS = 6
"""The number of colours that the style sheet has."""
MAX_NAMED = 12


@dataclass(frozen=True, slots=True)
class Bar:
    """All spans of one job in a lane. ``colour``: the number of a colour, the same for a job in every lane."""

    colour: int
    title: str
    path: str


@dataclass(frozen=True, slots=True)
class Legend:
    """The jobs that most trials are of, each with its colour and name; how many others there are."""

    jobs: tuple[tuple[int, str, str], ...]
    others: int


def colour_of(job: ActiveJob) -> int:
    """Jobs that were submitted one after another differ."""
    return job.number % COLOURS


def lane_of(spans: Sequence[Span], jobs: Mapping[str, ActiveJob], seconds: float) -> tuple[Bar, ...]:
    """A bar for each job, in the order of their first spans."""
    by_job: dict[str, list[Span]] = {}
    for span in spans:
        by_job.setdefault(span.job_id, []).append(span)
    return tuple(_bar(jobs[job_id], own, seconds) for job_id, own in by_job.items())


def spoken(spans: Sequence[Span], seconds: float) -> str:
    """A lane in words."""
    if not spans:
        return f"measured nothing in {format_duration(seconds, whole=True)}"
    busy_s, trials = sum(span.end_s - span.start_s for span in spans), sum(span.trials for span in spans)
    window = format_duration(seconds, whole=True)
    return f"measured for {format_duration(busy_s, whole=True)} of {window}, {trials} trials"


def legend_of(spans: Iterable[Span], jobs: Mapping[str, ActiveJob]) -> Legend:
    trials: dict[str, int] = {}
    for span in spans:
        trials[span.job_id] = trials.get(span.job_id, 0) + span.trials
    ranked = sorted(trials, key=lambda job_id: -trials[job_id])
    named = sorted((jobs[job_id] for job_id in ranked[:MAX_NAMED]), key=lambda job: job.number)
    return Legend(tuple((colour_of(job), job.id, job.name or job.id) for job in named), len(ranked) - len(named))


def _bar(job: ActiveJob, spans: Sequence[Span], seconds: float) -> Bar:
    trials, failed = sum(span.trials for span in spans), sum(span.failed for span in spans)
    title = f"{job.name or job.id}: {trials} trials" + (f", {failed} failed" if failed else "")
    return Bar(colour_of(job), title, "".join(_rectangle(span, WIDTH / seconds) for span in spans))


def _rectangle(span: Span, scale: float) -> str:
    width = max(NARROWEST, (span.end_s - span.start_s) * scale)
    left = min(span.start_s * scale, WIDTH - width)
    return f"M{left:.1f} 0h{width:.1f}v{HEIGHT}h-{width:.1f}z"
