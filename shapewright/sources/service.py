"""What a service serves, as a source."""

from __future__ import annotations

from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from shapewright.sources.candidates import PREFERRED, LeftOut, digest_in, opened_as, preference
from shapewright.sources.covering import covers
from shapewright.sources.libraries import fetched, kept_folder
from shapewright.sources.source import Match, SourceAway
from tuner.errors import InvalidInput
from tuner.plain_files import is_folder
from tuner.program.language.workload import JsonObject, Workload
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
        """The key and the digest of the library that is served: the first by ``preference``. Raises ServiceNotFound."""
        from shapewright.errors import ServiceNotFound  # noqa: PLC0415

        if own := self._of_workload(workload, threads):
            return workload.key, digest_in(min(own, key=itemgetter(0))[1])
        # One shape: a library of a dynamic workload may have it.
        if not workload.symbols and (covering := self._covering(workload, threads)):
            return covering[0]["workload_key"], digest_in(covering[0])
        raise ServiceNotFound(f"{self.name} has no library for {workload}")

    def _of_workload(self, workload: Workload, threads: int) -> list[tuple[tuple[Any, ...], JsonObject]]:
        """What is served for each state of the caches, with its ``preference``, up to the first for this very target:
        none is better."""
        from shapewright.errors import ServiceNotFound  # noqa: PLC0415

        found, target = list[tuple[tuple[Any, ...], JsonObject]](), self._target.fingerprint
        for cache in PREFERRED:
            try:
                served = self._client.served(workload, target=target, threads=threads, cache=cache.value)
            except ServiceNotFound:
                continue
            except InvalidInput as error:
                # A service of an earlier release has libraries for warm caches alone.
                if error.field != "cache":
                    raise
                continue
            made_for = served["target_fingerprint"]
            found.append((preference(made_for, cache, self._target), served))
            if made_for == target:
                break
        return found

    def _covering(self, workload: Workload, threads: int) -> list[JsonObject]:
        """What is known of this one shape where there are libraries for it, in the order of PREFERRED."""
        asked = {"workload": workload.to_json(), "target": self._target.fingerprint, "threads": threads}
        queries = [{**asked, "cache": cache.value} for cache in PREFERRED]
        best = (answer.get("best") for answer in self._client.lookup(queries))
        return [each for each in best if isinstance(each, dict) and each.get("digest")]

    def _library(self, key: str, digest: str) -> Library:
        """The library of a digest: the one that was kept, if it is whole, or else a download."""
        folder = kept_folder() / digest
        if is_folder(folder):
            with suppress(LeftOut):
                return opened_as(digest, folder)
        folder = fetched(digest, lambda into: self._client.download_library(key, into, digest=digest))
        return opened_as(digest, folder)
