"""Targets of the same CPU: the same instructions, caches and code for as many threads, other cores or another name.

A fingerprint names every field of a target, cores included, and records are kept by it. For a lookup of a library, one
that was tuned on another number of cores of the same CPU is better than none, and so is one of an earlier release,
which called this CPU by the name of a usual one with its features.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache

from tuner.program.target import Target
from tuner.program.target.cpu import generic_name

MAX_CORES = 512
"""Machines with more are known by their own fingerprint alone."""


@lru_cache(maxsize=16)
def cores_by_fingerprint(target: Target) -> Mapping[str, int]:
    """The number of cores by fingerprint, of ``target`` by each of its names and with every number of cores, but for
    itself; nothing for one with more than MAX_CORES, and for a GPU, whose host's cores do not count."""
    if target.gpu is not None or target.hardware.cores > MAX_CORES:
        return {}
    names = {target.mcpu, generic_name(target.architecture, target.hardware.features)}
    known = {
        replace(target, mcpu=name, hardware=replace(target.hardware, cores=cores)).fingerprint: cores
        for cores in range(1, MAX_CORES + 1)
        for name in names
    }
    return {name: cores for name, cores in known.items() if name != target.fingerprint}


def other_cores(target: Target, fingerprints: Collection[str], threads: int = 1) -> list[tuple[str, int]]:
    """The ``fingerprints`` that are ``target`` with other cores or by another name, each with its number of cores: the
    nearest number first.

    Both have enough cores for ``threads``: none where ``target`` has not.
    """
    known = cores_by_fingerprint(target) if target.hardware.cores >= threads else {}
    fitting = [(name, known[name]) for name in set(fingerprints) if known.get(name, 0) >= threads]
    return sorted(fitting, key=lambda item: (abs(item[1] - target.hardware.cores), -item[1]))
