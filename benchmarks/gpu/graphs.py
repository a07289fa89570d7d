"""Timing in turns: CUDA graphs of calls, replayed between events."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.gpu.contest import Call

ROUNDS = 7
SLOW = 3.0
"""A kernel so many times slower than the fastest is not timed again."""


def measure(calls: Mapping[str, Call]) -> dict[str, Any]:
    """The median of each call in microseconds, with the quartile distance over it; all in turns."""
    for call in calls.values():
        call()
    fastest = min(_microseconds([call])[0] for call in calls.values())
    launches = 20 if fastest < 100 else 5 if fastest < 500 else 1
    graphs, failed = dict[str, torch.cuda.CUDAGraph](), dict[str, str]()
    for name, call in calls.items():
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                for _ in range(launches):
                    call()
            graphs[name] = graph
        except Exception as error:
            failed[name] = str(error)[:200]
    _microseconds([graph.replay for graph in graphs.values()])
    found: dict[str, list[float]] = {name: [] for name in graphs}
    active = list(graphs)
    for number in range(ROUNDS):
        random.shuffle(active)
        for name, value in zip(active, _microseconds([graphs[name].replay for name in active]), strict=True):
            found[name].append(value / launches)
        if number == 0:
            best = min(values[0] for values in found.values())
            active = [name for name in active if found[name][0] <= SLOW * best]
    spread = {name: _spread(values) for name, values in found.items()}
    medians = {name: round(statistics.median(values), 3) for name, values in found.items()}
    return {"us": medians, "spread": spread, "launches": launches, "rounds": ROUNDS, "failed": failed}


def _microseconds(calls: Sequence[Call]) -> list[float]:
    """Of each call, its start included."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in calls]
    torch.cuda.synchronize()
    for (first, last), call in zip(events, calls, strict=True):
        first.record()
        call()
        last.record()
    torch.cuda.synchronize()
    return [float(first.elapsed_time(last)) * 1e3 for first, last in events]


def _spread(values: Sequence[float]) -> float:
    if len(values) < 4:
        return -1.0
    low, _, high = statistics.quantiles(values, n=4)
    return round((high - low) / statistics.median(values), 4)
