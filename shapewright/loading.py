"""Loading a library, from a directory or a snapshot."""

from __future__ import annotations

from pathlib import Path

from shapewright.library import Library, library_in
from shapewright.queries import RangesLike, WorkloadLike, key_of
from shapewright.snapshot.reading import Missing, Snapshot, only_entry
from tuner.errors import InvalidInput, ShapewrightError


def load(
    source: str | Path,
    workload: WorkloadLike | None = None,
    *,
    target: str | None = None,
    threads: int | None = None,
    ranges: RangesLike | None = None,
    cache: str | None = None,
) -> Library:
    """Load the library in a directory, as `shapewright pull` wrote it, or that for ``workload`` in a snapshot.

    ``target``, ``threads``, ``ranges`` and ``cache`` choose in a snapshot, as ``Snapshot.find`` has them; a snapshot of
    one library needs no workload. A directory with a library of another workload is refused. Raises ShapewrightError if
    a file is missing or altered, if there is no such library, or if this CPU lacks an instruction set that it uses.
    """
    source = Path(source)
    if source.is_file():
        return _of_snapshot(source, workload, target, threads, ranges, cache)
    library = library_in(source)
    if workload is not None and (key := key_of(workload)) != library.workload.key:
        raise InvalidInput("workload", f"{source} has a library of {library.workload.key}", f"one of {key}")
    return library


def _of_snapshot(
    file: Path,
    workload: WorkloadLike | None,
    target: str | None,
    threads: int | None,
    ranges: RangesLike | None,
    cache: str | None,
) -> Library:
    snapshot = Snapshot(file)
    if workload is None:
        return snapshot.load(only_entry(snapshot))
    found = snapshot.find(workload, target, threads, ranges, cache)
    if isinstance(found, Missing):
        raise ShapewrightError(found.reason)
    return found
