"""Timing in turns: CUDA graphs of launches, replayed between events."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

ROUNDS = 7
SLOW = 3.0
"""A kernel so many times slower than the fastest is not timed again."""


class Timer:
    """CUDA graphs of launches, replayed between events."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(400)]

    def once(self, call: Callable[[int], Any]) -> float:
        """Microseconds of a launch, its start included."""
        call(0)
        torch.cuda.synchronize()
        first, last = self.events[:2]
        first.record(self.stream)
        call(0)
        last.record(self.stream)
        torch.cuda.synchronize()
        return float(first.elapsed_time(last)) * 1e3

    def graph(self, call: Callable[[int], Any], launches: int) -> Any:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            for number in range(launches):
                call(number)
        return graph

    def round(self, graphs: Sequence[Any]) -> list[float]:
        """Microseconds of a replay of each."""
        for place, graph in enumerate(graphs):
            self.events[2 * place].record(self.stream)
            graph.replay()
            self.events[2 * place + 1].record(self.stream)
        torch.cuda.synchronize()
        pairs = [(self.events[2 * place], self.events[2 * place + 1]) for place in range(len(graphs))]
        return [float(first.elapsed_time(last)) * 1e3 for first, last in pairs]


def measure(timer: Timer, calls: Mapping[str, Callable[[int], Any]], sets: int, rounds: int = ROUNDS) -> dict[str, Any]:
    """The median of each call in microseconds, with the quartile distance over it; all in turns."""
    starts = {name: timer.once(call) for name, call in calls.items()}
    fastest = min(starts.values())
    launches = 20 if fastest < 100 else 5 if fastest < 500 else 1
    launches = max(launches, min(sets, 100)) if sets > 1 else launches
    graphs, failed = dict[str, Any](), dict[str, str]()
    for name, call in calls.items():
        try:
            graphs[name] = timer.graph(call, launches)
        except Exception as error:
            failed[name] = str(error)[:200]
    names = list(graphs)
    timer.round([graphs[name] for name in names])
    found: dict[str, list[float]] = {name: [] for name in names}
    active = list(names)
    for number in range(rounds):
        random.shuffle(active)
        for name, value in zip(active, timer.round([graphs[name] for name in active]), strict=True):
            found[name].append(value / launches)
        if number == 0:
            best = min(values[0] for values in found.values())
            active = [name for name in active if found[name][0] <= SLOW * best]
    spread = {name: _spread(values) for name, values in found.items()}
    medians = {name: round(statistics.median(values), 3) for name, values in found.items()}
    return {"us": medians, "spread": spread, "launches": launches, "rounds": rounds, "failed": failed}


def _spread(values: Sequence[float]) -> float:
    if len(values) < 4:
        return -1.0
    low, _, high = statistics.quantiles(values, n=4)
    return round((high - low) / statistics.median(values), 4)
