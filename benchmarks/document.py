"""The JSON document of a benchmark: rows, what they come to, and how they were measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.alternating import geomean
from benchmarks.timing import NO_VENDORS, Row, against_best

SHORTEST_S = 20e-6
"""Shapes that ours serves faster than this are reported and left out of the means: a call's own cost decides there."""
LARGE_M = 1024


@dataclass
class Report:
    """The rows and facts that the document is made of."""

    rows: list[Row] = field(default_factory=list)
    tuning: list[dict[str, Any]] = field(default_factory=list)
    rival_tuning: list[dict[str, Any]] = field(default_factory=list)
    """What rivals that search spent: workload, rival, trials, elapsed_s."""
    skipped: dict[str, str] = field(default_factory=dict)
    searches: list[dict[str, Any]] = field(default_factory=list)
    """Searches for pictures: workload, task, progress, and the results where they are kept."""


@dataclass(frozen=True)
class Timing:
    """How contenders are timed, in words; benchmarks/alternating.py does it."""

    order: str = "alternating samples, rotating order"
    sample: str = "as many calls as 4 ms take, one at least; up to 7 samples, 3 at least"
    value: str = "median; of three such timings where the first was doubtful (timings has all)"
    cache: str = "warm"


def document_of(report: Report, summary: Mapping[str, Any], protocol: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "rows": report.rows,
        "summary": summary,
        "searches": report.searches,
        "protocol": {
            **protocol,
            "timing": asdict(Timing()),
            "left_out_of_means_below_s": SHORTEST_S,
            "not_among_the_best_rival": list(NO_VENDORS),
            "skipped": report.skipped,
            "tuning": report.tuning,
            "rival_tuning": report.rival_tuning,
        },
    }


def summary_of(report: Report) -> dict[str, Any]:
    """The summary of the benchmark of kernels."""
    counted = [row for row in report.rows if row["ours_s"] >= SHORTEST_S and row["rivals_s"]]
    held_out = [row for row in counted if not row["tuned_on"]]
    large = [row for row in counted if row["extents"].get("m", 0) >= LARGE_M]
    names = list(dict.fromkeys(name for row in counted for name in row["rivals_s"]))
    best, regrets = ratios(counted), [row["regret"] for row in report.rows if "regret" in row]
    return {
        "geomean_vs": {name: mean(against(name), counted) for name in names},
        "geomean_vs_best": mean(against_best, counted),
        "geomean_vs_best_held_out": mean(against_best, held_out),
        "worst_vs_best": min(best, default=None),
        "geomean_vs_best_by_workload": {
            name: mean(against_best, [row for row in counted if row["workload"] == name])
            for name in dict.fromkeys(row["workload"] for row in counted)
        },
        "peak_fraction_large_m": geomean([row["peak_fraction"] for row in large]) if large else None,
        **spent(report),
        "regret": geomean([1.0 + regret for regret in regrets]) - 1.0 if regrets else None,
        "regret_worst": max(regrets, default=None),
        "max_abs_error": max(row["max_abs_error"] for row in report.rows),
    }


def spent(report: Report) -> dict[str, Any]:
    """What tuning took, and how many kernels the libraries have."""
    return {
        "tuning_s": sum(item["elapsed_s"] for item in report.tuning),
        "trials": sum(item["trials"] for item in report.tuning),
        "kernels": {item["workload"]: item["kernels"] for item in report.tuning},
    }


def against(name: str) -> Callable[[Row], float | None]:
    """How many times faster than one rival ours is; None where that was not timed."""

    def ratio(row: Row) -> float | None:
        return row["rivals_s"][name] / row["ours_s"] if name in row["rivals_s"] else None

    return ratio


def ratios(rows: Sequence[Row], ratio: Callable[[Row], float | None] = against_best) -> list[float]:
    """The ratio of every row that has one."""
    return [value for row in rows if (value := ratio(row)) is not None]


def mean(ratio: Callable[[Row], float | None], rows: Sequence[Row]) -> float | None:
    """The geometric mean of the ratios; None if no row has one."""
    values = ratios(rows, ratio)
    return geomean(values) if values else None
