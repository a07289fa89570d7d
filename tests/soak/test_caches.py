"""Calls of the same kernel, timed in each state of the caches on a real device: weights from memory take longer."""

from __future__ import annotations

import time

import pytest

from tuner.measure import Runner, RunRequest, TurnsRequest
from tuner.measure.local import local_tools
from tuner.program.job.cache import Cache
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar
from tuner.program.target import native
from tuner.schedule import default_kernel

pytestmark = pytest.mark.soak

T = ShapeVar("T", range(1, 5))
N, K = 3072, 768
LIMIT_S = 120.0
LONGER = 1.1
"""How many times as long calls with cold weights take at the least. It was 2.3 to 2.4 where L3 held the weights between
calls, 1.16 where neighbours of a virtual machine had most of it."""


def task_in(cache: Cache) -> SearchTask:
    return SearchTask("dense", {"m": "T", "n": N, "k": K}, (T,), [1, 2, 3, 4], target=native(), cache=cache.value)


def latencies(runner: Runner, request: RunRequest, cache: Cache) -> dict[int, float]:
    """Seconds by T."""
    results = runner.run(task_in(cache), [request])
    assert all(result.ok for result in results), [result.error for result in results]
    return {result.instance.shape["T"]: result.latency_s or 0.0 for result in results}


def least(found: dict[int, float], more: dict[int, float]) -> dict[int, float]:
    """Of each what was the shortest: whatever else the machine does makes calls longer, and takes caches from them."""
    return {name: min(seconds, found.get(name, seconds)) for name, seconds in more.items()}


def test_a_dense_layer_takes_longer_if_its_weights_come_from_memory() -> None:
    task = task_in(Cache.WARM)
    assert 2 * native().hardware.l2_bytes < 4 * N * K, "weights that L2 holds would be another test"
    with local_tools() as (builder, runner):
        [build] = builder.build(task, [default_kernel(task)])
        request, deadline = RunRequest(build, task.instances), time.monotonic() + LIMIT_S
        by_cache: dict[Cache, dict[int, float]] = {cache: {} for cache in Cache}
        while True:
            by_cache = {cache: least(known, latencies(runner, request, cache)) for cache, known in by_cache.items()}
            warm, cold, streamed = by_cache.values()
            is_so = all(min(cold[t], streamed[t]) > LONGER * warm[t] for t in warm)
            if is_so or time.monotonic() > deadline:
                break
        assert is_so, by_cache

        # Libraries that take turns do so by the task's protocol, and NumPy beside them: contenders 0 and 1.
        turns = TurnsRequest(task.instances[:1], (build,), ((0,),), True, 2.0)
        deadline = time.monotonic() + LIMIT_S
        resident: dict[int, float] = {}
        moved: dict[int, float] = {}
        while True:
            resident = least(resident, shortest(runner, turns, Cache.WARM))
            moved = least(moved, shortest(runner, turns, Cache.STREAMED))
            is_so = all(moved[contender] > LONGER * resident[contender] for contender in resident)
            if is_so or time.monotonic() > deadline:
                break
        assert is_so, (resident, moved)


def shortest(runner: Runner, turns: TurnsRequest, cache: Cache) -> dict[int, float]:
    """Seconds of each contender's shortest turn."""
    seconds = runner.turns(task_in(cache), turns).seconds
    return {contender: min(turn[0][contender] or 0.0 for turn in seconds) for contender in (0, 1)}
