"""A job in words, for `show`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shapewright.cli.outcomes import NOTHING, OUTCOME_COLUMNS, outcome_rows
from shapewright.cli.output import table, yes_no
from tuner.durations import format_duration
from tuner.program.job.cache import Cache
from tuner.search.outcome import Outcome, total_of
from tuner.search.summary import PAST_SEARCH, JobSummary, SearchSummary

FACTS = ("id", "name", "state", "error", "device", "worker", "created_at", "started_at", "ended_at")
TOLD = frozenset({"trials", "trials_budget", "failed", "ended_by", "reason", "objective_s", "outcome"})
"""Figures that the lines about trials and about the outcome have."""
OF_LIBRARY_OR_SEARCH = frozenset({"library_objective_s", "speedup_vs_default", "speedup_vs_numpy"})
"""Figures that the outcome is made of: a second number for the same thing would only confuse."""


def described(job: Mapping[str, Any]) -> str:
    """Its facts, what its searches came to, and a line for each of its search tasks and for their total."""
    summaries = JobSummary.from_json(job["summary"]).tasks
    facts = [(name.removesuffix("_at"), str(job[name])) for name in FACTS if job[name] not in (None, "")]
    caches = sorted({task["cache"] for task in job["tasks"]} - {Cache.WARM.value})
    facts += [("caches", ", ".join(caches))] if caches else []
    facts.append(("trials", trials(job, list(summaries.values()))))
    outcome = _outcome(job, summaries)
    facts += [("objective", format_duration(outcome.objective_s))] if outcome.objective_s is not None else []
    facts += [("speed-up", str(outcome))] if outcome.ratios else []
    facts += figures(next(iter(summaries.values()))) if len(job["tasks"]) == len(summaries) == 1 else []
    width = max(len(name) for name, _ in facts)
    return "\n".join([*(f"{name.ljust(width)}  {text}" for name, text in facts), "", task_table(job)])


def task_table(job: Mapping[str, Any]) -> str:
    """A line for each search task, and one for the total of several."""
    summaries = JobSummary.from_json(job["summary"]).tasks
    parts = [(task["workload"], task["count"], summaries.get(task["position"])) for task in job["tasks"]]
    ends = [(task["workload_key"], task["target_fingerprint"], yes_no(task["done"])) for task in job["tasks"]]
    rows = outcome_rows(parts)
    total = [(*row, NOTHING, NOTHING, NOTHING) for row in rows[len(ends) :]]
    lines = [(*row, *end) for row, end in zip(rows, ends, strict=False)]
    return table((*OUTCOME_COLUMNS, "KEY", "TARGET", "DONE"), [*lines, *total])


def ended_text(job: Mapping[str, Any]) -> str:
    """``job-1  COMPLETED  35 of 128 trials, out of time  1.18x over the default (library, timed at the end)  KEY``

    Of several search tasks a line each, and their total, come below it in place of the keys.
    """
    summaries, rows = JobSummary.from_json(job["summary"]).tasks, job["tasks"]
    line = [job["id"], job["state"], trials(job, list(summaries.values()), " trials"), str(_outcome(job, summaries))]
    several = len(rows) > 1
    text = "  ".join(filter(None, [*line, *([] if several else job["workload_keys"])]))
    return f"{text}\n{task_table(job)}" if several else text


def _outcome(job: Mapping[str, Any], summaries: Mapping[int, SearchSummary]) -> Outcome:
    """What the searches that have begun came to together."""
    counts = {task["position"]: task["count"] for task in job["tasks"]}
    return total_of([(counts.get(position, 1), summary.outcome) for position, summary in summaries.items()])


def trials(job: Mapping[str, Any], summaries: list[SearchSummary], noun: str = "") -> str:
    """``35 of 128 (1 failed), out of time``; ``noun`` comes after the numbers."""
    budget = (job["spec"].get("budget") or {}).get("trials")
    of = f" of {budget}" if budget is not None else ""
    failed = sum(summary.failed for summary in summaries)
    endings = dict.fromkeys(filter(None, (summary.ending for summary in summaries)))
    return ", ".join([f"{job['trials']}{of}{noun}" + (f" ({failed} failed)" if failed else ""), *endings])


def standing(job: Mapping[str, Any], summaries: Sequence[SearchSummary]) -> str:
    """``job job-1 is RUNNING: 35 of 128 trials, searching, 2 min left``; of the last of several searches."""
    text = f"job {job['id']} is {job['state']}"
    if not summaries:
        return text
    current = summaries[-1]
    parts = [current.trials_text]
    if job["state"] == "RUNNING":
        parts.append(current.activity)
        if current.phase not in PAST_SEARCH and (left_s := current.remaining_s) is not None:
            parts.append(f"{format_duration(left_s, whole=True)} left")
    return f"{text}: {', '.join(parts)}"


def figures(summary: SearchSummary) -> list[tuple[str, str]]:
    """The other figures of a search that are known, each with its name."""
    rows = [("reused", text)] if (text := str(summary.reused or "")) else []
    rows += [("compared", summary.comparison.conditions)] if summary.comparison else []
    for name, value in summary.to_json().items():
        if name in TOLD or name in OF_LIBRARY_OR_SEARCH or value in (None, "") or isinstance(value, dict):
            continue
        if name.endswith("_s") or name == "seconds_budget":
            rows.append((_words(name.removesuffix("_s")), format_duration(float(value))))
        else:
            rows.append((_words(name), str(value)))
    return rows


def _words(name: str) -> str:
    return name.replace("_", " ")
