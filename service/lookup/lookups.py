"""Lookups: many questions answered together, in a few statements whatever their number.

Answers are never kept: a record or a library may come at any moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from service.lookup.library_selection import LibrarySelection, Rival
from service.lookup.lookup_cache import LookupCache
from service.lookup.neighbours import Neighbours
from tuner.errors import InvalidInput, ShapewrightError
from tuner.library import lookup
from tuner.library.dispatch_table import ServedTable, is_current
from tuner.library.lookup import BestAnswer, Match
from tuner.program.language.workload import format_shape
from tuner.storage import BuiltLibrary, Known, LookupScope, NotFound
from tuner.storage.sql import ClientStorage

Answer = BestAnswer | ShapewrightError


@dataclass(frozen=True, slots=True)
class Query:
    """What is best at ``shape``: values of the workload's symbols, or of the shape variables of the scope's newest job.

    A scope without a target is the newest one.
    """

    scope: LookupScope
    shape: Mapping[str, int]


class Lookups:
    """Answers queries from one database. Safe to use from several threads."""

    def __init__(self, storage: ClientStorage) -> None:
        self._storage = storage
        self._cache = LookupCache(storage)
        self._neighbours = Neighbours(storage, self._cache)
        self._selection = LibrarySelection(storage, self._cache)

    def answers(self, queries: Sequence[Query]) -> list[Answer]:
        """An answer or a refusal for each query, in their order."""
        with self._storage.one_view():
            return self._answered(queries)

    def _answered(self, queries: Sequence[Query]) -> list[Answer]:
        result: dict[int, Answer] = {}
        complete: dict[int, Query] = {}
        for index, one in enumerate(self._completed(queries)):
            if isinstance(one, ShapewrightError):
                result[index] = one
            else:
                complete[index] = one
        result |= zip(complete, self._answers(list(complete.values())), strict=True)
        return [result[index] for index in range(len(queries))]

    def _completed(self, queries: Sequence[Query]) -> list[Query | ShapewrightError]:
        """The queries with their targets, their shapes in symbols; or what is wrong with them."""
        symbols = self._cache.symbols(query.scope.workload_key for query in queries)
        incomplete_scopes = {
            query.scope: None
            for query in queries
            if (names := symbols.get(query.scope.workload_key)) is not None
            and (query.scope.target_fingerprint is None or query.shape.keys() != names)
        }
        named = dict(zip(incomplete_scopes, self._storage.newest_tasks(list(incomplete_scopes)), strict=True))

        def completed(query: Query) -> Query | ShapewrightError:
            if query.scope.workload_key not in symbols:
                return NotFound(f"no job has been submitted for workload {query.scope.workload_key!r}")
            if query.scope not in named:
                return query
            if (task := named[query.scope]) is None:
                return no_task(query.scope)
            scope = replace(query.scope, target_fingerprint=task.target_fingerprint)
            if query.shape.keys() == symbols[scope.workload_key]:
                return Query(scope, query.shape)
            try:
                return Query(scope, lookup.dims_of(self._cache.tasks([task.number])[task.number].task, query.shape))
            except InvalidInput as error:
                return error

        return [completed(query) for query in queries]

    def _answers(self, queries: Sequence[Query]) -> list[Answer]:
        """Answers to queries that leave nothing open."""
        known = self._storage.look_up([(query.scope, format_shape(query.shape)) for query in queries])
        asked = [(query.scope, query.shape, each.libraries) for query, each in zip(queries, known, strict=True)]
        libraries = self._selection.libraries(asked)
        kernels = self._cache.kernels(each.best.kernel_id for each in known if each.best)
        served_s = self._served_latencies(queries, known, libraries)
        answers: list[Answer | None] = []
        left: list[tuple[int, Query]] = []
        for index, (query, each, library) in enumerate(zip(queries, known, libraries, strict=True)):
            answer = _of_library(query, library) if library else None
            if each.best is not None:
                before = answer or BestAnswer(query.scope, query.shape, Match.EXACT, {})
                is_served = before.served_by is not None and before.served_by.get("id") == each.best.kernel_id
                answer = replace(
                    before,
                    match=Match.EXACT,
                    kernel=kernels[each.best.kernel_id].shown,
                    latency_s=each.best.latency_s,
                    # What the library's table predicts is of its own kernel.
                    predicted_latency_s=before.predicted_latency_s if is_served else None,
                    served_latency_s=each.best.latency_s if is_served else served_s.get(index),
                    readings=each.best.readings,
                    job_id=each.best.job_id,
                    measured_shape=query.shape,
                    distance=dict.fromkeys(query.shape, 0.0),
                )
            elif answer is None or not is_current(answer.kernel):
                left.append((index, query))
            answers.append(answer)
        for (index, _), result in zip(left, self._unmeasured([query for _, query in left]), strict=True):
            answers[index] = _beside(result, answers[index])
        return [answer for answer in answers if answer is not None]

    def _served_latencies(
        self, queries: Sequence[Query], known: Sequence[Known], libraries: Sequence[Rival | None]
    ) -> dict[int, float]:
        """What was measured of the kernels that libraries run, where the best one is another; by query."""
        questions = {
            index: (query.scope, format_shape(query.shape), str(library[1].kernel_at(query.shape)["id"]))
            for index, (query, each, library) in enumerate(zip(queries, known, libraries, strict=True))
            if library and each.best and library[1].kernel_at(query.shape)["id"] != each.best.kernel_id
        }
        found = self._storage.latencies(list(questions.values())) if questions else []
        return {index: each.latency_s for index, each in zip(questions, found, strict=True) if each is not None}

    def _unmeasured(self, queries: Sequence[Query]) -> list[Answer]:
        """Answers where no record and no library has one: the kernel of the nearest measured shape, or the default."""
        named = self._storage.newest_tasks([query.scope for query in queries])
        tasks = self._cache.tasks(task.number for task in named if task)
        searched = [(query, tasks[task.number]) for query, task in zip(queries, named, strict=True) if task]
        result = iter(self._neighbours.answers([(query.scope, query.shape, task) for query, task in searched]))
        return [next(result) if task else no_task(query.scope) for query, task in zip(queries, named, strict=True)]


def no_task(scope: LookupScope) -> NotFound:
    target = f" on target {scope.target_fingerprint}" if scope.target_fingerprint else ""
    job = f" in job {scope.job_id!r}" if scope.job_id else ""
    threads = f" with {scope.threads} thread{'s' if scope.threads > 1 else ''}"
    place = f"{target}{threads}{scope.cache.note}{job}"
    return NotFound(f"no job has been submitted for workload {scope.workload_key!r}{place}")


def _of_library(query: Query, consulted: tuple[BuiltLibrary, ServedTable]) -> BestAnswer:
    """What the library runs at the shape, which may be outside of its range."""
    library, table = consulted
    kernel = table.kernel_at(query.shape)
    return BestAnswer(
        query.scope,
        query.shape,
        Match.DISPATCHED if table.covers(query.shape) else Match.DEFAULT,
        kernel,
        predicted_latency_s=table.predicted_latency_s(query.shape),
        job_id=library.job_id,
        digest=library.digest,
        served_by=kernel,
        served_predicted_latency_s=table.predicted_latency_s(query.shape),
    )


def _beside(answer: Answer, of_library: Answer | None) -> Answer:
    """The answer, with the library that was consulted and could not answer: its kernel is of another rule version."""
    if isinstance(answer, BestAnswer) and isinstance(of_library, BestAnswer):
        return replace(
            answer,
            digest=of_library.digest,
            served_by=of_library.served_by,
            served_predicted_latency_s=of_library.served_predicted_latency_s,
        )
    return answer
