"""Which library serves a workload of a model: sources in turn, the number of threads, and what a build must report."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

from shapewright.sources.directory import Directory
from shapewright.sources.libraries import keep, kept_folder
from shapewright.sources.opening import SOURCES, source_of
from shapewright.sources.source import Match, Source, SourceAway, SourceLike
from tuner.errors import InvalidInput, ShapewrightError, clean
from tuner.plain_files import is_folder
from tuner.program.job.build import has_tf32, in_tf32
from tuner.program.language.workload import Workload
from tuner.program.target import Target, native

AWAY_S = 60.0
"""How long a source that could not be queried is left alone: a model has many graphs, and each queries anew."""

MAX_TOLD = 5
"""Problems that one warning spells out."""

_away: dict[str, tuple[float, str]] = {}


class Finder:
    """Queries ``sources`` in turn. A source that is away is reported once and queried no more; what was kept of earlier
    builds takes its place. With ``strict`` it raises instead. A library that cannot be used is left out and reported,
    the others of its source serve.

    ``tf32``: products of float32 may be in TF32: libraries that are tuned for it come first, those of float32 do as
    well. ``notes``: what a report has to say about the sources, in order.
    """

    def __init__(
        self, sources: Sequence[Source], target: Target, *, threads: int, strict: bool, tf32: bool = False
    ) -> None:
        self._sources = list(sources)
        self.target = target
        """What libraries have to run on."""
        self._threads = threads
        self._strict = strict
        self._tf32 = tf32
        self._matches: dict[str, Match | str] = {}
        self._said: dict[str, list[str]] = {}
        """Notes for a report if the library of a workload is used, by the workload's key."""
        self.notes: list[str] = []
        self._news: list[str] = []
        self._is_told = False

    def has(self, workload: Workload) -> bool:
        """Whether there is a library. Nothing is said of it: it may not be used."""
        return any(isinstance(self._match(each), Match) for each in self._meant(workload))

    def wanted(self, workload: Workload) -> Workload:
        """What is best tuned for a workload of a model: the same, in TF32 where that is allowed."""
        return self._meant(workload)[0]

    def _meant(self, workload: Workload) -> tuple[Workload, ...]:
        """The workloads whose libraries serve, the best first."""
        if self._tf32 and has_tf32(workload):
            return in_tf32(workload), workload
        return (workload,)

    def find(self, workload: Workload, *, may_miss: bool = False) -> Match | str:
        """The library for ``workload``, or why there is none. With ``strict`` raises ShapewrightError for the latter,
        unless it ``may_miss``: another workload would do as well."""
        for meant in self._meant(workload):
            match = self._match(meant)
            if isinstance(match, Match):
                break
        for text in self._said.get(meant.key, ()):
            self.note(text)
        if isinstance(match, str) and self._strict and not may_miss:
            raise ShapewrightError(f"{workload}: {match}; tune it, or leave strict out")
        return match

    def _match(self, workload: Workload) -> Match | str:
        """The sources' answer to the first query for the workload."""
        if workload.key not in self._matches:
            self._matches[workload.key] = self._first(workload)
        return self._matches[workload.key]

    def _first(self, workload: Workload) -> Match | str:
        try:
            return self._in_turn(workload)
        finally:
            self._tell()

    def _in_turn(self, workload: Workload) -> Match | str:
        reasons: dict[str, None] = {}
        for threads in dict.fromkeys((self._threads, 1)):
            for source in list(self._sources):
                match = self._asked(source, workload, threads)
                if isinstance(match, Match):
                    said = self._said.setdefault(workload.key, [])
                    if threads != self._threads:
                        said.append(f"{workload} runs on one thread: no library of it is for {self._threads}")
                    if (cores := match.other_cores(self.target)) is not None:
                        said.append(
                            f"{source.name} has libraries that were tuned on {cores} cores, here are "
                            f"{self.target.hardware.cores}"
                        )
                    keep(match.library)
                    return match
                reasons.setdefault(match)
        return "; ".join(filter(None, reasons)) or "no source answers"

    def _asked(self, source: Source, workload: Workload, threads: int) -> Match | str:
        try:
            return self._answer(source, workload, threads)
        except SourceAway as error:
            if _away.get(source.name, (0.0, ""))[0] < time.monotonic():
                _away[source.name] = (time.monotonic() + AWAY_S, str(error))
            if self._strict:
                raise
            self._sources.remove(source)
            self._warn(f"{error}; libraries that were kept earlier serve in its place, and what has none is not tuned")
            if not any(each.name == str(kept_folder()) for each in self._sources) and is_folder(kept_folder()):
                self._sources.append(Directory(kept_folder(), self.target))
                return self._asked(self._sources[-1], workload, threads)
            return ""

    def _answer(self, source: Source, workload: Workload, threads: int) -> Match | str:
        """What a source says. Raises SourceAway, and that alone: no source can break a build."""
        if source.name in _away and time.monotonic() < _away[source.name][0]:
            raise SourceAway(_away[source.name][1])
        try:
            return source.find(workload, threads)
        except SourceAway:
            raise
        except Exception as error:
            raise SourceAway(f"{source.name} cannot be used: {type(error).__name__}: {error}") from error
        finally:
            for what, reason in source.left_out.items():
                self._warn(f"{what} is left out: {reason}")

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def warn(self, text: str) -> None:
        """A note, and a warning at once."""
        if clean(text) not in self.notes:
            self.notes.append(clean(text))
            warnings.warn(f"shapewright: {clean(text)}", stacklevel=2)

    def _warn(self, text: str) -> None:
        """A note that is worth a warning, too."""
        text = clean(text)
        if text not in self.notes:
            self.notes.append(text)
            self._news.append(text)

    def _tell(self) -> None:
        """Warn, once for each finder: of what the first workload with any trouble brought to light. What comes to light
        later is in the notes."""
        if self._news and not self._is_told:
            self._is_told = True
            more = len(self._news) - MAX_TOLD
            told = [*self._news[:MAX_TOLD], *([f"and {more} more, which the report's notes name"] if more > 0 else [])]
            self._news.clear()
            warnings.warn(f"shapewright: {'; '.join(told)}", stacklevel=2)


def finder_of(
    source: SourceLike | None, *, strict: bool = False, threads: int = 1, target: Target | None = None,
    tf32: bool = False,
) -> Finder:  # fmt: skip
    """A finder for what the user gave; None is the service of SHAPEWRIGHT_URL, or of `shapewright up`.

    ``target``: what libraries must run on, this machine if it is None. ``tf32``: see Finder. Raises InvalidInput.
    """
    from shapewright.defaults import service_url  # noqa: PLC0415

    given = service_url() if source is None else source
    target = target or native()
    several: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    if not several:
        raise InvalidInput("source", "is empty", SOURCES)
    return Finder([source_of(each, target) for each in several], target, threads=threads, strict=strict, tf32=tf32)
