"""Where tuned libraries come from: a service, directories, snapshots. None of them can break a build.

A source answers for one workload at a time: a loaded library, or why there is none. One that cannot be asked
(``SourceAway``) is asked no more; what was kept on disk earlier takes its place.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from shapewright.sources.covering import covers
from shapewright.sources.libraries import kept_folder, load_library
from shapewright.sources.libraries import provide as provide_folders
from tuner.errors import InvalidInput, ShapewrightError
from tuner.library.package import MANIFEST
from tuner.program.build import workload_from_stored
from tuner.program.instance import program_key
from tuner.program.same_cpu import cores_by_fingerprint
from tuner.program.target import Target, native
from tuner.program.workload import JsonObject, Workload

if TYPE_CHECKING:
    from shapewright.client import Client
    from shapewright.library import Library

SourceLike = str | Path | Sequence[str | Path]
"""The URL of a service, a directory, a snapshot file; or several, which are asked in turn."""
SOURCES = "the URL of a service, a directory of libraries, or a snapshot file"

MOST_FOLDERS = 10_000
"""Libraries that are read of one directory."""
DEPTH = 2
"""Folders below a directory in which libraries are looked for: those of `pull JOB_ID -o DIR`, and folders of such."""


class SourceAway(ShapewrightError):
    """A source that cannot be asked: a service that does not answer, a file that is damaged."""


@dataclass(frozen=True)
class Match:
    """A library for a workload. ``how``: ``exact``, or ``covers`` for one of more general extents."""

    library: Library
    how: str
    source: str

    def other_cores(self, target: Target) -> int | None:
        """The number of cores that it was tuned on, where ``target`` has another one."""
        cores = self.library.tuned_on_cores
        return None if cores == target.hardware.cores else cores


class Source(Protocol):
    """Something that has libraries for this machine."""

    @property
    def name(self) -> str:
        """What the user gave."""

    def find(self, workload: Workload, threads: int) -> Match | str:
        """The library for ``workload`` with so many threads, or why there is none. Raises SourceAway."""


@dataclass(frozen=True)
class Candidate:
    """A library by its manifest, and where its files are."""

    directory: Path
    manifest: JsonObject

    @cached_property
    def workload(self) -> Workload:
        return workload_from_stored(json.dumps(self.manifest["workload"]))

    def misfit(self, threads: int, target: Target) -> str:
        """Why it cannot serve here; empty if it can."""
        if self.manifest["threads"] != threads:
            return f"it is for {self.manifest['threads']} threads, not {threads}"
        hardware = (self.manifest.get("target") or {}).get("hardware", {})
        missing = sorted(set(hardware.get("features", ())) - set(target.hardware.features))
        return f"it is for a CPU with {', '.join(missing)}" if missing else ""

    def rank(self, target: Target) -> tuple[Any, ...]:
        """The best first: made for this very target, for its CPU, for the widest ranges, then by digest."""
        width = sum(high - low for low, high in self.manifest.get("ranges", {}).values())
        made_for = self.manifest.get("target_fingerprint")
        is_other_cpu = made_for != target.fingerprint and made_for not in cores_by_fingerprint(target)
        return made_for != target.fingerprint, is_other_cpu, -width, self.manifest["digest"]


def fitting_of(
    by_program: Mapping[str, Sequence[Candidate]], workload: Workload, threads: int, target: Target
) -> list[Candidate] | str:
    """The libraries that can serve a workload here, the best first; or why there is none."""
    alike = [each for each in by_program.get(program_key(workload.canonical), ()) if covers(each.workload, workload)]
    if not alike:
        return "no library for this workload"
    fitting = [each for each in alike if not each.misfit(threads, target)]
    if not fitting:
        return alike[0].misfit(threads, target)
    return sorted(fitting, key=lambda each: (each.workload.key != workload.key, each.rank(target)))


class Directory:
    """Libraries in a directory: one, or folders of them."""

    def __init__(self, path: Path, target: Target) -> None:
        self.name = str(path)
        self._path = path
        self._target = target

    @cached_property
    def _by_program(self) -> dict[str, list[Candidate]]:
        if not self._path.is_dir():
            raise SourceAway(f"{self._path} is not a directory")
        by_program: dict[str, list[Candidate]] = {}
        for folder in _folders(self._path):
            candidate = _in_folder(folder)
            if candidate is not None:
                by_program.setdefault(program_key(candidate.workload.canonical), []).append(candidate)
        return by_program

    def folders(self) -> dict[str, Path]:
        """Where each library lies, by digest. Raises SourceAway."""
        return {each.manifest["digest"]: each.directory for alike in self._by_program.values() for each in alike}

    def find(self, workload: Workload, threads: int) -> Match | str:
        fitting = fitting_of(self._by_program, workload, threads, self._target)
        if isinstance(fitting, str):
            return fitting
        reason = ""
        # One that is damaged leaves its place to the next.
        for each in fitting:
            try:
                library = load_library(each.directory)
            except ShapewrightError as error:
                reason = str(error)
                continue
            return Match(library, "exact" if each.workload.key == workload.key else "covers", self.name)
        return reason


class Service:
    """What a service serves for this machine's target. Downloads are kept (``kept_folder``)."""

    def __init__(self, url: str, target: Target, client: Client | None = None) -> None:
        from shapewright.client import Client  # noqa: PLC0415 - for those who have a service

        self.name = url
        self._target = target
        self._client = client or Client(url)

    def find(self, workload: Workload, threads: int) -> Match | str:
        from shapewright.errors import BadDownload, NotAllowed, ServiceError, ServiceNotFound  # noqa: PLC0415

        try:
            key, digest = self._served(workload, threads)
            return Match(self._library(key, digest), "exact" if key == workload.key else "covers", self.name)
        except ServiceNotFound as error:
            return str(error)
        except BadDownload as error:
            return str(error)
        except NotAllowed as error:
            raise SourceAway(f"{self.name}: {error}") from error
        except ServiceError as error:
            raise SourceAway(f"{self.name}: {error}") from error

    def _served(self, workload: Workload, threads: int) -> tuple[str, str]:
        """The key and the digest of the library that is served."""
        from shapewright.errors import ServiceNotFound  # noqa: PLC0415

        try:
            served = self._client.served(workload, target=self._target.fingerprint, threads=threads)
            return workload.key, served["digest"]
        except ServiceNotFound:
            if workload.symbols:
                raise
        # One shape: a library of a dynamic workload may have it.
        answer = self._client.best(workload, {}, self._target.fingerprint, threads)
        if not answer.get("digest"):
            raise ServiceNotFound(f"{self.name} has no library for {workload}")
        return answer["workload_key"], answer["digest"]

    def _library(self, key: str, digest: str) -> Library:
        folder = kept_folder() / digest
        if not folder.is_dir():
            try:
                self._client.download_library(key, folder, digest=digest)
            except OSError:
                # What cannot be kept serves this process; `keep` says so.
                folder = Path(tempfile.mkdtemp(prefix="shapewright-")) / digest
                self._client.download_library(key, folder, digest=digest)
        return load_library(folder)


def source_of(given: str | Path, target: Target | None = None) -> Source:
    """The source that a text names. Raises InvalidInput for what is none."""
    target = target or native()
    if isinstance(given, str) and given.startswith(("http://", "https://")):
        return Service(given, target)
    if not isinstance(given, str | Path):
        raise InvalidInput("source", f"{given!r} is none", SOURCES)
    path = Path(given).expanduser()
    if path.is_file():
        from shapewright.sources.snapshots import SnapshotFile  # noqa: PLC0415 - it is a source itself

        return SnapshotFile(path, target)
    return Directory(path, target)


def provide(directory: str | Path) -> int:
    """Have saved models find the libraries below ``directory``, where they are not kept on this machine.

    Returns how many there are. Raises ShapewrightError if it is no directory.
    """
    folders = Directory(Path(directory).expanduser(), native()).folders()
    provide_folders(folders)
    return len(folders)


def _folders(path: Path) -> Iterable[Path]:
    """``path`` and the folders below it, in order."""
    folders, level = [path], [path]
    for _ in range(DEPTH):
        level = sorted(each for folder in level for each in folder.iterdir() if each.is_dir())
        folders += level
    if len(folders) > MOST_FOLDERS:
        raise SourceAway(f"{path} has more than {MOST_FOLDERS} folders: name the one with the libraries")
    return folders


def _in_folder(folder: Path) -> Candidate | None:
    try:
        return candidate_of(folder, (folder / MANIFEST).read_bytes())
    except OSError:
        return None


def candidate_of(directory: Path, manifest: bytes) -> Candidate | None:
    """The library of a manifest; None of what this version cannot read."""
    try:
        candidate = Candidate(directory, json.loads(manifest))
        readable = candidate.workload.canonical and candidate.manifest["digest"] and candidate.manifest["threads"]
        return candidate if readable else None
    except (ValueError, TypeError, KeyError, ShapewrightError):
        return None
