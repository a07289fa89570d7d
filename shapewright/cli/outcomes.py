"""What searches came to, as tables and as text: the same figures as everywhere (tuner.search.outcome)."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.durations import format_duration
from tuner.search.outcome import Outcome, total_of
from tuner.search.summary import SearchSummary
from tuner.search.verdict import DEFAULT, NUMPY, Ratio

OUTCOME_COLUMNS = ("TASK", "WORKLOAD", "COUNT", "TRIALS", "TIME", "VS DEFAULT", "VS NUMPY", "OF")
NOTHING = "-"
MAX_WORKLOAD = 60
"""Characters of a workload in a table."""


def trials_of(summary: SearchSummary) -> str:
    """``35 of 128, out of time``"""
    budget = f" of {summary.trials_budget}" if summary.trials_budget is not None else ""
    ending = summary.ending
    return f"{summary.trials}{budget}" + (f", {ending}" if ending else "")


def outcome_rows(parts: Sequence[tuple[str, int, SearchSummary | None]]) -> list[tuple[str, ...]]:
    """A row of OUTCOME_COLUMNS for each search, given by its workload, count and summary, and one for their total."""
    rows: list[tuple[str, ...]] = [
        (str(position), _short(workload), str(count), trials_of(summary) if summary else NOTHING,
         *_figures(summary.outcome if summary else None))
        for position, (workload, count, summary) in enumerate(parts)
    ]  # fmt: skip
    begun = [(count, summary.outcome) for _, count, summary in parts if summary]
    if len(parts) > 1:
        trials = str(sum(summary.trials for _, _, summary in parts if summary))
        total = total_of(begun) if begun else None
        known = f"of {len(begun)} of {len(parts)} workloads" if len(begun) < len(parts) else "of all, by count"
        rows.append(("total", known, str(sum(count for _, count, _ in parts)), trials, *_figures(total)))
    return rows


def _figures(outcome: Outcome | None) -> tuple[str, str, str, str]:
    if outcome is None:
        return NOTHING, NOTHING, NOTHING, NOTHING
    time = NOTHING if outcome.objective_s is None else format_duration(outcome.objective_s)
    default, numpy = (NOTHING if ratio is None else _figure(ratio) for ratio in map(outcome.ratio, (DEFAULT, NUMPY)))
    return time, default, numpy, f"{outcome.label}{outcome.caution}"


def _figure(ratio: Ratio) -> str:
    return f"{ratio.figure} ({ratio.interval})" if ratio.interval else ratio.figure


def _short(workload: str) -> str:
    return workload if len(workload) <= MAX_WORKLOAD else f"{workload[: MAX_WORKLOAD - 3]}..."
