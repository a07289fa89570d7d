"""Shapes that nobody measured and no library covers: the kernel of the nearest measured shape, or the default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.lookup.cache import Cache
from service.lookup.lookup_cache import KnownTask, LookupCache, ShownKernel
from tuner.library import lookup
from tuner.library.dispatcher import is_within
from tuner.library.lookup import BestAnswer, Expected, Match
from tuner.program.language.workload import format_shape
from tuner.storage import KernelLatency, LookupScope
from tuner.storage.sql import ClientStorage

NEAREST = 4
"""Measured shapes that are looked at for a kernel that may answer, the nearest first."""

Asked = tuple[LookupScope, Mapping[str, int], KnownTask]
"""A scope, the values of its symbols, and the newest search task there."""


@dataclass(frozen=True, slots=True)
class _Neighbour:
    """The best kernel of a shape near by, and what the default took there, if it was measured."""

    best: KernelLatency
    default_s: float | None


class Neighbours:
    """Answers from what was measured near by. Safe to use from several threads."""

    def __init__(self, storage: ClientStorage, cache: LookupCache) -> None:
        self._storage = storage
        self._cache = cache
        self._expected: Cache[tuple[object, ...], Expected] = Cache(16_384)

    def answers(self, asked: Sequence[Asked]) -> list[BestAnswer]:
        """The nearest measured shape's best kernel, unless the shape is outside of the range that was searched, or
        the default is expected to be faster there."""
        inside = [index for index, (_, dims, task) in enumerate(asked) if is_within(dims, task.bounds)]
        near = self._neighbours([asked[index] for index in inside])
        neighbours = dict(zip(inside, near, strict=True))
        kernels = self._cache.kernels(each.best.kernel_id for each in near if each)

        def answer(index: int) -> BestAnswer:
            result, (scope, dims, task) = neighbours.get(index), asked[index]
            nearest = self._nearest(asked[index], result, kernels[result.best.kernel_id]) if result else None
            return nearest or BestAnswer(scope, dims, Match.DEFAULT, task.default.shown)

        return [answer(index) for index in range(len(asked))]

    def _nearest(self, asked: Asked, near: _Neighbour, kernel: ShownKernel) -> BestAnswer | None:
        scope, dims, _ = asked
        measured = lookup.instance_dims(near.best.instance)
        expected = self._expectation(asked, near, kernel)
        if expected.latency_s > expected.default_s:
            return None
        return BestAnswer(
            scope,
            dims,
            Match.NEAREST,
            kernel.shown,
            predicted_latency_s=expected.latency_s,
            job_id=near.best.job_id,
            readings=near.best.readings,
            measured_shape=measured,
            distance=lookup.axis_distances(dims, measured),
        )

    def _expectation(self, asked: Asked, near: _Neighbour, kernel: ShownKernel) -> Expected:
        scope, dims, task = asked
        times = (near.best.latency_s, near.default_s)
        shapes = (dims, lookup.instance_dims(near.best.instance))
        # All that it is made of: theory depends on the workload, the target, the threads and the caches alone.
        place = (scope.workload_key, scope.target_fingerprint, scope.threads, scope.cache)
        key = (*place, format_shape(dims), near.best, times)

        def load(_: object) -> Mapping[tuple[object, ...], Expected]:
            return {key: lookup.expected(task.task, kernel.kernel, task.default.kernel, times, shapes)}

        return self._expected.many([key], load)[key]

    def _neighbours(self, asked: Sequence[Asked]) -> list[_Neighbour | None]:
        """The nearest measured shape that has a kernel which may answer, of those that are nearest."""
        scopes = list(dict.fromkeys(scope for scope, _, _ in asked))
        measured = dict(zip(scopes, self._storage.measured_instances(scopes), strict=True))
        candidates = [
            (index, (scope, instance))
            for index, (scope, dims, _) in enumerate(asked)
            for instance in lookup.nearest(measured[scope], dims, NEAREST)
        ]
        known = self._storage.best_kernels([question for _, question in candidates])
        first: dict[int, KernelLatency] = {}
        for (index, _), best in zip(candidates, known, strict=True):
            if best:
                first.setdefault(index, best)
        ids = {index: asked[index][2].default.kernel.id for index in first}
        of_default = self._storage.latencies(
            [(asked[index][0], best.instance, ids[index]) for index, best in first.items()]
        )
        times = dict(zip(first, of_default, strict=True))
        return [
            _Neighbour(first[index], default.latency_s if (default := times[index]) else None)
            if index in first
            else None
            for index in range(len(asked))
        ]
