"""Queries for workloads that are described rather than named; a static one may be an instance of dynamic ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from service.lookup.lookups import Answer, Lookups, Query
from service.lookup.queries import Described
from tuner.errors import ShapewrightError
from tuner.library.lookup import BestAnswer
from tuner.program.job.build import workload_from_stored
from tuner.program.language.instance import instance_dims, program_key
from tuner.storage import NotFound, WorkloadForm
from tuner.storage.sql import ClientStorage

MAX_ALIKE = 50
"""Workloads of the same program that a static one is compared with, the newest."""


class DescribedLookups:
    """Answers any queries from one database. Safe to use from several threads."""

    def __init__(self, storage: ClientStorage, lookups: Lookups) -> None:
        self._storage = storage
        self._lookups = lookups

    def answers(self, asked: Sequence[Query | Described | ShapewrightError]) -> list[Answer]:
        """An answer or a refusal for each query, in their order."""
        queries: list[Query] = []
        indices: list[list[int]] = []
        alike = self._alike(asked)
        for one in asked:
            own = [] if isinstance(one, ShapewrightError) else self._queries(one, alike)
            indices.append(list(range(len(queries), len(queries) + len(own))))
            queries += own
        result = self._lookups.answers(queries)
        return [
            one if isinstance(one, ShapewrightError) else _chosen(one, [result[index] for index in own])
            for one, own in zip(asked, indices, strict=True)
        ]

    def _alike(self, asked: Sequence[Query | Described | ShapewrightError]) -> Mapping[str, Sequence[WorkloadForm]]:
        """The workloads with the same program as each static one that is queried, by the key of the program."""
        static = [one.workload for one in asked if isinstance(one, Described) and not one.workload.symbols]
        return {
            program: self._storage.workloads_like(program, MAX_ALIKE)
            for program in dict.fromkeys(program_key(workload.canonical) for workload in static)
        }

    def _queries(self, one: Query | Described, alike: Mapping[str, Sequence[WorkloadForm]]) -> list[Query]:
        """The query itself and, of a static workload, one for each dynamic workload that it is an instance of."""
        if isinstance(one, Query):
            return [one]
        if one.workload.symbols:
            return [one.query]
        scope = one.query.scope
        result = [one.query]
        for form in alike[program_key(one.workload.canonical)]:
            if form.key == one.workload.key:
                continue
            dims = instance_dims(one.workload, workload_from_stored(json.dumps(form.workload)))
            if dims is not None:
                result.append(Query(replace(scope, workload_key=form.key), dims))
        return result


def _chosen(one: Query | Described, result: Sequence[Answer]) -> Answer:
    """The answer of which most is known: as it matched, then the fastest."""
    if isinstance(one, Query) or one.workload.symbols:
        return result[0]
    answers = [answer for answer in result if isinstance(answer, BestAnswer)]
    if not answers:
        return result[0] if len(result) > 1 else _unknown(one)
    best = min(answers, key=lambda answer: (answer.match.rank, answer.latency_s or answer.predicted_latency_s or 0.0))
    return best if best is result[0] else replace(best, asked_key=one.workload.key)


def _unknown(one: Described) -> NotFound:
    return NotFound(
        f"no job has been submitted for {one.workload}, nor for a workload of which it is an instance "
        f"({one.workload.key})"
    )
