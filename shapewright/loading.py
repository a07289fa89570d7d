"""Loading a library: from its directory, one of several in a directory, or from a snapshot."""

from __future__ import annotations

from pathlib import Path

from shapewright.library import Library, library_in
from shapewright.queries import RangesLike, WorkloadLike, key_of
from shapewright.snapshot.reading import Missing, Snapshot, only_entry
from shapewright.sources.several import has_several, one_of_several
from tuner.errors import InvalidInput, ShapewrightError
from tuner.plain_files import is_file


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

    Where folders of a directory have libraries, up to two levels below it, as those of a job for several targets have,
    that which runs here is loaded. ``target`` (a fingerprint, ``llvm`` for CPUs or ``cuda`` for GPUs; needed where
    there are both), ``threads`` (1 or the only number) and ``cache`` (warm or the only state) choose among these. In a
    snapshot they choose as ``Snapshot.find`` has them, and so does ``ranges``; a snapshot of one library needs no
    workload. A directory with a library of another workload is refused. Raises ShapewrightError if a file is missing or
    altered, if there is no such library, or if this machine cannot run it.
    """
    source = Path(source)
    if is_file(source):
        return _of_snapshot(source, workload, target, threads, ranges, cache)
    if has_several(source):
        return one_of_several(source, None if workload is None else key_of(workload), target, threads, cache)
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
