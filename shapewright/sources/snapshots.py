"""The libraries of a snapshot file as a source. Those that are used are kept, as downloads are."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from shapewright.snapshot import Entry, Snapshot
from shapewright.sources.candidates import Candidate, LeftOut, candidate_of, opened
from shapewright.sources.libraries import fetched, kept_folder
from shapewright.sources.source import Listed, SourceAway
from tuner.errors import ShapewrightError
from tuner.library.package import MANIFEST
from tuner.plain_files import is_folder
from tuner.program.language.instance import program_key

if TYPE_CHECKING:
    from shapewright.library import Library


class SnapshotFile(Listed):
    """What a snapshot has that runs here: of this machine's target first, then of others with the same instructions."""

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
                self.left_out[self._called(digest)] = str(error)
        return by_program

    def _library(self, candidate: Candidate) -> Library:
        folder = kept_folder() / candidate.digest
        if is_folder(folder):
            with suppress(LeftOut):
                return opened(candidate, folder)
        entry = self._entries[candidate.digest]
        return opened(candidate, fetched(candidate.digest, lambda into: self._snapshot.extract(entry, into)))

    def _named(self, candidate: Candidate) -> str:
        return self._called(candidate.digest)

    def _called(self, digest: str) -> str:
        return f"library {digest[:12]} of {self._path}"
