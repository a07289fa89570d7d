"""What the rows of the benchmark of operators come to: ratios by shape, operator and seed, and what does not apply.

A ratio is a rival's seconds over ours. Every shape counts in the means; those without calls under SHORTEST_S are given,
too.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.alternating import geomean
from benchmarks.document import SHORTEST_S, Report, mean, ratios, spent
from benchmarks.timing import Row
from tuner.program.language.workload import format_shape

PYTORCH = ("torch", "mkl", "onednn", "compile")
BEST_PYTORCH = "best_pytorch"
"""The fastest of PYTORCH at a shape."""
Summary = Mapping[str, Any]


def add_ratios(row: Row) -> None:
    """``vs``: by rival, how many times faster than it ours is; the best way of PyTorch among them."""
    seconds = dict(row["rivals_s"])
    ways = [seconds[name] for name in PYTORCH if name in seconds]
    row["vs"] = {name: value / row["ours_s"] for name, value in seconds.items()}
    row["vs"] |= {BEST_PYTORCH: min(ways) / row["ours_s"]} if ways else {}


def add_bandwidth(row: Row, l2_bytes: int) -> None:
    """The share of the stream's rate where the operands exceed so many bytes; None elsewhere."""
    row["bandwidth_fraction"] = row["stream_s"] / row["ours_s"] if row["bytes"] > l2_bytes else None


def summary_of(report: Report) -> dict[str, Any]:
    """The summary of one seed's rows."""
    rows, rivals = report.rows, _rivals(report.rows)
    by_operator = {name: _by_rival(own, rivals) for name, own in _grouped(rows, "operator").items()}
    return {
        "geomean_vs": _means(rows, rivals),
        "geomean_vs_held_out": _means([row for row in rows if not row["tuned_on"]], rivals),
        "geomean_vs_long": _means([row for row in rows if row["ours_s"] >= SHORTEST_S], rivals),
        "geomean_over_operators": {
            name: geomean([each[name]["geomean"] for each in by_operator.values() if name in each]) for name in rivals
        },
        "worst_vs": {name: min(ratios(rows, _vs(name))) for name in rivals},
        "worst_at": {name: _worst_at(rows, name) for name in rivals},
        "by_operator": by_operator,
        "by_workload": {name: _by_rival(own, rivals) for name, own in _grouped(rows, "workload").items()},
        "bandwidth_fraction": mean(_bandwidth, rows),
        "bandwidth_fraction_worst": min(ratios(rows, _bandwidth), default=None),
        "bandwidth_fraction_by_workload": {
            name: mean(_bandwidth, own) for name, own in _grouped(rows, "workload").items()
        },
        **spent(report),
        "max_abs_error": max((row["max_abs_error"] for row in rows), default=None),
    }


def over_seeds(report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """The medians over the seeds, and the summary of each. With one seed both are the same."""
    seeds = dict.fromkeys(row["seed"] for row in report.rows)
    each = {str(seed): summary_of(of_seed(report, seed)) for seed in seeds}
    return medians(list(each.values())), each


def of_seed(report: Report, seed: int) -> Report:
    rows = [row for row in report.rows if row["seed"] == seed]
    return Report(rows, [item for item in report.tuning if item["seed"] == seed])


def medians(summaries: Sequence[Summary]) -> dict[str, Any]:
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
    """Why a rival was not timed at a workload's shapes, and at which, unless at all; by rival and workload."""
    result: dict[str, dict[str, str]] = {}
    for key, reason in report.skipped.items():
        workload, _, rival = key.rpartition("/")
        result.setdefault(rival, {})[workload] = reason
    for workload, rows in _grouped(report.rows, "workload").items():
        for rival in dict.fromkeys(name for row in rows for name in row["not_timed"]):
            result.setdefault(rival, {})[workload] = _reason(rival, rows)
    return result


def _reason(rival: str, rows: Iterable[Row]) -> str:
    """Each reason with the shapes that it holds for, unless it holds for all."""
    at: dict[str, dict[str, None]] = {}
    shapes = dict.fromkeys(format_shape(row["shape"]) for row in rows)
    for row in rows:
        if rival in row["not_timed"]:
            at.setdefault(row["not_timed"][rival], {})[format_shape(row["shape"])] = None
    if len(at) == 1 and len(next(iter(at.values()))) == len(shapes):
        return next(iter(at))
    return "; ".join(f"at {', '.join(where)}: {reason}" for reason, where in at.items())


def _rivals(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row["vs"]))


def _grouped(rows: Iterable[Row], field: str) -> dict[str, list[Row]]:
    result: dict[str, list[Row]] = {}
    for row in rows:
        result.setdefault(row[field], []).append(row)
    return result


def _means(rows: Sequence[Row], rivals: Iterable[str]) -> dict[str, float | None]:
    return {name: mean(_vs(name), rows) for name in rivals}


def _by_rival(rows: Sequence[Row], rivals: Iterable[str]) -> dict[str, dict[str, float]]:
    """The mean, the least ratio, the share of shapes where ours is slower, the shapes; by rival that was timed."""
    timed = {name: ratios(rows, _vs(name)) for name in rivals}
    return {
        name: {
            "geomean": geomean(values), "least": min(values), "lost": sum(value < 1 for value in values) / len(values),
            "shapes": len(values),
        }
        for name, values in timed.items() if values
    }  # fmt: skip


def _worst_at(rows: Sequence[Row], rival: str) -> dict[str, Any]:
    timed = [row for row in rows if rival in row["vs"]]
    worst = min(timed, key=lambda row: float(row["vs"][rival]))
    return {"workload": worst["workload"], "shape": format_shape(worst["shape"])}


def _vs(name: str) -> Callable[[Row], float | None]:
    return partial(_ratio, name)


def _ratio(name: str, row: Row) -> float | None:
    ratio: float | None = row["vs"].get(name)
    return ratio


def _bandwidth(row: Row) -> float | None:
    share: float | None = row["bandwidth_fraction"]
    return share
