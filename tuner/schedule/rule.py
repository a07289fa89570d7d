"""Schedule rules: a pattern of computation, the space of micro-kernels for it, and how one is carried out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Workload
from tuner.program.target import Target
from tuner.schedule.function import KernelFunction, kernel_function
from tuner.schedule.layout import Layout
from tuner.schedule.space import MicroKernel, SearchSpace
from tuner.schedule.vector.integers import with_functions, wrapping
from tuner.schedule.vector.memory import spills_aligned
from tuner.schedule.vector.rounding import by_instruction

Found = TypeVar("Found")
Extents = Mapping[str, NDArray[np.int64]]
"""The extent of each axis of the program, by name, for several shapes at once: arrays of one length."""
Tiles = Mapping[tuple[str, ...], tuple[int, ...]]
"""By axes of the program whose extents are multiplied, the sizes of tiles along them: one of rows or of columns, and
as many as all threads take at once. Where they do not divide the extent, something is left."""


def extents_of(workload: Workload, shapes: Sequence[Mapping[str, int]]) -> Extents:
    """The extents of every axis at these shapes (values of the shape variables), as arrays."""
    rows = [workload.axis_sizes(workload.dims(shape)) for shape in shapes]
    return {axis: np.array([row[axis] for row in rows], np.int64) for axis in workload.program.axes}


@dataclass(frozen=True, slots=True)
class NoMatch:
    """Why a rule does not take a workload on a target."""

    reason: str


class Theory(NamedTuple):
    """What the analytic model expects of kernels on shapes, and their features, computed when they are asked for."""

    latency_s: NDArray[np.float64]
    features: Callable[[], NDArray[np.float32]]


class Rule(ABC):
    """Knows one pattern of computation. Everything but ``emit`` works without a compiler.

    A change that gives any old micro-kernel another meaning takes another ``version``. ``is_fallback``: the rule is
    asked only where no other matches.
    """

    name: str
    """What micro-kernels and records call the rule by."""
    version: int = 1
    is_fallback: ClassVar[bool] = False
    kinds: ClassVar[frozenset[str]] = frozenset({"llvm"})
    """The kinds of targets that it emits code for."""
    shortlist: ClassVar[int] = 0
    """Where nothing is measured, how many kernels are compiled before a set is chosen of them: a compiler may refuse
    what theory takes for legal. 0: none is refused."""

    def match(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        """The roles of the program's axes (axis -> role), or why the rule does not apply."""
        if target.kind not in self.kinds:
            return NoMatch(f"its kernels are for targets of kind {', '.join(sorted(self.kinds))}, not {target.kind}")
        return self.roles(workload, target)

    @abstractmethod
    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        """What ``match`` gives for a target of a kind that the rule knows."""

    def workspace_bytes(self, task: SearchTask) -> int:
        """The most that a call allocates for intermediates of the program, over the task's range."""
        return 0

    @abstractmethod
    def space(self, task: SearchTask) -> SearchSpace:
        """The micro-kernels for this workload, target and number of threads. Never depends on the instances."""

    @abstractmethod
    def default_kernel(self, task: SearchTask) -> MicroKernel:
        """A micro-kernel that is right for every shape and slow for none: the default of a library."""

    @abstractmethod
    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        """[kernels, shapes]: seconds that the analytic model expects."""

    @abstractmethod
    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        """[kernels, shapes, features]: what the learned residual looks at; as many for every workload of the rule."""

    def theory(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> Theory:
        """Both: a rule may compute once what they share."""
        return Theory(self.estimate_s(task, kernels, extents), partial(self.features, task, kernels, extents))

    def is_bounded(self, kernel: MicroKernel) -> bool:
        """Whether the workspace of this micro-kernel is bounded at shapes beyond a task's range, too. Only such kernels
        are fit to be a library's safe one."""
        return True

    @abstractmethod
    def tiles(self, task: SearchTask, kernel: MicroKernel) -> Tiles:
        """The tiles of this micro-kernel: what its time depends on beside the extents, and a dispatcher looks at."""

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        """By constant tensor how it must be packed for this micro-kernel; those left out are passed as they are."""
        return {}

    @abstractmethod
    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        """The code of a kernel, by that name, as the compiler of the target's kind takes it (tuner.library.build)."""


class TirRule(Rule):
    """A rule whose kernels are functions of TensorIR, for CPUs."""

    def tiles(self, task: SearchTask, kernel: MicroKernel) -> Tiles:
        """A vector along every axis, if the rule does not say."""
        return {(axis,): (task.known_target.hardware.lanes(),) for axis in task.workload.program.axes}

    @abstractmethod
    def body(self, task: SearchTask, kernel: MicroKernel, function: KernelFunction) -> None:
        """Write the code of a kernel into a function that has a buffer for every operand."""

    def aligns_spills(self, task: SearchTask) -> bool:
        """Whether kernels have a register to spare, by which LLVM aligns the vectors that it spills."""
        return True

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        """A private ``tvm.tirx.PrimFunc`` of that name: a pointer for each operand of a call in order, then the
        workload's symbols as int64; it returns 0."""
        with (
            kernel_function(task.workload, self.layouts(task, kernel), name) as function,
            spills_aligned(self.aligns_spills(task)),
            by_instruction(task.workload, task.known_target.hardware),
            wrapping() as called,
        ):
            self.body(task, kernel, function)
        return with_functions(function.get(), called)


def matched(workload: Workload, found: Found | NoMatch) -> Found:
    """What a pattern found in a workload that its rule takes. Raises ValueError for another workload."""
    if isinstance(found, NoMatch):
        raise ValueError(f"{workload}: {found.reason}")
    return found


class Mismatch(Exception):
    """Why a workload is not what a pattern looks for."""


def need(condition: bool, reason: str) -> None:
    """Raises Mismatch where the condition does not hold."""
    if not condition:
        raise Mismatch(reason)


def pattern(find: Callable[[Workload], Found]) -> Callable[[Workload], Found | NoMatch]:
    """``find``, which raises Mismatch, as a function that answers NoMatch instead; the last answers are kept."""

    @lru_cache(maxsize=1024)
    def match(workload: Workload) -> Found | NoMatch:
        try:
            return find(workload)
        except Mismatch as reason:
            return NoMatch(str(reason))

    return match
