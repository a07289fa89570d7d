"""The libraries of a snapshot file as a source. Those that are used are kept, as downloads are."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from shapewright.snapshot import Entry, Snapshot
from shapewright.sources.candidates import Candidate, LeftOut, candidate_of, fitting_of, opened
from shapewright.sources.libraries import fetched, kept_folder
from shapewright.sources.source import Match, SourceAway
from tuner.errors import ShapewrightError
from tuner.library.package import MANIFEST
from tuner.plain_files import is_folder
from tuner.program.instance import program_key
from tuner.program.target import Target
from tuner.program.workload import Workload

if TYPE_CHECKING:
    from shapewright.library import Library


class SnapshotFile:
    """What a snapshot has that runs here: of this machine's target first, then of others with the same instructions."""

    def __init__(self, path: Path, target: Target) -> None:
        self.name = str(path)
        self.left_out: dict[str, str] = {}
        self._path = path
        self._target = target

    @cached_property
    def _snapshot(self) -> Snapshot:
        try:
            return Snapshot(self._path)
        except (ShapewrightError, OSError) as error:
            raise SourceAway(str(error)) from error

    @cached_property
    def _entries(self) -> dict[str, Entry]:
        return {entry.digest: entry for entry in self._snapshot.entries}

    @cached_property
    def _by_program(self) -> dict[str, list[Candidate]]:
        """What the file's libraries say of themselves."""
        by_program: dict[str, list[Candidate]] = {}
        for digest, entry in self._entries.items():
            try:
                candidate = candidate_of(self._path, self._snapshot.files(entry)[MANIFEST])
                by_program.setdefault(program_key(candidate.workload.canonical), []).append(candidate)
            except (ShapewrightError, OSError) as error:
                self._leave_out(digest, error)
        return by_program

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
                reason = self._leave_out(each.digest, error)
        return reason

    def _library(self, candidate: Candidate) -> Library:
        folder = kept_folder() / candidate.digest
        if is_folder(folder):
            with suppress(LeftOut):
                return opened(candidate, folder)
        entry = self._entries[candidate.digest]
        return opened(candidate, fetched(candidate.digest, lambda into: self._snapshot.extract(entry, into)))

    def _leave_out(self, digest: str, error: Exception) -> str:
        self.left_out[f"library {digest[:12]} of {self._path}"] = str(error)
        return str(error)
