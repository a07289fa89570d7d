"""The part of a client that is about libraries: which one is served, downloads, and names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import httpx

from shapewright import download
from shapewright.connection import MAX_ANSWER, Fields, read_json
from shapewright.errors import ServiceNotFound
from shapewright.queries import RangesLike, WorkloadLike, key_of, library_query, part, target_named, task_of
from tuner.library.package import MANIFEST
from tuner.program.language.workload import JsonObject
from tuner.program.target.compatible import other_cores

if TYPE_CHECKING:
    from shapewright.library import Library

PAGE = 200


class LibraryRequests:
    """Requests about libraries, for a class that sends them."""

    def _json(self, method: str, path: str, **request: Any) -> Fields:
        raise NotImplementedError

    def _send(self, method: str, path: str, most: int = MAX_ANSWER, **request: Any) -> httpx.Response:
        raise NotImplementedError

    # -- which library --------------------------------------------------------------------------------------------
    def served(
        self,
        workload: WorkloadLike,
        job: str | None = None,
        digest: str | None = None,
        target: str | None = None,
        *,
        threads: int | None = None,
        ranges: RangesLike | None = None,
        alias: str | None = None,
    ) -> JsonObject:
        """Which library is served, of which job, built when, and how it compares with its ``alternatives``.

        A search task or the content of a job file brings its own target, number of threads, range and instances. With
        a key it is the best of those that cover ``ranges`` (``m=16..512`` in symbols), or of the widest. ``job``,
        ``digest`` and ``alias`` name one library.

        Where the service has none for this machine's target (or that of the task), but one of the same CPU with another
        number of cores, enough for the threads, it is that one: ``tuned_on_cores`` of the answer says how many.
        """
        asked = library_query(
            workload, target=target, threads=threads, ranges=ranges, job=job, digest=digest, alias=alias
        )
        try:
            return self._served(key_of(workload), asked)
        except ServiceNotFound:
            for fingerprint, cores in self._on_other_cores(workload, asked):
                try:
                    return {**self._served(key_of(workload), {**asked, "target": fingerprint}), "tuned_on_cores": cores}
                except ServiceNotFound:
                    continue
            raise

    def _served(self, key: str, asked: JsonObject) -> JsonObject:
        return self._json("POST", f"/v1/workloads/{key}/served", json=asked)

    def _on_other_cores(self, workload: WorkloadLike, asked: JsonObject) -> list[tuple[str, int]]:
        """Targets that the service has libraries for, and how many cores they have where ``asked`` has another number.

        None for a library that is named: a name belongs to one target.
        """
        target = target_named(workload, asked.get("target"))
        if target is None or not asked.keys().isdisjoint(("job", "digest", "alias")):
            return []
        try:
            there = {library["target_fingerprint"] for library in self.libraries(workload)}
        except ServiceNotFound:
            return []
        return other_cores(target, there, asked.get("threads", 1))

    def libraries(self, workload: WorkloadLike, target: str | None = None, limit: int = PAGE) -> list[JsonObject]:
        """The newest libraries of a workload, served or not, at most ``limit`` of them."""
        return list(self._items(f"/v1/workloads/{key_of(workload)}/libraries", limit, target=target))

    def workloads(self, limit: int = PAGE) -> list[JsonObject]:
        """The newest workloads that the service knows, at most ``limit`` of them."""
        return list(self._items("/v1/workloads", limit))

    def libraries_of_job(self, job_id: str) -> list[JsonObject]:
        """What a job has built so far, in the order of its search tasks."""
        return self._json("GET", f"/v1/jobs/{part(job_id)}/libraries").rows("items")

    def dispatcher(
        self,
        workload: WorkloadLike,
        target: str | None = None,
        job: str | None = None,
        digest: str | None = None,
        *,
        threads: int | None = None,
        ranges: RangesLike | None = None,
        alias: str | None = None,
    ) -> JsonObject:
        """The dispatch table of the library that ``served`` names, for
        ``tuner.library.dispatcher.Dispatcher.from_json``."""
        result = self.served(workload, job, digest, target, threads=threads, ranges=ranges, alias=alias)
        return self._json("GET", f"/v1/workloads/{key_of(workload)}/dispatcher", params={"digest": result["digest"]})

    # -- downloads ------------------------------------------------------------------------------------------------
    def download_library(
        self,
        workload: WorkloadLike,
        directory: str | Path,
        job: str | None = None,
        digest: str | None = None,
        target: str | None = None,
        *,
        threads: int | None = None,
        ranges: RangesLike | None = None,
        alias: str | None = None,
    ) -> JsonObject:
        """Write the library that ``served`` names into ``directory`` and return its manifest.

        Everything is checked before anything is written. Raises BadDownload if a digest differs; the directory then
        holds what it held before.
        """
        result = self.served(workload, job, digest, target, threads=threads, ranges=ranges, alias=alias)
        return self._download(key_of(workload), result["digest"], Path(directory))

    def download_job(self, job_id: str, directory: str | Path) -> list[JsonObject]:
        """Write every library that a job has built into a folder of its own below ``directory``.

        Returns their manifests, each with its ``directory`` and its ``position`` in the job. A folder is called by the
        workload's key, and by the position too where the job has several libraries for one workload.
        """
        result = self.libraries_of_job(job_id)
        keys = [library["workload_key"] for library in result]
        written = []
        for library in result:
            key, position = library["workload_key"], library["position"]
            folder = Path(directory) / (key if keys.count(key) == 1 else f"{key}-{position}")
            manifest = self._download(key, library["digest"], folder)
            written.append({"directory": str(folder), "position": position, **manifest})
        return written

    def pull(
        self,
        workload: WorkloadLike,
        directory: str | Path | None = None,
        job: str | None = None,
        digest: str | None = None,
        target: str | None = None,
        *,
        threads: int | None = None,
        ranges: RangesLike | None = None,
        alias: str | None = None,
    ) -> Library:
        """The library that ``served`` names, loaded; its files are kept in ``directory`` if one is given.

        Raises BadDownload, and ShapewrightError if this CPU lacks an instruction set that it uses.
        """
        from shapewright.library import library_in  # noqa: PLC0415 - clients that only query need no runtime

        asked = {"threads": threads, "ranges": ranges, "alias": alias}
        if directory is not None:
            self.download_library(workload, directory, job, digest, target, **asked)  # type: ignore[arg-type]
            return library_in(Path(directory))
        with TemporaryDirectory(prefix="shapewright-") as folder:
            self.download_library(workload, folder, job, digest, target, **asked)  # type: ignore[arg-type]
            return library_in(Path(folder))

    # -- names ----------------------------------------------------------------------------------------------------
    def promote(
        self,
        workload: WorkloadLike,
        digest: str,
        alias: str,
        *,
        reason: str = "",
        at_least_percent: float | None = None,
    ) -> JsonObject:
        """Give a name to the library of that digest.

        With ``at_least_percent`` a later library that is verified and at least so much faster takes it by itself.
        """
        body = {"digest": digest, "reason": reason, "at_least_percent": at_least_percent}
        return self._json("POST", f"/v1/workloads/{key_of(workload)}/aliases/{part(alias)}", json=body)

    def roll_back(
        self,
        workload: WorkloadLike,
        alias: str,
        target: str | None = None,
        threads: int | None = None,
        *,
        reason: str = "",
    ) -> JsonObject:
        """Give a name back to the library that had it before; its rule ends."""
        path = f"/v1/workloads/{key_of(workload)}/aliases/{part(alias)}/rollback"
        params = _place(workload, target, threads)
        return self._json("POST", path, params=params, json={"reason": reason})

    def aliases(self, workload: WorkloadLike, target: str | None = None) -> list[JsonObject]:
        """The names of a workload's libraries, each with its library."""
        params = {"target": target}
        return self._json("GET", f"/v1/workloads/{key_of(workload)}/aliases", params=params).rows("items")

    def promotions(
        self, workload: WorkloadLike, alias: str | None = None, target: str | None = None, limit: int = PAGE
    ) -> list[JsonObject]:
        """How names came to stand for libraries, newest first, at most ``limit`` entries."""
        return list(self._items(f"/v1/workloads/{key_of(workload)}/history", limit, alias=alias, target=target))

    def library_files(self, workload: WorkloadLike, digest: str) -> dict[str, bytes]:
        """The files of the library of that digest, by name. Raises BadDownload."""
        path = f"/v1/workloads/{key_of(workload)}/library"
        response = self._send("GET", path, download.MAX_BYTES, params={"digest": digest})
        download.check_transfer(response.content, response.headers.get("Content-Digest"))
        files = download.unpack(response.content)
        download.check(files, digest)
        return files

    def _download(self, key: str, digest: str, directory: Path) -> JsonObject:
        files = self.library_files(key, digest)
        download.write(files, directory)
        return read_json(files[MANIFEST], MANIFEST)

    def _items(self, path: str, limit: int, **params: object) -> Iterator[JsonObject]:
        """The first ``limit`` items of a list that comes in pages."""
        cursor: str | None = None
        while limit > 0:
            page = self._json("GET", path, params={**params, "cursor": cursor, "limit": min(PAGE, limit)})
            rows = page.rows("items")
            yield from rows
            limit -= len(rows)
            cursor = page["cursor"]
            if cursor is None:
                return


def _place(workload: WorkloadLike, target: str | None, threads: int | None) -> JsonObject:
    """The target and the number of threads, those of a task or a job where they are not given."""
    task = task_of(workload)
    if task is None:
        return {"target": target, "threads": threads}
    own = task.target.fingerprint if task.target else None
    return {"target": target or own, "threads": threads or task.threads}
