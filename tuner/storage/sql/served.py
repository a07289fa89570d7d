"""The choice of the library that is handed out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Select, or_, select

from tuner.errors import InvalidInput
from tuner.library.choice import (
    Candidate,
    Point,
    Times,
    choose,
    covers,
    expected_s,
    kernels_at,
    meant,
    points_of,
    ratio,
    times_of,
    width,
)
from tuner.program.job.cache import Cache
from tuner.program.job.range_text import Ranges, format_ranges
from tuner.records import protocol_of
from tuner.storage.errors import NotFound
from tuner.storage.libraries import Alternative, Artifact, LibraryQuery, Served
from tuner.storage.sql._rows import Part
from tuner.storage.sql.artifacts import artifact_of
from tuner.storage.sql.engine import Database
from tuner.storage.sql.latencies import medians_of
from tuner.storage.sql.library_rows import ROWS, Known, is_sound, known_rows, may_be_chosen
from tuner.storage.sql.schema import artifacts, library_aliases, search_tasks, targets, workloads
from tuner.storage.sql.tables import Tables

MAX_BESIDE = 200
"""Libraries of a workload that are looked at, the newest; others are found by job or digest."""
MAX_TOLD = 16
"""Alternatives, and ranges that there are, in an answer."""

_NEWEST = ROWS.order_by(artifacts.c.id.desc()).limit(MAX_BESIDE)


class ServedLibraries(Part):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._tables = Tables()

    def served(self, query: LibraryQuery) -> Served:
        """The library to hand out, with how it compares with the others that cover the range.

        Raises NotFound, which tells what ranges, numbers of threads and states of the caches there are, and
        InvalidInput on field ``range`` for other symbols than the workload's.
        """
        with self._database.read() as connection:
            asked, chosen = self._choose(connection, query)
            others = [row for row in _beside(connection, chosen) if covers(row.library.ranges, asked)][:MAX_TOLD]
            compared = self._compare(connection, query, asked, [chosen, *others])
        times = compared.times[chosen.number]
        return Served(
            library=chosen.library,
            ranges=asked,
            expected_s=expected_s(compared.points, times),
            points=len(compared.points),
            measured=sum(time is not None and time.measured for time in times),
            alternatives=tuple(compared.alternative(chosen, row) for row in others),
        )

    def serve(self, query: LibraryQuery) -> Artifact:
        """The library that ``served`` finds, without how it compares."""
        with self._database.read() as connection:
            return artifact_of(connection, self._choose(connection, query)[1].number)

    def incumbent(
        self, workload_key: str, target_fingerprint: str, threads: int, ranges: Ranges, cache: Cache = Cache.WARM
    ) -> Artifact | None:
        """What a new library for these ranges of the symbols has to win against; None if nothing covers them."""
        try:
            return self.serve(LibraryQuery(workload_key, target_fingerprint, threads, ranges, cache=cache))
        except NotFound:
            return None

    def _choose(self, connection: Connection, query: LibraryQuery) -> tuple[Ranges, Known]:
        """The requested range and the library. Raises NotFound, InvalidInput."""
        result = _narrowed(query, _fitting(connection, query) or _withdrawn(connection, query))
        asked = _asked(query, result)
        covering = [row for row in result if covers(row.library.ranges, asked)]
        if not covering:
            raise NotFound(_nothing_covers(query, asked, result))
        if query.is_named or len(covering) == 1:
            return asked, covering[0]
        oldest_first = covering[::-1]
        compared = self._compare(connection, query, asked, oldest_first)
        return asked, oldest_first[choose(compared.points, [compared.candidate(row) for row in oldest_first])]

    def _compare(self, connection: Connection, query: LibraryQuery, asked: Ranges, rows: Sequence[Known]) -> _Compared:
        """The times of these libraries of one workload, target, number of threads and state of the caches."""
        tables = self._tables.get(connection, rows)
        # In the order of their digests: sums of floats depend on theirs.
        tasks = [tables[digest].task for digest in sorted(tables)]
        points = query.points or tuple(points_of(tasks, asked))
        wanted = {name for dispatcher in tables.values() for name in kernels_at(dispatcher, points)}
        first = rows[0]
        protocol = protocol_of(first.library.cache)
        medians = medians_of(connection, first.workload_id, first.target_id, first.library.threads, protocol, wanted)
        times: dict[int, Times] = {}
        for row in rows:
            dispatcher, comparable = tables.get(row.library.digest), row.library.protocol == protocol
            unknown = [None] * len(points)
            times[row.number] = times_of(dispatcher, points, medians, predicted=comparable) if dispatcher else unknown
        return _Compared(points, times)


@dataclass(frozen=True, slots=True)
class _Compared:
    """The times of libraries, by number, at some points."""

    points: tuple[Point, ...]
    times: Mapping[int, Times]

    def candidate(self, row: Known) -> Candidate:
        return Candidate(row.library.digest, self.times[row.number], _timed(row))

    def alternative(self, served: Known, other: Known) -> Alternative:
        expected = expected_s(self.points, self.times[other.number])
        if (timed := _timed(served).get(other.library.digest)) is not None:
            return Alternative(other.library, expected, timed[0], timed_in_turns=True)
        if (timed := _timed(other).get(served.library.digest)) is not None and timed[0] > 0:
            return Alternative(other.library, expected, 1 / timed[0], timed_in_turns=True)
        recorded = ratio(self.points, self.times[served.number], self.times[other.number])
        return Alternative(other.library, expected, recorded, timed_in_turns=False)


def _timed(row: Known) -> Mapping[str, tuple[float, bool]]:
    """The ratio, and whether it won, by the digest of the library that it was compared with on the device."""
    return row.comparison.timed if row.comparison else {}


def _fitting(connection: Connection, query: LibraryQuery) -> list[Known]:
    """The libraries that a query may mean, the newest first.

    Of any number of threads and any state of the caches, where there is none as asked for: the refusal says what there
    is.
    """
    fitting = _meant(query)
    asked = {artifacts.c.threads: query.threads, artifacts.c.cache: query.cache}
    given = [column == value for column, value in asked.items() if value is not None]
    if given:
        rows = known_rows(connection, fitting.where(*given))
        if rows:
            return rows
    return known_rows(connection, fitting)


def _withdrawn(connection: Connection, query: LibraryQuery) -> list[Known]:
    """Nothing, or NotFound with the reason why no library is served any more."""
    rows = [] if query.is_named else known_rows(connection, _named(query))
    unsound = [row for row in rows if row.library.wrong_kernel]
    if unsound:
        library = unsound[0].library
        raise NotFound(
            f"library {library.digest} of workload {query.workload_key!r} was withdrawn: its kernel "
            f"{library.wrong_kernel} was found wrong or crashed on {library.target_fingerprint} since; submit the "
            "workload again, or name the library by its digest"
        )
    return []


def _meant(query: LibraryQuery) -> Select[tuple[object, ...]]:
    fitting = _named(query)
    return fitting if query.is_named else fitting.where(may_be_chosen())


def _named(query: LibraryQuery) -> Select[tuple[object, ...]]:
    wanted = {
        workloads.c.key: query.workload_key,
        targets.c.fingerprint: query.target_fingerprint,
        search_tasks.c.job_id: query.job_id,
        artifacts.c.digest: query.digest,
    }
    fitting = _NEWEST.where(*(column == value for column, value in wanted.items() if value is not None))
    if query.alias is not None:
        named = select(library_aliases.c.artifact_id).where(library_aliases.c.name == query.alias)
        fitting = fitting.where(artifacts.c.id.in_(named))
    return fitting


def _beside(connection: Connection, chosen: Known) -> list[Known]:
    """Libraries to compare with: those that may be served, and those that it was compared with on the device."""
    timed = artifacts.c.digest.in_(_timed(chosen))
    same = (
        artifacts.c.workload_id == chosen.workload_id,
        artifacts.c.target_id == chosen.target_id,
        artifacts.c.threads == chosen.library.threads,
        artifacts.c.cache == chosen.library.cache,
        artifacts.c.id != chosen.number,
        is_sound(),
        or_(artifacts.c.superseded_by.is_(None), artifacts.c.superseded_by == chosen.number, timed),
    )
    return known_rows(connection, _NEWEST.where(*same))


def _narrowed(query: LibraryQuery, rows: Sequence[Known]) -> list[Known]:
    """The libraries of one target, one number of threads and one state of the caches. Raises NotFound."""
    if not rows:
        raise NotFound(_nothing_fits(query))
    target = rows[0].library.target_fingerprint
    there = [row for row in rows if row.library.target_fingerprint == target]
    counts = sorted({row.library.threads for row in there})
    threads = meant(query.threads, counts, 1)
    if threads not in counts:
        ranges = "; ".join(f"{_threads(count)}: {_told(there, count)}" for count in counts[:MAX_TOLD])
        raise NotFound(f"no library for workload {query.workload_key!r} on {target} with {_threads(threads)}: {ranges}")
    there = [row for row in there if row.library.threads == threads]
    caches = sorted({row.library.cache for row in there})
    cache = meant(query.cache, caches, Cache.WARM)
    if cache not in caches:
        place = f"{query.workload_key!r} on {target} with {_threads(threads)}, caches {cache.value}"
        raise NotFound(f"no library for workload {place}: there are libraries for caches {', '.join(caches)}")
    return [row for row in there if row.library.cache == cache]


def _asked(query: LibraryQuery, rows: Sequence[Known]) -> Ranges:
    """The range that has to be covered. Raises InvalidInput."""
    own = rows[0].library.ranges
    if query.ranges is None:
        return own if query.is_named else max((row.library.ranges for row in rows), key=width)
    if set(query.ranges) != set(own):
        symbols = ", ".join(own) or "none, since every extent is fixed"
        raise InvalidInput("range", f"gives {format_ranges(query.ranges)}", f"the workload's symbols are {symbols}")
    return query.ranges


def _nothing_fits(query: LibraryQuery) -> str:
    given = {"target": query.target_fingerprint, "job": query.job_id, "digest": query.digest, "alias": query.alias}
    asked = "".join(f", {name} {value!r}" for name, value in given.items() if value is not None)
    return f"no library for workload {query.workload_key!r}{asked}"


def _nothing_covers(query: LibraryQuery, asked: Ranges, rows: Sequence[Known]) -> str:
    there = rows[0].library
    place = f"on {there.target_fingerprint} with {_threads(there.threads)}{there.cache.note}"
    covered = _told(rows, there.threads)
    return f"no library for workload {query.workload_key!r} {place} covers {format_ranges(asked)}; covered: {covered}"


def _told(rows: Sequence[Known], threads: int) -> str:
    ranges = dict.fromkeys(format_ranges(row.library.ranges) for row in rows if row.library.threads == threads)
    return ", ".join(list(ranges)[:MAX_TOLD])


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"
