"""The rule for GPUs: any program, as Triton kernels for its segments, one after the other.

It takes a program as `plan.segments` cuts it: attention, products, row-wise programs, and other stages each have a tile
of their own (`axes.py`), which all segments of a kind share. Theory is the sum of what segments take (`program.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tuner.program.job.cache import Cache
from tuner.program.job.task import SearchTask
from tuner.program.language.dtypes import DTYPES
from tuner.program.language.workload import Workload
from tuner.program.target import Gpu, Target
from tuner.schedule.gpu.axes import DEFAULTS, PACKS, choices_of, default_kernel, space_of
from tuner.schedule.gpu.module import Module
from tuner.schedule.gpu.plan import emit
from tuner.schedule.gpu.program import PRICED, program_of
from tuner.schedule.layout import Layout, MatrixLayout
from tuner.schedule.rule import Extents, NoMatch, Rule, Theory, Tiles
from tuner.schedule.space import MicroKernel, SearchSpace

MAX_NARROW = 2**31 - 1
"""Elements of a tensor up to which offsets have 32 bits."""
SHORTLIST = 20
"""Kernels of theory that are compiled where nothing is measured: some spill."""
ABSENT = -1.0
"""A feature of an axis, or of a kind of segment, that a program does not have."""


class GpuRule(Rule):
    """See the module's text."""

    name = "gpu"
    kinds: ClassVar[frozenset[str]] = frozenset({"cuda"})
    shortlist = SHORTLIST

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        roles = dict.fromkeys(workload.program.axes, "elementwise")
        for stage in workload.program.stages:
            roles |= dict.fromkeys(stage.reduce_axes, "reduction")
        return roles

    def workspace_bytes(self, task: SearchTask) -> int:
        workload, dims = task.workload, task.largest_dims
        kept = (workload.tensors[name] for name in workload.program.intermediates)
        return sum(each.bytes(dims) for each in kept)

    def space(self, task: SearchTask) -> SearchSpace:
        return _space(self.name, self.version, task.workload, _gpu(task))

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        return default_kernel(self.space(task))

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        return np.asarray(sum(self._by_kind(task, kernels, extents).values()))

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        return _features(kernels, self._by_kind(task, kernels, extents))

    def theory(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> Theory:
        found = self._by_kind(task, kernels, extents)
        return Theory(np.asarray(sum(found.values())), lambda: _features(kernels, found))

    def tiles(self, task: SearchTask, kernel: MicroKernel) -> Tiles:
        choices, found = choices_of(kernel, _gpu(task)), dict[tuple[str, ...], tuple[int, ...]]()
        for each in program_of(task.workload).segments:
            for axes, sizes in each.tiles(choices).items():
                found[axes] = tuple(sorted({*found.get(axes, ()), *sizes}))
        return found

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        return _layouts(task.workload, PACKS[kernel.get("pack", 0)])

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Module:
        """A module of Triton functions; its text names none, so that ``name`` is of no use to it."""
        return emit(task.workload, choices_of(kernel, _gpu(task), is_wide(task)))

    def _by_kind(
        self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents
    ) -> dict[str, NDArray[np.float64]]:
        gpu, is_flushed = _gpu(task), task.cache is Cache.COLD
        choices = [choices_of(kernel, gpu) for kernel in kernels]
        return program_of(task.workload).seconds(gpu, choices, extents, is_flushed)


def is_wide(task: SearchTask) -> bool:
    """Whether a tensor has more elements over the task's range than 32 bits count."""
    sizes = (each.bytes(task.largest_dims) // DTYPES[each.dtype].bytes for each in task.workload.tensors.values())
    return max(sizes, default=0) > MAX_NARROW


def _gpu(task: SearchTask) -> Gpu:
    gpu = task.known_target.gpu
    assert gpu is not None, f"{task.known_target.fingerprint} is no GPU"
    return gpu


@lru_cache(maxsize=256)
def _space(name: str, version: int, workload: Workload, gpu: Gpu) -> SearchSpace:
    return space_of(name, version, program_of(workload), gpu)


@lru_cache(maxsize=1024)
def _layouts(workload: Workload, pack: str) -> Mapping[str, Layout]:
    packs = (each for product in program_of(workload).products for each in product.packs.get(pack, ()))
    return {each.tensor: MatrixLayout(each.shape, each.order, each.matrix) for each in packs}


def _features(kernels: Sequence[MicroKernel], found: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float32]:
    """[kernels, shapes, features]: the kernel's values, what each kind of segment takes, and all of them together."""
    shape = next(iter(found.values())).shape
    values = [dict(kernel.values) for kernel in kernels]
    columns = [
        np.array([[math.log2(1 + of[name]) if name in of else ABSENT] for of in values]) for name in DEFAULTS
    ]  # fmt: skip
    seconds = [np.log2(found[kind]) if kind in found else np.full(shape, ABSENT) for kind in PRICED]
    every = [np.broadcast_to(each, shape) for each in (*columns, *seconds, np.log2(sum(found.values())))]
    return np.stack(every, axis=2).astype(np.float32)
