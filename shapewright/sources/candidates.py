"""Libraries by their manifests: which of them can serve a workload here, the best first.

A manifest is what somebody wrote into a folder. One that is not a library's leaves that library out, nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shapewright.sources.covering import covers
from shapewright.sources.libraries import load_library
from tuner.errors import ShapewrightError, shown
from tuner.program.job.build import workload_from_stored
from tuner.program.job.cache import CACHES, Cache
from tuner.program.job.task import MAX_THREADS
from tuner.program.language.instance import program_key
from tuner.program.language.workload import Workload
from tuner.program.target import Target
from tuner.program.target.compatible import cores_by_fingerprint
from tuner.program.target.cpu import refused

if TYPE_CHECKING:
    from shapewright.library import Library

MAX_MANIFEST = 16 << 20
"""Bytes of a manifest that is read; those of libraries have some kB."""
DIGEST = re.compile("[0-9a-f]{64}")
PREFERRED = (Cache.STREAMED, Cache.WARM, Cache.COLD)
"""What libraries for models were best tuned for, in order: in a model weights come from memory."""


def preference(made_for: object, cache: Cache, target: Target) -> tuple[Any, ...]:
    """The order of libraries of one workload in every source, the best first: those made for this very target (by its
    fingerprint), then for its CPU with other cores; by PREFERRED; by how many cores they have more or less."""
    cores = {**cores_by_fingerprint(target), target.fingerprint: target.hardware.cores}.get(str(made_for))
    others = 0 if cores is None else abs(cores - target.hardware.cores)
    return made_for != target.fingerprint, cores is None, PREFERRED.index(cache), others


class LeftOut(ShapewrightError):
    """Why a library of a source does not count."""


@dataclass(frozen=True)
class RunsOn:
    """The hardware of a library: the instruction set of a GPU, or else the features of a CPU."""

    features: frozenset[str]
    arch: str = ""

    def misfit(self, target: Target) -> str:
        """Why it does not run there; empty if it does."""
        own = target.mcpu if target.gpu is not None else ""
        if self.arch != own:
            its, wanted = (f"a GPU of {arch}" if arch else "CPUs" for arch in (self.arch, own))
            return f"it is for {its}, not for {wanted}"
        missing = sorted(self.features - set(target.hardware.features))
        reason = refused(missing)
        because = f" ({reason})" if reason else ""
        return f"it is for a CPU with {', '.join(missing)}{because}" if missing else ""


@dataclass(frozen=True)
class Candidate:
    """A library by what its manifest says, and where its files are. ``width``: of its ranges, in all."""

    directory: Path
    workload: Workload
    digest: str
    threads: int
    runs_on: RunsOn
    made_for: object
    width: int
    cache: Cache = Cache.WARM

    def misfit(self, threads: int, target: Target) -> str:
        """Why it cannot serve here; empty if it can."""
        if self.threads != threads:
            return f"it is for {self.threads} threads, not {threads}"
        return self.runs_on.misfit(target)

    def rank(self, target: Target) -> tuple[Any, ...]:
        """The best first: by ``preference``, for the widest ranges, then by digest."""
        return *preference(self.made_for, self.cache, target), -self.width, self.digest

    def match_of(self, workload: Workload) -> str:
        return "exact" if self.workload.key == workload.key else "covers"


def fitting_of(
    by_program: Mapping[str, Sequence[Candidate]], workload: Workload, threads: int, target: Target
) -> list[Candidate] | str:
    """The libraries that can serve a workload here, the best first; or why there is none."""
    alike = [each for each in by_program.get(program_key(workload.canonical), ()) if covers(each.workload, workload)]
    if not alike:
        return "no library for this workload"
    fitting = [each for each in alike if not each.misfit(threads, target)]
    if not fitting:
        return alike[0].misfit(threads, target)
    return sorted(fitting, key=lambda each: (each.workload.key != workload.key, each.rank(target)))


def candidate_of(directory: Path, manifest: bytes) -> Candidate:
    """The library of a manifest. Raises LeftOut for what this version cannot read."""
    try:
        data = json.loads(manifest)
        if not isinstance(data, dict):
            raise LeftOut(f"its manifest is {shown(data)}")
        workload = workload_from_stored(json.dumps(data["workload"]))
        threads, fingerprint = data["threads"], data.get("target_fingerprint")
        return Candidate(
            directory, workload, digest_in(data), _threads(threads), _runs_on(data["target"]),
            fingerprint if isinstance(fingerprint, str) else None, _width(data.get("ranges", {})),
            _cache(data.get("cache", Cache.WARM.value)),
        )  # fmt: skip
    except RecursionError:
        raise LeftOut("its manifest is nested too deep") from None
    except KeyError as error:
        raise LeftOut(f"its manifest has no {error.args[0]}") from None
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise LeftOut(f"its manifest cannot be read: {error}") from None


def opened(candidate: Candidate, folder: Path) -> Library:
    """The library of a candidate, loaded from ``folder``. Raises LeftOut."""
    library = opened_as(candidate.digest, folder)
    task = library.dispatcher.task
    own = task.workload.key, task.threads, task.cache
    if own != (candidate.workload.key, candidate.threads, candidate.cache):
        raise LeftOut("its manifest is not the one of its dispatch table: pull the library again")
    return library


def opened_as(digest: str, folder: Path) -> Library:
    """The library of a digest, loaded from ``folder``. Raises LeftOut."""
    try:
        library = load_library(folder)
    except ShapewrightError as error:
        raise LeftOut(str(error)) from error
    except Exception as error:  # files that agree with their digests may still be no library
        raise LeftOut(f"it cannot be loaded: {type(error).__name__}: {error}") from error
    if library.digest != digest:
        raise LeftOut(f"it is the library {library.digest[:12]}, not {digest[:12]}: pull it again")
    return library


def digest_in(data: Mapping[str, Any]) -> str:
    """The digest that a manifest or an answer names. Raises LeftOut: folders are called by it."""
    digest = data["digest"]
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise LeftOut(f"the digest {shown(digest)} is not a SHA-256")
    return digest


def _threads(number: object) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MAX_THREADS:
        raise LeftOut(f"its manifest says {shown(number)} threads, libraries have 1 to {MAX_THREADS}")
    return number


def _cache(name: object) -> Cache:
    if not isinstance(name, str) or name not in CACHES:
        raise LeftOut(f"its manifest says caches are {shown(name)}, which is none of {', '.join(CACHES)}")
    return Cache(name)


def _runs_on(target: Any) -> RunsOn:
    if isinstance(target, dict) and target.get("kind") == "cuda":
        if not isinstance(arch := target.get("arch"), str) or not arch:
            raise LeftOut("its manifest does not say which GPU it is for (target)")
        return RunsOn(frozenset(), arch)
    features = target["hardware"]["features"] if isinstance(target, dict) else None
    if not isinstance(features, list) or not all(isinstance(each, str) for each in features):
        raise LeftOut("its manifest does not say which CPU it is for (target)")
    return RunsOn(frozenset(features))


def _width(ranges: Any) -> int:
    pairs = list(ranges.values())
    if not all(isinstance(end, int) for low, high in pairs for end in (low, high)):
        raise LeftOut(f"its manifest has the ranges {shown(ranges)}")
    return sum(high - low for low, high in pairs)
