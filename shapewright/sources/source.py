"""Where tuned libraries come from: a service, directories, snapshots. None of them can break a build.

A source answers for one workload at a time: a loaded library, or why there is none. One that cannot be
queried (``SourceAway``) is queried no more; what was kept on disk earlier takes its place.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shapewright.defaults import expanded
from shapewright.sources.candidates import (
    MAX_MANIFEST,
    Candidate,
    LeftOut,
    candidate_of,
    digest_in,
    fitting_of,
    opened,
    opened_as,
)
from shapewright.sources.covering import covers
from shapewright.sources.libraries import fetched, kept_folder
from shapewright.sources.libraries import provide as provide_folders
from tuner.errors import InvalidInput, ShapewrightError
from tuner.library.package import MANIFEST
from tuner.plain_files import is_file, is_folder, read_plain
from tuner.program.language.instance import program_key
from tuner.program.language.workload import Workload
from tuner.program.target import Target, native

if TYPE_CHECKING:
    from shapewright.client import Client
    from shapewright.library import Library

SourceLike = str | Path | Sequence[str | Path]
"""The URL of a service, a directory, a snapshot file; or several, which are queried in turn."""
SOURCES = "the URL of a service, a directory of libraries, or a snapshot file"

MAX_FOLDERS = 10_000
"""Libraries that are read of one directory."""
DEPTH = 2
"""Folders below a directory in which libraries are looked for: those of `pull JOB_ID -o DIR`, and folders of such."""


class SourceAway(ShapewrightError):
    """A source that cannot be queried: a service that does not answer, a file that is damaged."""


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

    @property
    def left_out(self) -> Mapping[str, str]:
        """Why libraries that it has do not count, by what names them; more may be found with every workload."""

    def find(self, workload: Workload, threads: int) -> Match | str:
        """The library for ``workload`` with ``threads`` threads, or why there is none. Raises SourceAway."""


class Listed(ABC):
    """A source that lists its libraries by what their manifests say."""

    def __init__(self, path: Path, target: Target) -> None:
        self.name = str(path)
        self.left_out: dict[str, str] = {}
        self._path = path
        self._target = target

    @property
    @abstractmethod
    def _by_program(self) -> Mapping[str, Sequence[Candidate]]:
        """Its libraries by ``program_key``. Raises SourceAway."""

    @abstractmethod
    def _library(self, candidate: Candidate) -> Library:
        """One of them, loaded. Raises ShapewrightError and OSError."""

    @abstractmethod
    def _named(self, candidate: Candidate) -> str:
        """What people call it."""

    def find(self, workload: Workload, threads: int) -> Match | str:
        fitting = fitting_of(self._by_program, workload, threads, self._target)
        if isinstance(fitting, str):
            return fitting
        reason = ""
        # One that is damaged leaves its place to the next.
        for each in fitting:
            try:
                return Match(self._library(each), each.match_of(workload), self.name)
            except (ShapewrightError, OSError) as error:
                reason = self.left_out[self._named(each)] = str(error)
        return reason


class Directory(Listed):
    """Libraries in a directory: one, or folders of them."""

    @cached_property
    def _by_program(self) -> dict[str, list[Candidate]]:
        if not is_folder(self._path):
            raise SourceAway(f"{self._path} is not a directory")
        by_program: dict[str, list[Candidate]] = {}
        for folder in self._folders():
            candidate = self._in_folder(folder)
            if candidate is not None:
                by_program.setdefault(program_key(candidate.workload.canonical), []).append(candidate)
        return by_program

    def folders(self) -> dict[str, Path]:
        """Where each library lies, by digest. Raises SourceAway."""
        return {each.digest: each.directory for alike in self._by_program.values() for each in alike}

    def _library(self, candidate: Candidate) -> Library:
        return opened(candidate, candidate.directory)

    def _named(self, candidate: Candidate) -> str:
        return str(candidate.directory)

    def _folders(self) -> list[Path]:
        """The directory and the folders below it, in order; each once, whatever links lead to it."""
        folders, level, seen = [self._path], [self._path], set[tuple[int, int]]()
        for _ in range(DEPTH):
            level = [each for folder in level for each in self._below(folder) if _is_new(each, seen)]
            folders += level
            if len(folders) > MAX_FOLDERS:
                raise SourceAway(f"{self._path} has more than {MAX_FOLDERS} folders: name the one with the libraries")
        return folders

    def _below(self, folder: Path) -> list[Path]:
        try:
            with os.scandir(folder) as entries:
                there = (Path(each.path) for each in entries if is_folder(each.path))
                return sorted(islice(there, MAX_FOLDERS + 1))
        except OSError as error:
            if folder == self._path:
                raise SourceAway(f"{folder} cannot be read: {error.strerror}") from error
            self.left_out[str(folder)] = f"it cannot be read: {error.strerror}"
            return []

    def _in_folder(self, folder: Path) -> Candidate | None:
        try:
            return candidate_of(folder, read_plain(folder / MANIFEST, MAX_MANIFEST))
        except FileNotFoundError:
            return None
        except OSError as error:
            self.left_out.setdefault(str(folder), f"{MANIFEST}: {error.strerror}")
        except ShapewrightError as error:
            self.left_out[str(folder)] = str(error)
        return None


def _is_new(folder: Path, seen: set[tuple[int, int]]) -> bool:
    try:
        status = folder.stat()
    except OSError:
        return False
    if (status.st_dev, status.st_ino) in seen:
        return False
    seen.add((status.st_dev, status.st_ino))
    return True


class Service:
    """What a service serves for this machine's target. Downloads are kept (``kept_folder``)."""

    def __init__(self, url: str, target: Target, client: Client | None = None) -> None:
        from shapewright.client import Client  # noqa: PLC0415 - for those who have a service

        self.name = url
        self.left_out: dict[str, str] = {}
        self._target = target
        self._unusable = ""
        try:
            self._client = client or Client(url)
        except InvalidInput as error:
            if error.field == "url":
                raise
            # The environment is not what the build set: its libraries are missed, the build goes on.
            self._unusable = str(error)

    def find(self, workload: Workload, threads: int) -> Match | str:
        from shapewright.errors import BadDownload, ServiceError, ServiceNotFound  # noqa: PLC0415

        if self._unusable:
            raise SourceAway(f"{self.name}: {self._unusable}")
        try:
            key, digest = self._served(workload, threads)
            library = self._library(key, digest)
            if not covers(library.workload, workload) or library.dispatcher.task.threads != threads:
                raise LeftOut("it is not the library that was asked for")
            return Match(library, "exact" if key == workload.key else "covers", self.name)
        except ServiceNotFound as error:
            return str(error)
        except (BadDownload, LeftOut) as error:
            self.left_out.setdefault(f"a library of {self.name}", str(error))
            return str(error)
        except ServiceError as error:
            raise SourceAway(f"{self.name}: {error}") from error

    def _served(self, workload: Workload, threads: int) -> tuple[str, str]:
        """The key and the digest of the library that is served."""
        from shapewright.errors import ServiceNotFound  # noqa: PLC0415

        try:
            served = self._client.served(workload, target=self._target.fingerprint, threads=threads)
            return workload.key, digest_in(served)
        except ServiceNotFound:
            if workload.symbols:
                raise
        # One shape: a library of a dynamic workload may have it.
        answer = self._client.best(workload, {}, self._target.fingerprint, threads)
        if not answer.get("digest"):
            raise ServiceNotFound(f"{self.name} has no library for {workload}")
        return answer["workload_key"], digest_in(answer)

    def _library(self, key: str, digest: str) -> Library:
        """The library of a digest: the one that was kept, if it is whole, or else a download."""
        folder = kept_folder() / digest
        if is_folder(folder):
            with suppress(LeftOut):
                return opened_as(digest, folder)
        folder = fetched(digest, lambda into: self._client.download_library(key, into, digest=digest))
        return opened_as(digest, folder)


def source_of(given: str | Path, target: Target | None = None) -> Source:
    """The source that a text names. Raises InvalidInput for what is none."""
    target = target or native()
    if isinstance(given, str) and given.startswith(("http://", "https://")):
        return Service(given, target)
    if not isinstance(given, str | Path):
        raise InvalidInput("source", f"{given!r} is none", SOURCES)
    path = expanded(given)
    if is_file(path):
        from shapewright.sources.snapshots import SnapshotFile  # noqa: PLC0415 - it is a source itself

        return SnapshotFile(path, target)
    return Directory(path, target)


def provide(directory: str | Path) -> int:
    """Have saved models find the libraries below ``directory``, where they are not kept on this machine.

    Returns how many there are. Raises ShapewrightError if it is no directory.
    """
    folders = Directory(expanded(directory), native()).folders()
    provide_folders(folders)
    return len(folders)
