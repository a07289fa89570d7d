"""A directory of libraries as a source."""

from __future__ import annotations

import os
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from shapewright.defaults import expanded
from shapewright.sources.candidates import MAX_MANIFEST, Candidate, candidate_of, opened
from shapewright.sources.libraries import provide as provide_folders
from shapewright.sources.source import Listed, SourceAway
from tuner.errors import ShapewrightError
from tuner.library.package import MANIFEST
from tuner.plain_files import is_folder, read_plain
from tuner.program.language.instance import program_key
from tuner.program.target import native

if TYPE_CHECKING:
    from shapewright.library import Library

MAX_FOLDERS = 10_000
"""Libraries that are read of one directory."""
DEPTH = 2
"""Folders below a directory in which libraries are looked for: those of `pull JOB_ID -o DIR`, and folders of such."""


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

    def every(self) -> list[Candidate]:
        """Its libraries. Raises SourceAway."""
        return [each for alike in self._by_program.values() for each in alike]

    def folders(self) -> dict[str, Path]:
        """Where each library lies, by digest. Raises SourceAway."""
        return {each.digest: each.directory for each in self.every()}

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


def provide(directory: str | Path) -> int:
    """Have saved models find the libraries below ``directory``, where they are not kept on this machine.

    Returns how many there are. Raises ShapewrightError if it is no directory.
    """
    folders = Directory(expanded(directory), native()).folders()
    provide_folders(folders)
    return len(folders)
