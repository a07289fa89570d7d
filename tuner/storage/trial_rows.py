"""Trials as flat rows, for tables, CSV and data frames, from the JSON form that the service answers with.

A row has FIXED first, then ``shape_T`` for each shape variable of its instance and ``kernel_m_tile`` for each value of
its kernel, by the name that people are shown. Samples are a list, and no part of a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tuner.schedule.space import READABLE

FIXED = (
    *("seq", "created_at", "workload_key", "target_fingerprint", "threads", "phase", "round", "attempt"),
    *("latency_s", "predicted_s", "error_kind", "error", "build_s", "run_s", "anchor_s", "device"),
    *("kernel_id", "rule", "weight"),
)
SHAPE, KERNEL = "shape_", "kernel_"


def row_of(trial: Mapping[str, Any]) -> dict[str, Any]:
    """The row of one trial. Sizes are integers again, which JSON has made floating-point numbers."""
    kernel, instance = trial["kernel"], dict(trial["instance"])
    known = {**trial, "rule": kernel["rule"], "weight": instance.pop("weight", 1.0)}
    row = {name: known.get(name) for name in FIXED}
    row |= {f"{SHAPE}{name}": int(value) for name, value in instance.items()}
    return row | {f"{KERNEL}{READABLE.get(name, name)}": value for name, value in kernel["values"].items()}


def columns_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The columns that rows of several rules and workloads have together, in the order of a row."""
    names = dict.fromkeys(name for row in rows for name in row)
    further = [name for name in names if name not in FIXED]
    return [*FIXED, *(name for name in further if name.startswith(SHAPE)),
            *(name for name in further if not name.startswith(SHAPE))]  # fmt: skip
