"""Requests about libraries: which one is served, and downloads."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from shapewright import download
from shapewright.connection import read_json
from shapewright.errors import Refused, ServiceNotFound
from shapewright.queries import (
    RangesLike,
    WorkloadLike,
    check_knows_caches,
    key_of,
    library_query,
    part,
    target_named,
)
from shapewright.steps import PAGE, Call, Steps, Work, ask, items, request
from tuner.errors import InvalidInput, shown
from tuner.library.package import MANIFEST
from tuner.program.language.workload import JsonObject
from tuner.program.target.compatible import substitutes

if TYPE_CHECKING:
    from shapewright.library import Library

SHORTEST_DIGEST = 6
MOST_LIBRARIES = 1000
"""Libraries of a workload, the newest, among which one is found by the first digits of its digest."""
_DIGEST, _BEGINNING = re.compile("[0-9a-f]{64}"), re.compile(f"[0-9a-f]{{{SHORTEST_DIGEST},64}}")


class LibraryRequests:
    """For a class that sends requests."""

    # -- which library --------------------------------------------------------------------------------------------
    @request
    def served(
        self,
        workload: WorkloadLike,
        job: str | None = None,
        digest: str | None = None,
        target: str | None = None,
        *,
        threads: int | None = None,
        cache: str | None = None,
        ranges: RangesLike | None = None,
        alias: str | None = None,
    ) -> Steps[JsonObject]:
        """Which library is served, of which job, built when, and how it compares with its ``alternatives``.

        A search task or the content of a job file brings its own target, number of threads, state of the caches, range
        and instances. With a key it is the best of those that cover ``ranges`` (``m=16..512`` in symbols), or of the
        widest; of those tuned for warm caches, unless ``cache`` says cold or streamed, or there are no others. ``job``,
        ``digest`` and ``alias`` name one library.

        Where the service has none for this machine's target (or that of the task), but one of the same CPU with another
        number of cores, enough for the threads, it is that one: ``tuned_on_cores`` of the answer says how many. So is
        one of another GPU of the same instruction set: ``stands_in_for`` is the target that has none.
        """
        asked = library_query(
            workload, target=target, threads=threads, cache=cache, ranges=ranges, job=job, digest=digest, alias=alias
        )
        return (yield from self._served(workload, asked))

    def _served(self, workload: WorkloadLike, asked: JsonObject) -> Steps[JsonObject]:
        path = f"/v1/workloads/{key_of(workload)}/served"
        if "digest" in asked:
            asked = {**asked, "digest": (yield from self._digest(workload, asked["digest"]))}
        try:
            return (yield from _answer(path, asked))
        except ServiceNotFound:
            for fingerprint, cores in (yield from self._substitutes(workload, asked)):
                try:
                    served = yield from _answer(path, {**asked, "target": fingerprint})
                except ServiceNotFound:
                    continue
                is_gpu = cores is None
                return {**served, **({"stands_in_for": asked["target"]} if is_gpu else {"tuned_on_cores": cores})}
            raise

    def _digest(self, workload: WorkloadLike, digest: str) -> Steps[str]:
        """The digest that begins so, of the workload's libraries. Raises InvalidInput, ServiceNotFound."""
        if _DIGEST.fullmatch(digest):
            return digest
        if not _BEGINNING.fullmatch(digest):
            remedy = f"its {SHORTEST_DIGEST} to 64 first digits, as `shapewright history` lists them"
            raise InvalidInput("digest", f"{shown(digest)} is no SHA-256, nor the beginning of one", remedy)
        key = key_of(workload)
        libraries = yield from items(f"/v1/workloads/{key}/libraries", MOST_LIBRARIES)
        found = [each["digest"] for each in libraries if each["digest"].startswith(digest)]
        if len(found) > 1:
            raise InvalidInput("digest", f"{digest} begins {len(found)} libraries", f"one of: {', '.join(found[:10])}")
        if not found:
            raise ServiceNotFound(f"no library of {key} has a digest that begins with {digest}")
        return str(found[0])

    def _substitutes(self, workload: WorkloadLike, asked: JsonObject) -> Steps[list[tuple[str, int | None]]]:
        """Targets that the service has libraries for and that may stand for the one of ``asked``, with their cores.

        None for a library that is named: a name belongs to one target.
        """
        target = target_named(workload, asked.get("target"))
        if target is None or not asked.keys().isdisjoint(("job", "digest", "alias")):
            return []
        try:
            libraries = yield from items(f"/v1/workloads/{key_of(workload)}/libraries", PAGE)
        except ServiceNotFound:
            return []
        there = {library["target_fingerprint"] for library in libraries}
        return substitutes(target, there, asked.get("threads", 1))

    @request
    def libraries(
        self, workload: WorkloadLike, target: str | None = None, limit: int = PAGE
    ) -> Steps[list[JsonObject]]:
        """The newest libraries of a workload, served or not, at most ``limit`` of them."""
        return (yield from items(f"/v1/workloads/{key_of(workload)}/libraries", limit, target=target))

    @request
    def workloads(self, limit: int = PAGE) -> Steps[list[JsonObject]]:
        """The newest workloads that the service knows, at most ``limit`` of them."""
        return (yield from items("/v1/workloads", limit))

    @request
    def libraries_of_job(self, job_id: str) -> Steps[list[JsonObject]]:
        """What a job has built so far, in the order of its search tasks."""
        return (yield from ask("GET", f"/v1/jobs/{part(job_id)}/libraries")).rows("items")

    @request
    def dispatcher(
        self,
        workload: WorkloadLike,
        target: str | None = None,
        job: str | None = None,
        digest: str | None = None,
        *,
        threads: int | None = None,
        cache: str | None = None,
        ranges: RangesLike | None = None,
        alias: str | None = None,
    ) -> Steps[JsonObject]:
        """The dispatch table of the library that ``served`` names, for
        ``tuner.library.dispatcher.Dispatcher.from_json``."""
        asked = library_query(
            workload, target=target, threads=threads, cache=cache, ranges=ranges, job=job, digest=digest, alias=alias
        )
        result = yield from self._served(workload, asked)
        return (
            yield from ask("GET", f"/v1/workloads/{key_of(workload)}/dispatcher", params={"digest": result["digest"]})
        )

    # -- downloads ------------------------------------------------------------------------------------------------
    @request
    def download_library(
        self,
        workload: WorkloadLike,
        directory: str | Path,
        job: str | None = None,
        digest: str | None = None,
        target: str | None = None,
        *,
        threads: int | None = None,
        cache: str | None = None,
        ranges: RangesLike | None = None,
        alias: str | None = None,
    ) -> Steps[JsonObject]:
        """Write the library that ``served`` names into ``directory`` and return its manifest.

        Everything is checked before anything is written. Raises BadDownload if a digest differs; the directory then
        holds what it held before.
        """
        asked = library_query(
            workload, target=target, threads=threads, cache=cache, ranges=ranges, job=job, digest=digest, alias=alias
        )
        result = yield from self._served(workload, asked)
        return (yield from self._download(key_of(workload), result["digest"], Path(directory)))

    @request
    def download_job(self, job_id: str, directory: str | Path) -> Steps[list[JsonObject]]:
        """Write every library that a job has built into a folder of its own below ``directory``.

        Returns their manifests, each with its ``directory`` and its ``position`` in the job. A folder is called by the
        workload's key, and by the position too where the job has several libraries for one workload.
        """
        result = (yield from ask("GET", f"/v1/jobs/{part(job_id)}/libraries")).rows("items")
        keys = [library["workload_key"] for library in result]
        written = []
        for library in result:
            key, position = library["workload_key"], library["position"]
            folder = Path(directory) / (key if keys.count(key) == 1 else f"{key}-{position}")
            manifest = yield from self._download(key, library["digest"], folder)
            written.append({"directory": str(folder), "position": position, **manifest})
        return written

    @request
    def pull(
        self,
        workload: WorkloadLike,
        directory: str | Path | None = None,
        job: str | None = None,
        digest: str | None = None,
        target: str | None = None,
        *,
        threads: int | None = None,
        cache: str | None = None,
        ranges: RangesLike | None = None,
        alias: str | None = None,
    ) -> Steps[Library]:
        """The library that ``served`` names, loaded; its files are kept in ``directory`` if one is given.

        Raises BadDownload, and ShapewrightError if this CPU lacks an instruction set that it uses.
        """
        from shapewright.library import library_in  # noqa: PLC0415 - clients that only query need no runtime

        asked = library_query(
            workload, target=target, threads=threads, cache=cache, ranges=ranges, job=job, digest=digest, alias=alias
        )
        key, result = key_of(workload), (yield from self._served(workload, asked))
        with ExitStack() as stack:
            folder = directory or stack.enter_context(TemporaryDirectory(prefix="shapewright-"))
            yield from self._download(key, result["digest"], Path(folder))
            library: Library = yield Work(lambda: library_in(Path(folder)))
            return library

    @request
    def library_files(self, workload: WorkloadLike, digest: str) -> Steps[dict[str, bytes]]:
        """The files of the library of that digest, by name. Raises BadDownload."""
        return (yield from self._files(key_of(workload), digest))

    def _files(self, key: str, digest: str) -> Steps[dict[str, bytes]]:
        params = {"params": {"digest": digest}}
        response = yield Call("GET", f"/v1/workloads/{key}/library", download.MAX_BYTES, params)
        download.check_transfer(response.content, response.headers.get("Content-Digest"))
        files = download.unpack(response.content)
        download.check(files, digest)
        return files

    def _download(self, key: str, digest: str, directory: Path) -> Steps[JsonObject]:
        files = yield from self._files(key, digest)
        yield Work(lambda: download.write(files, directory))
        return read_json(files[MANIFEST], MANIFEST)


def _answer(path: str, asked: JsonObject) -> Steps[JsonObject]:
    """What a service says of a query for a library: one of an earlier release, too, which has those for warm caches
    alone and does not know ``cache``."""
    try:
        return (yield from ask("POST", path, json=asked))
    except Refused as error:
        if error.problem.get("field") != "cache":
            raise
        check_knows_caches({}, asked.get("cache"))
    return (yield from ask("POST", path, json={name: value for name, value in asked.items() if name != "cache"}))
