"""A reported job as HTML: everything that the page needs is inside it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Template

from shapewright.cli.describe import figures as summary_figures
from shapewright.report.sources import ReportedJob, ReportedTask
from tuner import figures
from tuner.durations import format_duration
from tuner.figures.html import html_environment
from tuner.figures.instances import instance_lines
from tuner.program.job.cache import Cache
from tuner.program.language.workload import JsonObject
from tuner.search.outcome import Outcome, total_of
from tuner.search.summary import JobSummary, SearchSummary
from tuner.storage import JobEvent

DRAWN = frozenset({"trials", "progress", "importance"})
"""Kinds of events that the figures show."""
MAX_EVENTS = 1000
FACTS = ("state", "error", "device", "worker", "trials", "created_at", "started_at", "ended_at")
NOTHING = "–"


def render(job: ReportedJob) -> str:
    """The page. All values are escaped."""
    log = [event for event in job.events if event.kind not in DRAWN]
    return _template().render(
        name=job.facts["name"] or job.facts["id"],
        id=job.facts["id"],
        headline=_headline(job),
        facts=[(name.removesuffix("_at"), job.facts[name]) for name in FACTS if job.facts.get(name) not in (None, "")],
        tasks=[_task(job, task) for task in job.tasks],
        log=[(event.created_at, event.kind, _text(event)) for event in log[-MAX_EVENTS:]],
        left_out=max(0, len(log) - MAX_EVENTS),
        drawn=len(job.events) - len(log),
        themes={"light": dict(figures.LIGHT), "dark": dict(figures.DARK)},
        config=dict(figures.PAGE_CONFIG),
        plotly=figures.script(),
    )


@cache
def _template() -> Template:
    return html_environment(Path(__file__).parent).get_template("report.html")


def _summary(job: ReportedJob, task: ReportedTask) -> SearchSummary | None:
    """The summary of one search task; None before it begins."""
    return JobSummary.from_json(job.facts.get("summary") or {}).tasks.get(task.position)


def _outcome(job: ReportedJob) -> Outcome | None:
    """What the searches of the job came to together; None before the first begins."""
    summary = JobSummary.from_json(job.facts.get("summary") or {})
    counts = {task.position: task.count for task in job.tasks}
    parts = [(counts.get(position, 1), part.outcome) for position, part in summary.tasks.items()]
    return total_of(parts) if parts else None


def _headline(job: ReportedJob) -> str:
    """What came of it in one sentence: ``1.50x over NumPy's BLAS (1.46x to 1.55x) (library, ...).``"""
    text = str(_outcome(job) or "")
    return f"{text}." if text else "Nothing to compare yet."


def _task(job: ReportedJob, task: ReportedTask) -> JsonObject:
    view, summary = task.view, _summary(job, task)
    outcome = str(summary.outcome) if summary else ""
    about = [
        ("workload", str(view.task.workload)),
        ("key", view.task.workload.key),
        ("target", task.target_fingerprint),
        ("threads", str(view.task.threads)),
        *([] if view.task.cache is Cache.WARM else [("caches", view.task.cache.value)]),
        *([("speed-up", outcome)] if outcome else []),
        *(summary_figures(summary) if summary else ()),
    ]
    return {
        "position": task.position,
        "workload": str(view.task.workload),
        "facts": about,
        "kernels": [(view.label(kernel), kernel.id, kernel.shown) for kernel in view.chosen],
        "instances": _instances(task),
        "figures": [
            {
                "id": f"{spec.name}-{task.position}",
                "title": spec.title,
                "caption": spec.caption,
                "document": figures.document(figures.figure(spec.name, view)),
            }
            for spec in figures.FIGURES.values()
        ],
    }


def _instances(task: ReportedTask) -> list[tuple[str, ...]]:
    """The table of instances: shape, weight, kernel, and the times of the library, of the default and of NumPy."""
    return [
        (
            line.shape,
            f"{line.instance.weight:g}",
            line.label or NOTHING,
            *(_time(each) for each in (line.latency_s, line.default_s, line.numpy_s)),
        )
        for line in instance_lines(task.view)
    ]


def _time(seconds: float | None) -> str:
    return NOTHING if seconds is None else format_duration(seconds)


def _text(event: JobEvent) -> str:
    """What an event says, in words where it has some."""
    for name in ("message", "state"):
        if name in event.data:
            more = event.data.get("error")
            return f"{event.data[name]}{f': {more}' if more else ''}"
    return ", ".join(f"{name} {value}" for name, value in event.data.items())
