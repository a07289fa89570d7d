"""The rule for a program in pieces: other rules take these one after the other, each with a micro-kernel of its own.

What a piece computes and a later one reads stands in a workspace. An axis of a micro-kernel is that of a piece's rule
behind the number of the piece: ``1.mr`` is the axis ``mr`` of the second one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tuner.program.job.task import SearchTask
from tuner.program.language.part import Part, part_of
from tuner.program.language.workload import Workload
from tuner.program.target import Target
from tuner.schedule.cut.space import CutSpace
from tuner.schedule.function import KernelFunction, dim_expr
from tuner.schedule.layout import Layout
from tuner.schedule.rule import Extents, NoMatch, Tiles, TirRule
from tuner.schedule.space import MicroKernel
from tuner.schedule.vector.dtypes import stored_type
from tuner.schedule.vector.memory import workspace

PREFIX = "cut:"
part = lru_cache(maxsize=4096)(part_of)


@dataclass(frozen=True)
class Piece:
    """``stages``: the positions of its stages in the program, ascending."""

    rule: TirRule
    stages: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.rule.name}/{'.'.join(map(str, self.stages))}"


class Cut(TirRule):
    """``pieces`` in the order in which they run. ``version`` is that of all rules together: where any of them gives its
    kernels another meaning, so do those that use it."""

    def __init__(self, pieces: Sequence[Piece], version: int) -> None:
        self.pieces, self.version = tuple(pieces), version
        self.name = PREFIX + ",".join(map(str, pieces))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cut) and (self.name, self.version) == (other.name, other.version)

    def __hash__(self) -> int:
        return hash(self.name)

    def described(self, workload: Workload) -> str:
        """``x86_contraction computes h; row_reduction computes top, e, out``, in the order in which they run."""
        stages = workload.program.stages
        each = (f"{piece.rule.name} computes {', '.join(stages[at].tensor for at in piece.stages)}"
                for piece in self.pieces)  # fmt: skip
        return f"{len(self.pieces)} pieces: {'; '.join(each)}"

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        """``1.m`` is the role m of the second piece."""
        stages = sorted(at for piece in self.pieces for at in piece.stages)
        if stages != list(range(len(workload.program.stages))):
            return NoMatch("its pieces are not the stages of this program")
        roles: dict[str, list[str]] = {}
        for number, (piece, own) in enumerate(zip(self.pieces, self.parts(workload), strict=True)):
            answer = piece.rule.match(own, target)
            if isinstance(answer, NoMatch):
                return NoMatch(f"piece {number}: {answer.reason}")
            for axis, role in answer.items():
                roles.setdefault(axis, []).append(f"{number}.{role}")
        return {axis: ", ".join(of) for axis, of in roles.items()}

    def parts(self, workload: Workload) -> tuple[Part, ...]:
        """What each piece is of a workload."""
        return tuple(part(workload, piece.stages) for piece in self.pieces)

    def tasks(self, task: SearchTask) -> tuple[SearchTask, ...]:
        """The task of each piece, of the same shapes."""
        return tuple(map(task.part, self.parts(task.workload)))

    def each(self, task: SearchTask) -> Iterator[tuple[int, TirRule, SearchTask]]:
        """The pieces by number, with their tasks."""
        for number, (piece, own) in enumerate(zip(self.pieces, self.tasks(task), strict=True)):
            yield number, piece.rule, own

    def kept(self, workload: Workload) -> tuple[str, ...]:
        """The tensors that one piece computes and another one reads."""
        return tuple(name for own in self.parts(workload) for name in own.program.outputs
                     if name not in workload.program.outputs)  # fmt: skip

    def workspace_bytes(self, task: SearchTask) -> int:
        kept = (task.workload.tensors[name].bytes(task.largest_dims) for name in self.kept(task.workload))
        return sum(kept) + max(rule.workspace_bytes(own) for _, rule, own in self.each(task))

    def space(self, task: SearchTask) -> CutSpace:
        return CutSpace.of(self.name, self.version, [rule.space(own) for _, rule, own in self.each(task)])

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        return self.joined([rule.default_kernel(own) for _, rule, own in self.each(task)])

    def joined(self, kernels: Sequence[MicroKernel]) -> MicroKernel:
        """The kernel that has these, one for each piece."""
        return CutSpace.joined(self.name, self.version, kernels)

    def of_piece(self, kernel: MicroKernel, number: int) -> MicroKernel:
        """The micro-kernel of a piece."""
        rule, prefix = self.pieces[number].rule, f"{number}."
        values = ((name.removeprefix(prefix), value) for name, value in kernel.values if name.startswith(prefix))
        return MicroKernel(rule.name, rule.version, tuple(values))

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        """The sum of the pieces', which are called once."""
        calls = (len(self.pieces) - 1) * task.rates.call / task.rates.clock_hz
        each = self._of_pieces(task, kernels, lambda rule, own, some: rule.estimate_s(own, some, extents))
        return np.asarray(np.maximum(np.sum(each, axis=0) - calls, np.max(each, axis=0)))

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        """Those of the pieces, and the estimate of all together."""
        each = self._of_pieces(task, kernels, lambda rule, own, some: rule.features(own, some, extents))
        total = np.log2(self.estimate_s(task, kernels, extents))[:, :, None]
        return np.concatenate([*each, total], axis=2).astype(np.float32)

    def _of_pieces(
        self, task: SearchTask, kernels: Sequence[MicroKernel],
        of: Callable[[TirRule, SearchTask, Sequence[MicroKernel]], NDArray[np.float64] | NDArray[np.float32]],
    ) -> list[NDArray[np.float64]]:  # fmt: skip
        """What ``of`` says of each piece, [kernels, ...]. Many kernels share those of a piece."""
        answers = []
        for number, rule, own in self.each(task):
            mine = [self.of_piece(kernel, number) for kernel in kernels]
            row = {kernel: at for at, kernel in enumerate(dict.fromkeys(mine))}
            answers.append(np.asarray(of(rule, own, list(row)), np.float64)[[row[kernel] for kernel in mine]])
        return answers

    def is_bounded(self, kernel: MicroKernel) -> bool:
        return all(piece.rule.is_bounded(self.of_piece(kernel, at)) for at, piece in enumerate(self.pieces))

    def tiles(self, task: SearchTask, kernel: MicroKernel) -> Tiles:
        """Those of all pieces: an axis of a piece is one of the program."""
        together: dict[tuple[str, ...], tuple[int, ...]] = {}
        for number, rule, own in self.each(task):
            for axes, sizes in rule.tiles(own, self.of_piece(kernel, number)).items():
                together[axes] = (*together.get(axes, ()), *sizes)
        return together

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        every = (rule.layouts(own, self.of_piece(kernel, number)) for number, rule, own in self.each(task))
        return {name: layout for layouts in every for name, layout in layouts.items()}

    def body(self, task: SearchTask, kernel: MicroKernel, function: KernelFunction) -> None:
        workload, buffers = task.workload, dict(function.buffers)
        with ExitStack() as stack:
            for tensor in (workload.tensors[name] for name in self.kept(workload)):
                shape = tuple(dim_expr(dim, function.symbols) for dim in tensor.dims)
                buffers[tensor.name] = stack.enter_context(workspace(shape, stored_type(tensor.dtype)))
            for number, rule, own in self.each(task):
                rule.body(own, self.of_piece(kernel, number), replace(function, buffers=buffers))
