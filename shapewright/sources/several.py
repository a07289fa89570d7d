"""One of several libraries in a directory: that which runs on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from shapewright.sources.candidates import Candidate
from shapewright.sources.directory import Directory
from tuner.errors import GpuFailed, InvalidInput, ShapewrightError
from tuner.library import choice
from tuner.library.package import MANIFEST
from tuner.plain_files import is_folder
from tuner.program.job.cache import Cache
from tuner.program.target import native

if TYPE_CHECKING:
    from shapewright.library import Library

T = TypeVar("T", int, str)
CPUS, GPUS = "llvm", "cuda"


def has_several(directory: Path) -> bool:
    """Whether it is no library itself, and folders below it may have some."""
    return is_folder(directory) and not os.path.lexists(directory / MANIFEST)


def one_of_several(
    directory: Path, key: str | None, target: str | None, threads: int | None, cache: str | None
) -> Library:
    """See ``shapewright.load``. Raises ShapewrightError, GpuFailed where a GPU is all that is missing, InvalidInput."""
    from shapewright.library import library_in  # noqa: PLC0415 - who only looks needs no runtime

    here = native()
    source = Directory(directory, here)
    every, refusals = source.every(), source.left_out
    if not every and not refusals:
        return library_in(directory)
    asked, errors = _asked(directory, every, key, target, threads, cache), list[ShapewrightError]()
    for each in sorted(asked, key=lambda each: each.rank(here)):
        try:
            if not each.runs_on.arch and (problem := each.runs_on.misfit(here)):
                raise ShapewrightError(problem)
            library = library_in(each.directory)
        except ShapewrightError as error:
            # One that is damaged, or for another machine, leaves its place to the next.
            errors.append(error)
            refusals[str(each.directory)] = str(error)
        else:
            _refuse_alike(each, asked)
            return library
    reasons = "; ".join(f"{path}: {reason}" for path, reason in refusals.items())
    is_of_gpu = errors and all(isinstance(error, GpuFailed) for error in errors)
    raise (GpuFailed if is_of_gpu else ShapewrightError)(f"no library in {directory} runs here: {reasons}")


def _asked(
    directory: Path, every: Sequence[Candidate], key: str | None, target: str | None, threads: int | None,
    cache: str | None,
) -> Sequence[Candidate]:  # fmt: skip
    """The libraries that are asked for."""
    known, kinds = sorted({each.workload.key for each in every}), {_kind(each) for each in every}
    if key is None and len(known) > 1:
        problem = f"{directory} has libraries of {len(known)} workloads"
        raise InvalidInput("workload", problem, f"one of {', '.join(known)}")
    left = _only(directory, every, "workload", key, lambda each: each.workload.key)
    if target is None and len(kinds) > 1:
        raise InvalidInput("target", f"{directory} has libraries for CPUs and for GPUs", f"{CPUS} or {GPUS}")
    of = _kind if target in (CPUS, GPUS) else lambda each: str(each.made_for)
    left = _only(directory, left, "target", target, of)
    threads = choice.meant(threads, [each.threads for each in left], 1)
    left = _only(directory, left, "threads", threads, lambda each: each.threads)
    cache = choice.meant(cache, [each.cache.value for each in left], Cache.WARM.value)
    return _only(directory, left, "cache", cache, lambda each: each.cache.value)


def _only(
    directory: Path, every: Sequence[Candidate], name: str, wanted: T | None, value_of: Callable[[Candidate], T]
) -> Sequence[Candidate]:
    """Those of the value that is wanted; all if none is."""
    left = [each for each in every if wanted in (None, value_of(each))]
    if every and not left:
        known = ", ".join(sorted({str(value_of(each)) for each in every}))
        raise InvalidInput(name, f"{directory} has no library for {wanted}", f"one of {known}")
    return left


def _kind(library: Candidate) -> str:
    return GPUS if library.runs_on.arch else CPUS


def _refuse_alike(found: Candidate, asked: Sequence[Candidate]) -> None:
    """Raise InvalidInput where libraries for several products of the GPU's instruction set would run as well: which of
    them it is, the user knows."""
    alike = {str(each.made_for) for each in asked if each.runs_on == found.runs_on}
    if found.runs_on.arch and len(alike) > 1:
        problem = f"{len(alike)} libraries are for GPUs of {found.runs_on.arch}"
        raise InvalidInput("target", problem, f"one of {', '.join(sorted(alike))}")
