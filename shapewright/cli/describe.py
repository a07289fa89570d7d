"""A job in words, for `show`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shapewright.cli.output import table, yes_no
from tuner.durations import format_duration
from tuner.search.summary import JobSummary, SearchSummary

FACTS = ("id", "name", "state", "error", "device", "worker", "created_at", "started_at", "ended_at")
TRIALS = frozenset({"trials", "trials_budget", "failed"})
"""Figures that the line about trials has."""
SPEEDUPS = {"speedup_vs_default": ("speed-up", "the default"), "speedup_vs_numpy": ("speed-up, NumPy", "NumPy's BLAS")}


def described(job: Mapping[str, Any]) -> str:
    """Its facts, the figures of its search if that is one, and a line for each of its search tasks."""
    facts = [(name.removesuffix("_at"), str(job[name])) for name in FACTS if job[name] not in (None, "")]
    rows = table(
        ("TASK", "WORKLOAD", "KEY", "TARGET", "DONE"),
        (
            (task["position"], task["workload"], task["workload_key"], task["target_fingerprint"], yes_no(task["done"]))
            for task in job["tasks"]
        ),
    )
    summaries = list(JobSummary.from_json(job["summary"]).tasks.values())
    facts.append(("trials", trials(job, sum(summary.failed for summary in summaries))))
    facts += figures(summaries[0]) if len(job["tasks"]) == len(summaries) == 1 else []
    width = max(len(name) for name, _ in facts)
    return "\n".join([*(f"{name.ljust(width)}  {text}" for name, text in facts), "", rows])


def trials(job: Mapping[str, Any], failed: int) -> str:
    """``12 of 12 (1 failed)``"""
    budget = (job["spec"].get("budget") or {}).get("trials")
    of = f" of {budget}" if budget is not None else ""
    return f"{job['trials']}{of}" + (f" ({failed} failed)" if failed else "")


def figures(summary: SearchSummary) -> list[tuple[str, str]]:
    """The figures of a search that are known, each with its name."""
    rows = []
    for name, value in summary.to_json().items():
        if name in TRIALS or value in (None, ""):
            continue
        if name in SPEEDUPS:
            title, rival = SPEEDUPS[name]
            rows.append((title, f"{value:.2f}x over {rival}"))
        elif name.endswith("_s") or name == "seconds_budget":
            rows.append((_words(name.removesuffix("_s")), format_duration(float(value))))
        else:
            rows.append((_words(name), str(value)))
    return rows


def _words(name: str) -> str:
    return name.replace("_", " ")
