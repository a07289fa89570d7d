"""What theory says of loops over elements, one kernel at a time. What a core does in a cycle is in
tuner/program/rates.py."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.program.dtypes import DTYPES
from tuner.program.expr import TRANSCENDENTAL, Call, Expr
from tuner.program.rates import Rates
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.rule import Extents, Rule
from tuner.schedule.space import MicroKernel

Floats = NDArray[np.float64]


class LoopRule(Rule):
    """A rule that estimates its kernels one by one."""

    @abstractmethod
    def cycles(self, task: SearchTask, kernel: MicroKernel, extents: Extents) -> Floats:
        """[shapes]: cycles that theory expects."""

    @abstractmethod
    def sizes(self, task: SearchTask, extents: Extents) -> Sequence[Floats]:
        """What features say of the shapes, each [shapes]."""

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        return np.stack([self.cycles(task, kernel, extents) for kernel in kernels]) / task.rates.clock_hz

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        return feature_table(self.sizes(task, extents), kernels, self.estimate_s(task, kernels, extents))


def feature_table(sizes: Sequence[Floats], kernels: Sequence[MicroKernel], estimate: Floats) -> NDArray[np.float32]:
    """[kernels, shapes, features]: ``sizes`` ([shapes] or [kernels, 1], broadcast), kernel values, the estimate."""
    values = [np.array([[float(kernel[name])] for kernel in kernels]) for name, _ in kernels[0].values]
    columns = [np.broadcast_to(column, estimate.shape) for column in (*sizes, *values)]
    return np.stack([*columns, np.log2(estimate)], axis=2).astype(np.float32)


def call_cycles(task: SearchTask) -> float:
    """Of a call, and of waking the threads."""
    return task.rates.call + (task.rates.fork if task.threads > 1 else 0.0)


def volume(axes: Iterable[str], extents: Extents) -> Floats:
    """[shapes] how many points some axes have."""
    width = len(next(iter(extents.values()))) if extents else 1
    return np.asarray(np.prod([np.ones(width), *(np.asarray(extents[axis], np.float64) for axis in axes)], axis=0))


def bytes_at(places: Iterable[tuple[str, Iterable[str]]], workload: Workload, extents: Extents) -> Floats:
    """[shapes] bytes of some tensors, each at every point of the axes that it is read or written along."""
    each = [DTYPES[workload.tensors[tensor].dtype].bytes * volume(axes, extents) for tensor, axes in places]
    return np.asarray(np.sum(each, axis=0))


def stream_rate(task: SearchTask, size: Floats) -> Floats:
    """Bytes per cycle of the first level beyond L1 that holds so many."""
    rates, hardware = task.rates, task.known_target.hardware
    in_l2, in_l3 = size < hardware.l2_bytes, size < hardware.l3_bytes
    return np.where(in_l2, rates.l2_bytes, np.where(in_l3, rates.l3_bytes, rates.memory_bytes))


def roofline(task: SearchTask, work: Floats, moved: Floats, parts: Floats | int, slower: Any = 1.0) -> Floats:
    """[shapes] cycles of a call: of the work or of ``moved`` bytes, whichever takes longer, over parallel ``parts``;
    ``slower``: how many times as long the bytes take."""
    return np.asarray(np.maximum(work, moved / stream_rate(task, moved) * slower) / parts + call_cycles(task))


def body_cycles(rates: Rates, nodes: Sequence[Expr]) -> float:
    """Of the nodes of an expression, on one vector."""
    called = sum(isinstance(node, Call) and node.function in TRANSCENDENTAL for node in nodes)
    return rates.operation * len(nodes) + rates.function * called


def lanes_for(task: SearchTask, dtypes: Iterable[str]) -> int:
    """Elements of a vector: of 8 bytes if any of the dtypes has so many, otherwise of 4."""
    return task.known_target.hardware.lanes(8 if {"int64", "float64"} & set(dtypes) else 4)


def thread_speedup(size: Floats, threads: int) -> Floats:
    """[shapes] by how much threads speed up a loop of ``size`` turns: the largest share counts."""
    turns = np.maximum(size, 1.0)
    return np.asarray(turns / np.ceil(turns / threads))
