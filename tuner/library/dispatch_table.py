"""Dispatch tables as lookups read them: what a library runs at a shape, without what only a search needs.

A service reads thousands of them; to parse a whole search task for each would take most of its time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.library.dispatcher import (
    EXTENTS_FORMAT,
    FORMAT,
    Dispatcher,
    choose,
    is_within,
    kernel_json,
    tree_from_json,
)
from tuner.program.job.build import workload_from_stored
from tuner.program.job.range_text import Ranges
from tuner.program.language.spans import contains, span_from_json
from tuner.program.language.workload import JsonObject, Workload
from tuner.schedule.registry import current_version


class ServedTable:
    """The dispatch table of one library. Kernels are in the form of the public interface (``kernel_json``)."""

    def __init__(self, dispatch: JsonObject) -> None:
        """Read the content of a dispatch.json. Raises ShapewrightError for a format that this version does not know."""
        if dispatch.get("format") not in (EXTENTS_FORMAT, FORMAT):
            # Of the first release: its axes have to be translated.
            read = Dispatcher.from_json(dispatch)
            self.bounds, self._tree = dict(read.bounds), read.tree
            self.kernels = tuple(map(kernel_json, read.kernels))
        else:
            self.bounds = {name: (low, high) for name, (low, high) in dispatch["bounds"].items()}
            self._tree = tree_from_json(dispatch["tree"], {name: name for name in self.bounds})
            self.kernels = tuple(dispatch["kernels"])
        told = dispatch.get("made_for")
        self.made_for: Ranges = {name: span_from_json(span) for name, span in told.items()} if told else self.bounds
        self._workload_json, self._table = dispatch["workload"], dispatch["table"]

    def covers(self, dims: Mapping[str, int]) -> bool:
        """Whether the library was made for values around these; its safe kernel serves others."""
        return is_within(dims, self.bounds)

    def is_made_for(self, dims: Mapping[str, int]) -> bool:
        """Whether the library was made for just these values of the symbols."""
        return all(contains(span, dims[name]) for name, span in self.made_for.items())

    def kernel_at(self, dims: Mapping[str, int]) -> JsonObject:
        """The kernel that runs for these values of the symbols, inside the bounds or not."""
        return self.kernels[choose(self._tree, dims)]

    def predicted_latency_s(self, dims: Mapping[str, int]) -> float | None:
        """What is expected there: the table's row, or the nearest one's scaled by the work. None without a table."""
        points, logs, seconds = self._rows
        if not len(seconds):
            return None
        point = tuple(dims[name] for name in self.bounds)
        near = int(np.abs(logs - _logs([point])).sum(axis=1).argmin())
        at = tuple(points[near].tolist())
        if at == point:
            return float(seconds[near])
        names = list(self.bounds)
        work, its = (_work(self._workload, dict(zip(names, values, strict=True))) for values in (point, at))
        return float(seconds[near]) * work / its

    @property
    def _workload(self) -> Workload:
        return workload_from_stored(json.dumps(self._workload_json))

    @cached_property
    def _rows(self) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """The values of the symbols [rows, symbols], their logarithms, and the expected seconds [rows].

        Arrays: a service keeps thousands of tables. Of rows that only differ in the shape variables the first.
        """
        if not self._table:
            return np.empty((0, len(self.bounds)), np.int64), np.empty((0, len(self.bounds))), np.empty(0)
        # All rows at once: expressions take arrays as well as numbers. Of Python's integers, which do not overflow.
        shapes: dict[str, Any] = {
            name: np.array([row["shape"][name] for row in self._table], object) for name in self._table[0]["shape"]
        }
        dims = self._workload.dims(shapes)
        points = np.stack([dims[name] for name in self.bounds], axis=1).astype(np.int64)
        seconds = np.array([row["predicted_latency_s"] for row in self._table], np.float64)
        first = np.sort(np.unique(points, axis=0, return_index=True)[1])
        return points[first], _logs(points[first]), seconds[first]


def is_current(kernel: JsonObject) -> bool:
    """Whether a kernel in public form means to this version what it meant to the one that measured it."""
    result = kernel["kernel"]
    return bool(current_version(result["rule"]) == result["rule_version"])


def _logs(points: Sequence[tuple[int, ...]] | NDArray[np.int64]) -> NDArray[np.float64]:
    """[points, symbols]: what distances between shapes are measured in (see ``log_distance``)."""
    return np.log(np.maximum(np.array(points, np.float64), 0.0) + 1.0)


def _work(workload: Workload, dims: Mapping[str, int]) -> int:
    """Operations, or elements where a program only moves them; never 0."""
    return 1 + max(workload.flops(dims) or workload.points(dims), 0)
