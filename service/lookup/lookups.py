"""Lookups: many questions answered together, in a few statements whatever their number.

Answers are never kept: a record or a library may come at any moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from service.lookup.kept import Kept
from service.lookup.neighbours import Neighbours
from tuner.errors import InvalidInput, ShapewrightError
from tuner.library import lookup
from tuner.library.lookup import BestAnswer, Match
from tuner.library.served import ServedTable, is_current
from tuner.program.workload import format_shape
from tuner.storage import Known, LookupStorage, NotFound, Place

LIBRARIES = 8
"""Libraries of a place that are looked at for one that covers the shape, the newest first."""

Answer = BestAnswer | ShapewrightError


@dataclass(frozen=True, slots=True)
class Query:
    """What is best at ``shape``: values of the workload's symbols, or of the shape variables of the place's newest job.

    A place without a target is the newest one.
    """

    place: Place
    shape: Mapping[str, int]


class Lookups:
    """Answers queries from one database. Safe to use from several threads."""

    def __init__(self, storage: LookupStorage) -> None:
        self._storage = storage
        self._kept = Kept(storage)
        self._neighbours = Neighbours(storage, self._kept)

    def best(self, query: Query) -> BestAnswer:
        """Raises NotFound, and InvalidInput for a shape that does not fit."""
        (answer,) = self.answers([query])
        if isinstance(answer, ShapewrightError):
            raise answer
        return answer

    def answers(self, queries: Sequence[Query]) -> list[Answer]:
        """An answer or a refusal for each query, in their order."""
        found: dict[int, Answer] = {}
        complete: dict[int, Query] = {}
        for index, one in enumerate(self._completed(queries)):
            if isinstance(one, ShapewrightError):
                found[index] = one
            else:
                complete[index] = one
        found |= zip(complete, self._answers(list(complete.values())), strict=True)
        return [found[index] for index in range(len(queries))]

    def _completed(self, queries: Sequence[Query]) -> list[Query | ShapewrightError]:
        """The queries with their targets, their shapes in symbols; or what is wrong with them."""
        symbols = self._kept.symbols(query.place.workload_key for query in queries)
        open_places = {
            query.place: None
            for query in queries
            if (names := symbols.get(query.place.workload_key)) is not None
            and (query.place.target_fingerprint is None or query.shape.keys() != names)
        }
        named = dict(zip(open_places, self._storage.newest_tasks(list(open_places)), strict=True))

        def completed(query: Query) -> Query | ShapewrightError:
            if query.place.workload_key not in symbols:
                return NotFound(f"no job has been submitted for workload {query.place.workload_key!r}")
            if query.place not in named:
                return query
            if (task := named[query.place]) is None:
                return no_task(query.place)
            place = replace(query.place, target_fingerprint=task.target_fingerprint)
            if query.shape.keys() == symbols[place.workload_key]:
                return Query(place, query.shape)
            try:
                return Query(place, lookup.dims_of(self._kept.tasks([task.number])[task.number].task, query.shape))
            except InvalidInput as error:
                return error

        return [completed(query) for query in queries]

    def _answers(self, queries: Sequence[Query]) -> list[Answer]:
        """Of queries that leave nothing open."""
        known = self._storage.look_up([(query.place, format_shape(query.shape)) for query in queries])
        tables = self._kept.tables(library for each in known for library in each.libraries[:LIBRARIES])
        kernels = self._kept.kernels(each.best.kernel_id for each in known if each.best)
        answers: list[Answer | None] = []
        left: list[tuple[int, Query]] = []
        for index, (query, each) in enumerate(zip(queries, known, strict=True)):
            answer = _of_library(query, each, tables)
            if each.best is not None:
                answer = replace(
                    answer or BestAnswer(query.place, query.shape, Match.EXACT, {}),
                    match=Match.EXACT,
                    kernel=kernels[each.best.kernel_id].shown,
                    latency_s=each.best.latency_s,
                    readings=each.best.readings,
                    job_id=each.best.job_id,
                    measured_shape=query.shape,
                    distance=dict.fromkeys(query.shape, 0.0),
                )
            elif answer is None or not is_current(answer.kernel):
                left.append((index, query))
            answers.append(answer)
        for (index, _), found in zip(left, self._unmeasured([query for _, query in left]), strict=True):
            answers[index] = _beside(found, answers[index])
        return [answer for answer in answers if answer is not None]

    def _unmeasured(self, queries: Sequence[Query]) -> list[Answer]:
        """Where neither a record nor a library answers: the kernel of the nearest measured shape, or the default."""
        named = self._storage.newest_tasks([query.place for query in queries])
        tasks = self._kept.tasks(task.number for task in named if task)
        searched = [(query, tasks[task.number]) for query, task in zip(queries, named, strict=True) if task]
        found = iter(self._neighbours.answers([(query.place, query.shape, task) for query, task in searched]))
        return [next(found) if task else no_task(query.place) for query, task in zip(queries, named, strict=True)]


def no_task(place: Place) -> NotFound:
    target = f" on target {place.target_fingerprint}" if place.target_fingerprint else ""
    job = f" in job {place.job_id!r}" if place.job_id else ""
    threads = f" with {place.threads} thread{'s' if place.threads > 1 else ''}"
    return NotFound(f"no job has been submitted for workload {place.workload_key!r}{target}{threads}{job}")


def _of_library(query: Query, known: Known, tables: Mapping[str, ServedTable]) -> BestAnswer | None:
    """What the newest library that covers the shape runs there; without one, what the newest of all does."""
    libraries = known.libraries[:LIBRARIES]
    if not libraries:
        return None
    library = next((each for each in libraries if tables[each.digest].covers(query.shape)), libraries[0])
    table = tables[library.digest]
    kernel = table.kernel_at(query.shape)
    return BestAnswer(
        query.place,
        query.shape,
        Match.DISPATCHED if table.covers(query.shape) else Match.DEFAULT,
        kernel,
        predicted_latency_s=table.predicted_latency_s(query.shape),
        job_id=library.job_id,
        digest=library.digest,
        served_by=kernel,
    )


def _beside(answer: Answer, of_library: Answer | None) -> Answer:
    """The answer, with the library that was consulted and could not answer: its kernel is of another rule version."""
    if isinstance(answer, BestAnswer) and isinstance(of_library, BestAnswer):
        return replace(answer, digest=of_library.digest, served_by=of_library.served_by)
    return answer
