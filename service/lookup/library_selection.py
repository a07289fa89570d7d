"""Which library answers for a shape: the one that `pull` would serve for a range of that shape alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from service.lookup.lookup_cache import LookupCache
from tuner.library import choice
from tuner.library.choice import Candidate, Point, time_of
from tuner.library.dispatch_table import ServedTable
from tuner.program.language.workload import format_shape
from tuner.storage import BuiltLibrary, LookupScope
from tuner.storage.sql import ClientStorage

LIBRARIES = 8
"""Libraries of a scope that are looked at, the newest ones."""

Asked = tuple[LookupScope, Mapping[str, int], Sequence[BuiltLibrary]]
"""A scope, the values of its symbols, and its libraries, newest first."""
Rival = tuple[BuiltLibrary, ServedTable]


class LibrarySelection:
    """Chooses libraries. Safe to use from several threads."""

    def __init__(self, storage: ClientStorage, cache: LookupCache) -> None:
        self._storage = storage
        self._cache = cache

    def libraries(self, asked: Sequence[Asked]) -> list[Rival | None]:
        """The best library for each shape, of those that cover it; None without any.

        Where none was made for the shape it is one with the shape between two of its own, else the newest.
        """
        tables = self._cache.tables(library for _, _, libraries in asked for library in libraries[:LIBRARIES])
        rivals = [
            _covering(dims, [(each, tables[each.digest]) for each in libraries[:LIBRARIES]])
            for _, dims, libraries in asked
        ]
        medians = self._medians(asked, rivals)
        return [
            _best(dims, covering, medians[index]) if covering else _newest(libraries, tables)
            for index, ((_, dims, libraries), covering) in enumerate(zip(asked, rivals, strict=True))
        ]

    def _medians(self, asked: Sequence[Asked], rivals: Sequence[Sequence[Rival]]) -> list[dict[str, float]]:
        """What each rival's kernel was measured to take, by kernel id, where there is more than one rival."""
        questions = [
            (index, (scope, format_shape(dims), str(table.kernel_at(dims)["id"])))
            for index, ((scope, dims, _), covering) in enumerate(zip(asked, rivals, strict=True))
            if len(covering) > 1
            for _, table in covering
        ]
        medians: list[dict[str, float]] = [{} for _ in asked]
        known = self._storage.latencies([question for _, question in questions])
        for (index, (_, _, kernel_id)), latency in zip(questions, known, strict=True):
            if latency is not None:
                medians[index][kernel_id] = latency.latency_s
        return medians


def _covering(dims: Mapping[str, int], rivals: Sequence[Rival]) -> list[Rival]:
    around = [(library, table) for library, table in rivals if table.covers(dims)]
    return [(library, table) for library, table in around if table.is_made_for(dims)] or around


def _best(dims: Mapping[str, int], covering: Sequence[Rival], medians: Mapping[str, float]) -> Rival:
    if len(covering) == 1:
        return covering[0]
    oldest_first = covering[::-1]
    candidates = [
        Candidate(
            library.digest,
            [time_of(medians.get(table.kernel_at(dims)["id"]), table if library.is_comparable else None, dims)],
            library.comparison.timed if library.comparison else {},
        )
        for library, table in oldest_first
    ]
    return oldest_first[choice.choose([Point(dims)], candidates)]


def _newest(libraries: Sequence[BuiltLibrary], tables: Mapping[str, ServedTable]) -> Rival | None:
    return (libraries[0], tables[libraries[0].digest]) if libraries else None
