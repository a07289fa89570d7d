"""Built libraries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tuner.program.workload import JsonObject


@dataclass(frozen=True, slots=True)
class Artifact:
    """A built library: the files that ``pull`` writes, by name, and the facts that name it.

    ``manifest`` and ``dispatch`` are the parsed content of the files manifest.json and dispatch.json.
    """

    digest: str
    workload_key: str
    target_fingerprint: str
    threads: int
    job_id: str | None
    manifest: JsonObject
    dispatch: JsonObject
    created_at: str = ""


class LibraryStorage(Protocol):
    """Finding libraries and reading their files."""

    def latest_artifact(
        self,
        workload_key: str,
        target_fingerprint: str | None = None,
        job_id: str | None = None,
        digest: str | None = None,
    ) -> Artifact:
        """The newest library for a workload that fits every given restriction. Raises NotFound."""

    def artifact_files(self, digest: str) -> dict[str, bytes]:
        """The files of a library, by name. Raises NotFound."""
