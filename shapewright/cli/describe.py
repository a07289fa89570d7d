"""A job in words, for `show`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shapewright.cli.output import table, yes_no
from tuner.durations import format_duration

FACTS = ("id", "name", "state", "error", "device", "worker", "created_at", "started_at", "ended_at")
TOLD = frozenset({"trials", "trials_budget", "failed"})
"""Members of a summary that the line about trials tells."""


def described(job: Mapping[str, Any]) -> str:
    """Its facts, how its search stands, and a line for each of its search tasks."""
    facts = [(name.removesuffix("_at"), str(job[name])) for name in FACTS if job[name] not in (None, "")]
    rows = table(
        ("TASK", "WORKLOAD", "KEY", "TARGET", "DONE"),
        (
            (task["position"], task["workload"], task["workload_key"], task["target_fingerprint"], yes_no(task["done"]))
            for task in job["tasks"]
        ),
    )
    facts += [("trials", trials(job)), *standing(job["summary"])]
    width = max(len(name) for name, _ in facts)
    return "\n".join([*(f"{name.ljust(width)}  {text}" for name, text in facts), "", rows])


def trials(job: Mapping[str, Any]) -> str:
    """``12 of 12 (1 failed)``"""
    budget = (job["spec"].get("budget") or {}).get("trials")
    failed = job["summary"].get("failed")
    of = f" of {budget}" if budget is not None else ""
    return f"{job['trials']}{of}" + (f" ({failed} failed)" if failed else "")


def standing(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The figures of a search, by what they are called. Those that this version does not know are told as they are."""
    found = []
    for name, value in summary.items():
        if name in TOLD or value is None or not isinstance(value, int | float | str):
            continue
        if name == "speedup_vs_default":
            found.append(("speed-up", f"{value:.2f}x over the default"))
        elif name.endswith("_s"):
            found.append((_words(name[:-2]), format_duration(float(value))))
        elif name == "seconds_budget":
            found.append((_words(name), format_duration(float(value))))
        else:
            found.append((_words(name), yes_no(value) if isinstance(value, bool) else str(value)))
    return found


def _words(name: str) -> str:
    return name.replace("_", " ")
