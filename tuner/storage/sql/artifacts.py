"""Libraries: a job's product, with its dispatcher and its files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, insert, select, update

from tuner.errors import InvalidInput
from tuner.library.dispatcher import made_for
from tuner.program.job.cache import Cache
from tuner.program.language.spans import span_to_json
from tuner.program.language.workload import JsonObject
from tuner.records import protocol_of
from tuner.storage.errors import NotFound, reading
from tuner.storage.jobs import Lease, NewEvent, Page
from tuner.storage.libraries import Artifact, Comparison, LibraryQuery, LibraryRow
from tuner.storage.sql import cursors
from tuner.storage.sql._rows import AnyRow, Part, append_events, find_job, insert_new, lock_leased
from tuner.storage.sql.aliases import promote_by_rule
from tuner.storage.sql.identity import stored_task
from tuner.storage.sql.library_rows import ROWS, known_of, known_rows, settle
from tuner.storage.sql.schema import (
    artifact_files,
    artifacts,
    dispatchers,
    library_kernels,
    search_tasks,
    targets,
    workloads,
)
from tuner.storage.sql.search_tasks import find_task


class Artifacts(Part):
    def latest_artifact(
        self,
        workload_key: str,
        target_fingerprint: str | None = None,
        job_id: str | None = None,
        digest: str | None = None,
    ) -> Artifact:
        """The newest library for a workload that fits every given restriction, served or not. Raises NotFound."""
        wanted = {
            workloads.c.key: workload_key,
            targets.c.fingerprint: target_fingerprint,
            search_tasks.c.job_id: job_id,
            artifacts.c.digest: digest,
        }
        given = {column: value for column, value in wanted.items() if value is not None}
        query = _select().where(*(column == value for column, value in given.items()))
        with self._database.read() as connection:
            row = connection.execute(query.order_by(artifacts.c.id.desc()).limit(1)).one_or_none()
        if row is None:
            asked = ", ".join(f"{column.name} {value!r}" for column, value in given.items())
            raise NotFound(f"no library for workload {asked}")
        return _artifact_of(row)

    def list_libraries(self, query: LibraryQuery, cursor: str | None = None, limit: int = 50) -> Page[LibraryRow]:
        """Every library of a workload, newest first, as far as target, threads, caches, job and digest are given."""
        wanted = {
            targets.c.fingerprint: query.target_fingerprint,
            artifacts.c.threads: query.threads,
            artifacts.c.cache: query.cache,
            search_tasks.c.job_id: query.job_id,
            artifacts.c.digest: query.digest,
        }
        given = (column == value for column, value in wanted.items() if value is not None)
        rows = ROWS.where(workloads.c.key == query.workload_key, *given).order_by(artifacts.c.id.desc())
        if (before := cursors.decode("libraries", cursor)) is not None:
            rows = rows.where(artifacts.c.id < before)
        with self._database.read() as connection:
            known = connection.scalar(select(workloads.c.id).where(workloads.c.key == query.workload_key))
            if known is None:
                raise NotFound(f"no workload {query.workload_key!r}")
            found = connection.execute(rows.limit(cursors.checked(limit) + 1)).all()
            libraries = {row.number: row.library for row in known_of(connection, found)}
        page = cursors.page("libraries", found, limit, lambda row: int(row.id), lambda row: libraries.get(row.id))
        return Page(tuple(library for library in page.items if library is not None), page.cursor)

    def libraries_of_job(self, job_id: str) -> tuple[tuple[int, LibraryRow], ...]:
        """The library of each search task of the job that has one, with the task's position. Raises NotFound."""
        rows = ROWS.where(search_tasks.c.job_id == job_id).order_by(artifacts.c.id)
        with self._database.read() as connection:
            find_job(connection, job_id)
            newest = {row.position: row.library for row in known_rows(connection, rows)}
        return tuple(sorted(newest.items(), key=lambda item: item[0]))

    def artifact_files(self, digest: str) -> dict[str, bytes]:
        """The files of a library, by name. Raises NotFound."""
        newest = select(artifacts.c.id).where(artifacts.c.digest == digest).order_by(artifacts.c.id.desc()).limit(1)
        query = select(artifact_files).where(artifact_files.c.artifact_id == newest.scalar_subquery())
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(artifact_files.c.name)).all()
        if not rows:
            raise NotFound(f"no library with digest {digest!r}")
        return {row.name: bytes(row.content) for row in rows}


class NewLibraries(Part):
    def save_library(
        self,
        lease: Lease,
        search_task_id: int,
        files: Mapping[str, bytes],
        manifest: JsonObject,
        dispatch: JsonObject,
        events: Sequence[NewEvent] = (),
        comparison: Comparison | None = None,
        done: bool = True,
    ) -> Artifact:
        """Store a built library and its dispatcher, and mark the search task done. Raises LeaseLost.

        ``digest`` of the artifact is ``manifest["digest"]``; a library that the search task has already, by its digest,
        is not stored again, nor are its events. ``comparison`` with what was served: if the new library covers as much
        and wins it is served from now on, and the other one superseded; if it covers no more and does not win it is
        superseded itself. Aliases whose rule it fulfils name it. Without a comparison it stands beside the others.
        ``done`` is False for a search that was cancelled: whoever resumes the job goes on with it.
        """
        digest = manifest.get("digest")
        if not isinstance(digest, str) or not digest:
            raise InvalidInput("manifest.digest", f"{digest!r} is not a digest", "the library's SHA-256 in hex")
        if not files:
            raise InvalidInput("files", "a library without files", "the files that `pull` writes, by name")
        with self._database.write() as connection:
            job = lock_leased(connection, lease)
            task = find_task(connection, job.id, search_task_id)
            is_new = insert_new(connection, artifacts, [_columns(task, digest, manifest)])
            same = (artifacts.c.search_task_id == search_task_id, artifacts.c.digest == digest)
            number: int = connection.execute(select(artifacts.c.id).where(*same)).scalar_one()
            if is_new:
                _insert_content(connection, number, files, dispatch)
                compared = _compared(connection, number, comparison)
                data = {"digest": digest, "search_task_id": search_task_id, **compared}
                append_events(connection, job.id, [*events, NewEvent("library", data)])
            if done:
                connection.execute(update(search_tasks).where(search_tasks.c.id == search_task_id).values(done=True))
            return artifact_of(connection, number)


def artifact_of(connection: Connection, number: int) -> Artifact:
    """The library of that number, with its content. Raises NotFound if it was deleted meanwhile."""
    row = connection.execute(_select().where(artifacts.c.id == number)).one_or_none()
    if row is None:
        raise NotFound(f"library {number} was deleted meanwhile; ask again")
    return _artifact_of(row)


def _columns(task: AnyRow, digest: str, manifest: JsonObject) -> JsonObject:
    return {
        "digest": digest,
        "search_task_id": task.id,
        "workload_id": task.workload_id,
        "target_id": task.target_id,
        "threads": task.threads,
        "manifest": manifest,
        "ranges": {name: span_to_json(span) for name, span in made_for(stored_task(json.dumps(task.task))).items()},
        "protocol": str(manifest.get("protocol") or protocol_of(Cache(task.cache))),
        "cache": task.cache,
    }


def _insert_content(connection: Connection, number: int, files: Mapping[str, bytes], dispatch: JsonObject) -> None:
    rows = [{"artifact_id": number, "name": name, "content": content} for name, content in files.items()]
    connection.execute(insert(artifact_files), rows)
    connection.execute(insert(dispatchers), {"artifact_id": number, "dispatch": dispatch})
    kernels = [{"artifact_id": number, "kernel_id": kernel["id"]} for kernel in dispatch.get("kernels", ())]
    insert_new(connection, library_kernels, kernels)


def _compared(connection: Connection, number: int, comparison: Comparison | None) -> JsonObject:
    """Carry out what a comparison decides; the facts of it for the library's event."""
    if comparison is None:
        return {}
    row = ROWS.where(artifacts.c.id == number)
    verdict = settle(connection, known_rows(connection, row)[0], comparison)
    promoted = promote_by_rule(connection, known_rows(connection, row)[0]) if comparison.wins else []
    return {"comparison": comparison.to_json(verdict), **({"aliases": promoted} if promoted else {})}


def _select() -> Select[Any]:
    return (
        select(artifacts, dispatchers.c.dispatch, workloads.c.key, targets.c.fingerprint, search_tasks.c.job_id)
        .join(dispatchers, dispatchers.c.artifact_id == artifacts.c.id)
        .join(workloads, workloads.c.id == artifacts.c.workload_id)
        .join(targets, targets.c.id == artifacts.c.target_id)
        .join(search_tasks, search_tasks.c.id == artifacts.c.search_task_id)
    )


def _artifact_of(row: AnyRow) -> Artifact:
    with reading(f"library {row.digest}", row.manifest, row.dispatch):
        pass
    return Artifact(
        digest=row.digest,
        workload_key=row.key,
        target_fingerprint=row.fingerprint,
        threads=row.threads,
        cache=Cache(row.cache),
        job_id=row.job_id,
        manifest=row.manifest,
        dispatch=row.dispatch,
        created_at=row.created_at,
    )
