"""Targets whose libraries run here though they were tuned for others: a CPU with other cores, a GPU of the same
instruction set.

A fingerprint names every field of a target, cores included, and records are kept by it. For a lookup of a library, one
that was tuned on another number of cores of the same CPU is better than none, and so is one of an earlier release,
which called this CPU by the name of a usual one with its features. Code for a GPU runs on all of its instruction set.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from math import inf

from tuner.program.target import Target
from tuner.program.target.cpu import generic_name
from tuner.program.target.cuda import PRODUCTS, Gpu, unlike

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


def substitutes(target: Target, fingerprints: Collection[str], threads: int = 1) -> list[tuple[str, int | None]]:
    """The ``fingerprints`` of other targets whose libraries may serve ``target``, the most like it first; of CPUs each
    with its number of cores."""
    if target.gpu is not None:
        return [(name, None) for name in _other_gpus(target.gpu, set(fingerprints) - {target.fingerprint})]
    return [*_other_cores(target, fingerprints, threads)]


def _other_gpus(gpu: Gpu, fingerprints: Collection[str]) -> list[str]:
    """Those of its instruction set, known products before GPUs that were read with numbers of their own."""
    of_arch = {
        Target.of_gpu(each).fingerprint: unlike(each, gpu) for each in PRODUCTS.values() if each.arch == gpu.arch
    }
    begin = Target.of_gpu(gpu).fingerprint.rpartition("-")[0] + "-"
    return sorted((name for name in fingerprints if name.startswith(begin)), key=lambda n: (of_arch.get(n, inf), n))


def _other_cores(target: Target, fingerprints: Collection[str], threads: int) -> list[tuple[str, int]]:
    """The ``fingerprints`` that are ``target`` with other cores or by another name, each with its number of cores: the
    nearest number first.

    Both have enough cores for ``threads``: none where ``target`` has not.
    """
    known = cores_by_fingerprint(target) if target.hardware.cores >= threads else {}
    fitting = [(name, known[name]) for name in set(fingerprints) if known.get(name, 0) >= threads]
    return sorted(fitting, key=lambda item: (abs(item[1] - target.hardware.cores), -item[1]))
