"""Libraries in words, for `pull` and `history`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shapewright.cli.output import table
from tuner.durations import format_duration
from tuner.program.job.cache import Cache
from tuner.search.verdict import within

Library = Mapping[str, Any]
TOLD = 3
"""Alternatives that `pull` prints; its JSON has all."""
EQUAL = 0.005
"""Ratios nearer to 1 than that are shown as equal."""


def described_library(directory: Path, served: Library) -> str:
    """Where it is, what it is, whose it is, and how it compares."""
    how = f"{served['threads']} thread{'s' * (served['threads'] != 1)}{Cache(served['cache']).note}"
    lines = [
        f"{directory}: library {served['digest']} for {served['target_fingerprint']}",
        f"  built by job {served['job_id']}, {served['created_at']}, for {_range(served)} with {how}{_names(served)}",
    ]
    if (cores := served.get("tuned_on_cores")) is not None:
        lines.append(f"  tuned on {cores} cores of this CPU: there is none for this machine's number of cores")
    if (wanted := served.get("stands_in_for")) is not None:
        lines.append(f"  for another GPU of the same instruction set: there is none for {wanted}")
    if served["wrong_kernel"]:
        lines.append(f"  WITHDRAWN: its kernel {served['wrong_kernel']} was found wrong or crashed since")
    if served["expected_s"] is not None:
        points, measured = served["points"], served["measured"]
        basis = "measured" if measured == points else f"{measured} measured, the others predicted"
        lines.append(f"  {format_duration(served['expected_s'])} in the weighted mean of {points} shapes, {basis}")
    alternatives = served["alternatives"]
    lines += [f"  {_compared(each)}" for each in alternatives[:TOLD]]
    if len(alternatives) > TOLD:
        lines.append(f"  and {len(alternatives) - TOLD} more: shapewright history {served['workload_key']}")
    return "\n".join(lines)


def described_history(libraries: Sequence[Library], promotions: Sequence[Mapping[str, Any]]) -> str:
    """A table of libraries, and one of promotions if there are any."""
    built = table(
        ("BUILT", "JOB", "RANGE", "THREADS", "CACHES", "STATE", "COMPARED", "NAMES", "DIGEST"),
        (
            (
                each["created_at"],
                each["job_id"],
                _range(each),
                each["threads"],
                each["cache"],
                _state(each),
                _comparison(each["comparison"]),
                ",".join(each["aliases"]),
                each["digest"],
            )
            for each in libraries
        ),
    )
    if not promotions:
        return built
    named = table(
        ("AT", "NAME", "ACTION", "BY", "DIGEST", "REASON"),
        (
            (each["at"], each["name"], each["action"], each["by"], each["digest"] or "deleted", each["reason"])
            for each in promotions
        ),
    )
    return f"{built}\n\n{named}"


def _state(library: Library) -> str:
    if library["wrong_kernel"]:
        return "withdrawn"
    if library["superseded_by"]:
        return "kept"
    return "served" if library["served"] else "beside"


def _compared(other: Mapping[str, Any]) -> str:
    whose = f"{other['digest'][:12]} of job {other['job_id']}"
    ratio = other["ratio"]
    if ratio is None:
        return f"not comparable with {whose}"
    how = "timed in turns" if other["timed_in_turns"] else "by recorded latencies"
    if abs(ratio - 1) < EQUAL:
        return f"as fast as {whose}, {how}"
    return f"{ratio:.2f}x as fast as {whose}, {how}"


def _comparison(comparison: Mapping[str, Any] | None) -> str:
    if comparison is None:
        return ""
    ratio, noise, against = comparison["ratio"], comparison["noise"], str(comparison["against"])[:12]
    speed = f"not comparable with {against}" if ratio is None or noise is None else str(within(against, ratio, noise))
    return speed + ("" if comparison["verified"] else ", not verified")


def _names(library: Library) -> str:
    return f", called {', '.join(library['aliases'])}" if library["aliases"] else ""


def _range(library: Library) -> str:
    return str(library["made_for"])
