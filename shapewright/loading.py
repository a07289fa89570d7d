"""Loading a library: from its directory, of several in a directory, or from a snapshot."""

from __future__ import annotations

from pathlib import Path

from shapewright.library import Library, library_in
from shapewright.queries import RangesLike, WorkloadLike, key_of
from shapewright.snapshot.reading import Missing, Snapshot, only_entry
from shapewright.sources.candidates import Candidate
from shapewright.sources.directory import Directory
from tuner.errors import GpuFailed, InvalidInput, ShapewrightError
from tuner.library.package import MANIFEST
from tuner.program.target import native


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

    A directory may have libraries of a job for several targets in folders: that which runs on this CPU, or on a GPU of
    this machine, is loaded. ``target`` (a fingerprint, or ``cuda`` or ``llvm``), ``threads`` and ``cache`` choose
    among them. In a snapshot they choose as ``Snapshot.find`` has them, and so does ``ranges``; a snapshot of one
    library needs no workload. A directory with a library of another workload is refused. Raises ShapewrightError if a
    file is missing or altered, if there is no such library, or if this CPU lacks an instruction set that it uses.
    """
    source = Path(source)
    if source.is_file():
        return _of_snapshot(source, workload, target, threads, ranges, cache)
    if not (source / MANIFEST).exists() and (every := _in_folders(source)):
        return _of_several(source, every, workload, target, threads, cache)
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


# -- several in a directory -------------------------------------------------------------------------------------------
def _in_folders(directory: Path) -> list[Candidate]:
    return Directory(directory, native()).every() if directory.is_dir() else []


def _of_several(
    directory: Path,
    every: list[Candidate],
    workload: WorkloadLike | None,
    target: str | None,
    threads: int | None,
    cache: str | None,
) -> Library:
    """The library that runs here, of those that are asked for."""
    key = _only_workload(directory, every) if workload is None else key_of(workload)
    asked = [
        each for each in every
        if each.workload.key == key and (target in (None, each.made_for) or target == _kind(each))
        and threads in (None, each.threads) and cache in (None, each.cache.value)
    ]  # fmt: skip
    if len({_kind(each) for each in asked}) > 1:
        raise InvalidInput("target", f"{directory} has libraries for CPUs and for GPUs", "llvm or cuda")
    refusals = []
    for each in sorted(asked, key=lambda each: (each.threads, each.rank(native()))):
        if _kind(each) == "llvm" and (problem := each.runs_on.misfit(native())):
            refusals.append(f"{each.directory.name}: {problem}")
            continue
        try:
            return library_in(each.directory)
        except GpuFailed as error:
            refusals.append(f"{each.directory.name}: {error}")
    raise ShapewrightError(
        f"no library of {key} in {directory} runs here: {'; '.join(refusals) or 'none is asked for'}"
    )


def _kind(library: Candidate) -> str:
    return "cuda" if library.runs_on.arch else "llvm"


def _only_workload(directory: Path, every: list[Candidate]) -> str:
    known = sorted({each.workload.key for each in every})
    if len(known) > 1:
        raise InvalidInput(
            "workload", f"{directory} has libraries of {len(known)} workloads", f"one of {', '.join(known)}"
        )
    return known[0]
