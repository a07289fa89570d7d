"""What theory says of loops over elements, one kernel at a time. What a core does in a cycle is in
tuner/program/target/rates.py."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from tuner.errors import IllegalKernel
from tuner.program.job.cache import Cache
from tuner.program.job.task import SearchTask
from tuner.program.language.dtypes import DTYPES
from tuner.program.language.expr import TRANSCENDENTAL, Call, Expr, axes_of
from tuner.program.language.notation import Stage
from tuner.program.language.workload import Workload
from tuner.program.target import Hardware, Target
from tuner.program.target.rates import Rates
from tuner.schedule.function import KernelFunction
from tuner.schedule.rule import Extents, Found, NoMatch, TirRule, matched
from tuner.schedule.space import Axis, MicroKernel, SearchSpace

Floats = NDArray[np.float64]
PAGE_BYTES = 4096
RESERVED_REGISTERS = 4
"""For what is loaded and computed beside the accumulators."""


class LoopRule(TirRule, Generic[Found]):
    """A rule for loops over elements: ``found`` is what it finds in a program, and theory takes its kernels one by one.

    ``find``: what a workload consists of, or why the rule does not take it.
    """

    find: Callable[[Workload], Found | NoMatch]

    @abstractmethod
    def named(self, workload: Workload, found: Found) -> Mapping[str, str]:
        """The role of each axis of the program."""

    @abstractmethod
    def axes(self, task: SearchTask, found: Found) -> tuple[Axis, ...]:
        """The axes of the space."""

    @abstractmethod
    def wanted(self, task: SearchTask, found: Found) -> Iterable[Mapping[str, int]]:
        """Values of the default kernel, the best first; the last ones are legal. An axis gets the largest choice up to
        its value, or the first one where it has none."""

    @abstractmethod
    def cycles(self, task: SearchTask, found: Found, kernel: MicroKernel, extents: Extents) -> Floats:
        """[shapes]: cycles that theory expects."""

    @abstractmethod
    def sizes(self, task: SearchTask, found: Found, extents: Extents) -> Sequence[Floats]:
        """What features say of the shapes, each [shapes]."""

    @abstractmethod
    def write(self, task: SearchTask, found: Found, kernel: MicroKernel, function: KernelFunction) -> None:
        """The body of a kernel."""

    def found(self, task: SearchTask) -> Found:
        """What a workload that the rule takes consists of. Raises ValueError for another."""
        return matched(task.workload, self.find(task.workload))

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        found = self.find(workload)
        return found if isinstance(found, NoMatch) else self.named(workload, found)

    def space(self, task: SearchTask) -> SearchSpace:
        return SearchSpace(self.name, self.version, self.axes(task, self.found(task)), check=lambda kernel: None)

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        space, tried = self.space(task), self.wanted(task, self.found(task))
        nearest = ({axis.name: _nearest(axis, wanted) for axis in space.axes} for wanted in tried)
        return next(kernel for kernel in map(space.legal, nearest) if kernel is not None)

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        found, flushed = self.found(task), flushed_cycles(task, extents)
        each = [self.cycles(task, found, kernel, extents) + flushed for kernel in kernels]
        return np.stack(each) / task.rates.clock_hz

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        found = self.found(task)
        names = [axis.name for axis in self.axes(task, found)]
        # Of an axis that was added later, kernels have no value.
        whole = [replace(kernel, values=tuple((name, kernel.get(name)) for name in names)) for kernel in kernels]
        return feature_table(self.sizes(task, found, extents), whole, self.estimate_s(task, kernels, extents))

    def body(self, task: SearchTask, kernel: MicroKernel, function: KernelFunction) -> None:
        self.write(task, self.found(task), kernel, function)


def _nearest(axis: Axis, wanted: Mapping[str, int]) -> int:
    most = wanted.get(axis.name, axis.choices[0])
    return max(choice for choice in axis.choices if choice <= most)


def feature_table(
    sizes: Sequence[Floats], kernels: Sequence[MicroKernel], estimate: Floats, *more: Floats
) -> NDArray[np.float32]:
    """[kernels, shapes, features]: ``sizes`` ([shapes] or [kernels, 1], broadcast), kernel values, ``more`` sizes, the
    estimate."""
    values = [np.array([[float(kernel[name])] for kernel in kernels]) for name, _ in kernels[0].values]
    columns = [np.broadcast_to(column, estimate.shape) for column in (*sizes, *values, *more)]
    return np.stack([*columns, np.log2(estimate)], axis=2).astype(np.float32)


def call_cycles(task: SearchTask) -> float:
    """Cycles of a call, and of waking the threads."""
    return task.rates.call + (task.rates.fork if task.threads > 1 else 0.0)


def register_check(task: SearchTask, need: Callable[[MicroKernel], int], fewer: str) -> Callable[[MicroKernel], None]:
    """Raises IllegalKernel where the accumulators that a kernel needs leave too few vector registers."""
    limit = task.known_target.hardware.vector_registers - RESERVED_REGISTERS

    def check(kernel: MicroKernel) -> None:
        if (held := need(kernel)) > limit:
            raise IllegalKernel(f"{held} accumulators of {limit} vector registers: fewer {fewer}")

    return check


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


def is_flushed(task: SearchTask, is_constant: bool) -> bool:
    """Whether calls find such an operand in memory, by the task's protocol."""
    return task.cache is Cache.COLD or (task.cache is Cache.STREAMED and is_constant)


def flushed_cycles(task: SearchTask, extents: Extents) -> Floats | float:
    """[shapes] cycles that a call waits for operands that come from memory, beyond what they would take from the level
    that holds them all. An operand counts at every point of the axes that index it."""
    workload, program = task.workload, task.workload.program
    if task.cache is Cache.WARM:
        return 0.0
    read = {each.tensor: tuple(axes_of(each)) for each in program.reads if each.tensor in program.inputs}
    places = [(name, axes) for name, axes in read.items() if is_flushed(task, name in workload.constants)]
    if is_flushed(task, is_constant=False):
        places += [(stage.tensor, stage.axes) for stage in program.stages if stage.tensor in program.outputs]
    if not places:
        return 0.0
    size = bytes_at(places, workload, extents)
    return np.maximum(size / task.rates.memory_bytes - size / stream_rate(task, size), 0.0) / task.threads


def pushed_out(hardware: Hardware, lines: Floats, stride: Floats) -> Floats:
    """The share of so many lines, ``stride`` bytes apart, that push each other out of L1: those a power of two apart
    fall on the same sets. All do once there are half as many again as ways. A way of an L1 that is looked up by virtual
    addresses is a page."""
    ways = hardware.l1d_bytes / PAGE_BYTES
    in_set = np.ceil(lines * np.gcd(np.asarray(stride, np.int64), PAGE_BYTES) / PAGE_BYTES)
    return np.asarray(np.clip(2 * (in_set / ways - 1), 0.0, 1.0))


def roofline(task: SearchTask, work: Floats, moved: Floats, parts: Floats | int, slower: Any = 1.0) -> Floats:
    """[shapes] cycles of a call: of the work or of ``moved`` bytes, whichever takes longer, over parallel ``parts``;
    ``slower``: how many times as long the bytes take."""
    return np.asarray(np.maximum(work, moved / stream_rate(task, moved) * slower) / parts + call_cycles(task))


def body_cycles(rates: Rates, nodes: Sequence[Expr]) -> float:
    """Cycles of the nodes of an expression, on one vector."""
    called = sum(isinstance(node, Call) and node.function in TRANSCENDENTAL for node in nodes)
    return rates.operation * len(nodes) + rates.function * called


def nan_cycles(stage: Stage) -> float:
    """Cycles of a maximum or minimum beyond an addition, on one vector: NaN is tested for."""
    return 1.5 if stage.reducer in ("max", "min") else 0.0


def lanes_for(task: SearchTask, dtypes: Iterable[str]) -> int:
    """Elements of a vector: of 8 bytes if any of the dtypes has so many, otherwise of 4."""
    return task.known_target.hardware.lanes(8 if {"int64", "float64"} & set(dtypes) else 4)


def thread_speedup(size: Floats, threads: int) -> Floats:
    """[shapes] by how much threads speed up a loop of ``size`` turns: the largest share counts."""
    turns = np.maximum(size, 1.0)
    return np.asarray(turns / np.ceil(turns / threads))
