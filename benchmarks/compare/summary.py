"""What rows come to: ratios by rival, operator, workload and seed, with intervals; and what does not apply.

A ratio is a rival's seconds over ours: above 1 ours is faster.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.compare.rows import BEST, against_best, fastest_vendor
from benchmarks.harness.results import Report, Row, grouped
from benchmarks.harness.turns import geomean, interval
from benchmarks.rivals import OURS
from tuner.program.language.workload import format_shape

SHORTEST_S = 20e-6
"""The benchmark of kernels leaves shapes that ours serves faster than this out of its means: a call's own cost decides
there."""
Ratio = Callable[[Row], float | None]


def against(name: str) -> Ratio:
    """How many times faster than one rival ours is; None where that was not timed."""
    return lambda row: row["vs"].get(name)


def bandwidth(row: Row) -> float | None:
    """The share of the stream's rate; None where operands fit the cache, or no stream was timed."""
    return row.get("bandwidth_fraction")


def ratios(rows: Iterable[Row], ratio: Ratio = against_best) -> list[float]:
    """The ratio of every row that has one."""
    return [value for row in rows if (value := ratio(row)) is not None]


def mean(ratio: Ratio, rows: Iterable[Row]) -> float | None:
    """The geometric mean of the ratios; None if no row has one."""
    values = ratios(rows, ratio)
    return geomean(values) if values else None


def interval_of(rows: Iterable[Row], rival: str = BEST) -> tuple[float, float] | None:
    """The interval of the geometric mean of ours against a rival, from the rows' own samples; None without a row."""
    named = ((row["samples_s"], fastest_vendor(row) if rival == BEST else rival) for row in rows)
    pairs = [(samples[name], samples[OURS]) for samples, name in named if name in samples]
    return interval(pairs) if pairs else None


def held_out(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if not row["tuned_on"]]


def _of_all(report: Report) -> dict[str, Any]:
    """What tuning took, how many kernels the libraries have, the largest error."""
    return {
        "tuning_s": sum(item["elapsed_s"] for item in report.tuning),
        "trials": sum(item["trials"] for item in report.tuning),
        "kernels": {item["workload"]: item["kernels"] for item in report.tuning},
        "max_abs_error": max((row["max_abs_error"] for row in report.rows), default=None),
    }


def of_kernels(report: Report) -> dict[str, Any]:
    counted = [row for row in report.rows if row["ours_s"] >= SHORTEST_S and row["rivals_s"]]
    names = dict.fromkeys(name for row in counted for name in row["rivals_s"])
    regrets = [row["regret"] for row in report.rows if "regret" in row]
    return {
        "geomean_vs": {name: mean(against(name), counted) for name in names},
        "geomean_vs_best": mean(against_best, counted),
        "interval_vs_best": interval_of(counted),
        "geomean_vs_best_held_out": mean(against_best, held_out(counted)),
        "worst_vs_best": min(ratios(counted), default=None),
        "regret": geomean([1.0 + regret for regret in regrets]) - 1.0 if regrets else None,
        "regret_worst": max(regrets, default=None),
        **_of_all(report),
    }


def of_operators(report: Report) -> dict[str, Any]:
    """The summary of one seed's rows. Every shape counts in the means."""
    rows, by_rival = report.rows, dict[str, dict[str, Any]]()
    rivals = list(dict.fromkeys(name for row in rows for name in row["vs"]))
    operators = {name: _by_rival(own, rivals) for name, own in grouped(rows, "operator").items()}
    for name in rivals:
        worst = min((row for row in rows if name in row["vs"]), key=lambda row: float(row["vs"][name]))
        figures = {
            "geomean_vs": mean(against(name), rows),
            "interval_vs": interval_of(rows, name),
            "geomean_vs_held_out": mean(against(name), held_out(rows)),
            "geomean_over_operators": geomean([each[name]["geomean"] for each in operators.values() if name in each]),
            "worst_vs": worst["vs"][name],
            "worst_at": {"workload": worst["workload"], "shape": format_shape(worst["shape"])},
        }
        for figure, value in figures.items():
            by_rival.setdefault(figure, {})[name] = value
    return {
        **by_rival,
        "by_operator": operators,
        "by_workload": {name: _by_rival(own, rivals) for name, own in grouped(rows, "workload").items()},
        "bandwidth_fraction": mean(bandwidth, rows),
        "bandwidth_fraction_worst": min(ratios(rows, bandwidth), default=None),
        **_of_all(report),
    }


def _by_rival(rows: Sequence[Row], rivals: Iterable[str]) -> dict[str, dict[str, float]]:
    """``lost``: the share of shapes where ours is slower."""
    timed = {name: ratios(rows, against(name)) for name in rivals}
    return {
        name: {
            "geomean": geomean(values), "least": min(values), "lost": sum(value < 1 for value in values) / len(values),
            "shapes": len(values),
        }
        for name, values in timed.items() if values
    }  # fmt: skip


def over_seeds(report: Report) -> dict[str, Any]:
    """``summary``: the medians over the seeds; ``by_seed``: the summary of each; ``not_applicable``."""
    each = {}
    for seed in dict.fromkeys(row["seed"] for row in report.rows):
        rows, tuning = ([item for item in items if item["seed"] == seed] for items in (report.rows, report.tuning))
        each[str(seed)] = of_operators(Report(rows, tuning))
    return {"summary": medians(list(each.values())), "by_seed": each, "not_applicable": not_applicable(report)}


def medians(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The median of every number, by its place; what is no number is kept where all agree. A figure that some
    summaries lack is of the others."""
    result: dict[str, Any] = {}
    for name in dict.fromkeys(name for summary in summaries for name in summary):
        values = [summary[name] for summary in summaries if summary.get(name) is not None]
        if values and all(isinstance(value, Mapping) for value in values):
            result[name] = medians(values)
        elif values and all(isinstance(value, int | float) for value in values):
            result[name] = statistics.median(values)
        elif all(value == values[0] for value in values):
            result[name] = values[0] if values else None
    return result


def not_applicable(report: Report) -> dict[str, dict[str, str]]:
    """Why a rival was not timed at a workload's shapes, and at which first, unless at all; by rival and workload."""
    result: dict[str, dict[str, str]] = {}
    for key, reason in report.skipped.items():
        workload, _, rival = key.rpartition("/")
        result.setdefault(rival, {})[workload] = reason
    for row in report.rows:
        for rival, reason in row["not_timed"].items():
            result.setdefault(rival, {}).setdefault(row["workload"], f"at {format_shape(row['shape'])}: {reason}")
    return result
