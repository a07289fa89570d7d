"""What a service serves, as a source."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from shapewright.sources.candidates import PREFERRED, LeftOut, digest_in, opened_as
from shapewright.sources.covering import covers
from shapewright.sources.libraries import fetched, kept_folder
from shapewright.sources.source import Match, SourceAway
from tuner.errors import InvalidInput
from tuner.plain_files import is_folder
from tuner.program.job.cache import Cache
from tuner.program.language.workload import Workload
from tuner.program.target import Target

if TYPE_CHECKING:
    from shapewright.client import Client
    from shapewright.library import Library


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
        """The key and the digest of the library that is served. Raises ServiceNotFound for the last of PREFERRED."""
        from shapewright.errors import ServiceNotFound  # noqa: PLC0415

        *before, last = PREFERRED
        for cache in before:
            with suppress(ServiceNotFound):
                return self._served_for(workload, threads, cache)
        return self._served_for(workload, threads, last)

    def _served_for(self, workload: Workload, threads: int, cache: Cache) -> tuple[str, str]:
        from shapewright.errors import ServiceNotFound  # noqa: PLC0415

        target = self._target.fingerprint
        try:
            return workload.key, digest_in(
                self._client.served(workload, target=target, threads=threads, cache=cache.value)
            )
        except ServiceNotFound:
            if workload.symbols:
                raise
        # One shape: a library of a dynamic workload may have it.
        answer = self._client.best(workload, {}, target, threads, cache=cache.value)
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
