"""The ways to cut a program into pieces that are worth a search: those that theory expects to take the least time.

Pieces are stretches of the stages, in the order of the program or with each stage right behind what it reads. The best
ways to cut the first stages, up to each one, are built from those of fewer stages. A piece costs what theory expects of
the best of its rule's default kernel and a few samples, which read and write what lies between pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tuner.program.job.task import SearchTask
from tuner.program.language.expr import reads
from tuner.program.language.program import Program
from tuner.program.target.rates import TYPICAL
from tuner.schedule.cut.rule import Cut, Piece, part
from tuner.schedule.rule import Extents, NoMatch, TirRule, extents_of

MAX_STAGES_OF_PIECE = 12
MAX_WAYS = 4
MAX_BEFORE = 12
"""Ways that are kept for the first stages up to each one."""
WORSE = 1.5
"""How many times as long as the best way others may take, by theory, to be searched."""
FINER = 1.05
"""How many times as fast a way must be as one of whose pieces it makes several."""
FASTER = 1.25
"""How many times as fast a way to cut must be, by theory, to be searched beside a rule that takes the program whole."""
SAMPLES = 16
MIN_S = 1e-9


@dataclass(frozen=True)
class _Way:
    cost: float
    pieces: tuple[Piece, ...]

    def only_refines(self, other: _Way) -> bool:
        """Whether its pieces are parts of the other's, and hardly faster for it."""
        if len(self.pieces) <= len(other.pieces) or self.cost * FINER < other.cost:
            return False
        return all(any(set(own.stages) <= set(piece.stages) for piece in other.pieces) for own in self.pieces)


def ways_to_cut(task: SearchTask, rules: Sequence[TirRule], rivals: Sequence[TirRule], version: int) -> tuple[Cut, ...]:
    """The best ways to cut a program into two pieces or more, the best first. The last of ``rules`` takes any stage.
    Beside ``rivals``, which take the program whole, only those that are expected to be faster by FASTER.

    What they are depends on the range of the shapes, never on instances or on what was measured of a device.
    """
    program = task.workload.program
    # Elementwise stages alone are no reason to cut what a rule takes whole.
    parted = [stage for stage in program.stages if stage.reducer is not None] if rivals else program.stages
    if len(parted) < 2:
        return ()
    costs = _Costs(task.at_rates(TYPICAL), rules)
    found: dict[frozenset[Piece], _Way] = {}
    for order in dict.fromkeys((tuple(range(len(program.stages))), _depth_first(program))):
        for way in _best(order, costs):
            pieces = _merged(way.pieces)
            if len(pieces) > 1:
                found.setdefault(frozenset(pieces), _Way(way.cost, pieces))
    best = min((way.cost for way in found.values()), default=0.0)
    most = min([WORSE * best, *(costs.of_whole(rule) / FASTER for rule in rivals)])
    near = [way for way in found.values() if way.cost <= most]
    ways = [way for way in near if not any(way.only_refines(other) for other in near)]
    return tuple(Cut(way.pieces, version) for way in sorted(ways, key=lambda way: way.cost)[:MAX_WAYS])


def _best(order: Sequence[int], costs: _Costs) -> list[_Way]:
    """The best ways for stages in this order."""
    up_to: list[list[_Way]] = [[_Way(0.0, ())]]
    for end in range(1, len(order) + 1):
        ways = [
            _Way(before.cost + cost, (*before.pieces, Piece(rule, stages)))
            for begin in range(max(end - MAX_STAGES_OF_PIECE, 0), end)
            for stages in (tuple(sorted(order[begin:end])),)
            for cost, rule in costs.of(stages)
            for before in up_to[begin]
        ]
        up_to.append(sorted(ways, key=lambda way: way.cost)[:MAX_BEFORE])
    return up_to[-1]


def _merged(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Neighbours that the fallback takes as one."""
    result: list[Piece] = []
    for piece in pieces:
        if result and piece.rule.is_fallback and result[-1].rule.is_fallback:
            result[-1] = Piece(piece.rule, tuple(sorted((*result[-1].stages, *piece.stages))))
        else:
            result.append(piece)
    return tuple(result)


def _depth_first(program: Program) -> tuple[int, ...]:
    """The stages, each right behind what it reads."""
    at = {stage.tensor: number for number, stage in enumerate(program.stages)}
    order: dict[int, None] = {}

    def visit(number: int) -> None:
        for read in reads(program.stages[number].body):
            if read.tensor in at and at[read.tensor] not in order:
                visit(at[read.tensor])
        order.setdefault(number)

    for number in range(len(program.stages)):
        if program.stages[number].tensor in program.outputs:
            visit(number)
    return tuple(order)


class _Costs:
    """What theory expects of pieces, relative to the same program stage by stage, over a few shapes of the range."""

    def __init__(self, task: SearchTask, rules: Sequence[TirRule]) -> None:
        self._task, self._rules, self._fallback = task, rules[:-1], rules[-1]
        sizes = [(var.values[0], var.values[len(var.values) // 2], var.values[-1]) for var in task.shape_vars]
        shapes = [{var.name: size[at] for var, size in zip(task.shape_vars, sizes, strict=True)} for at in range(3)]
        self._extents: Extents = extents_of(task.workload, shapes)
        stages = task.workload.program.stages
        alone = sum(self._seconds(self._fallback, (at,)) for at in range(len(stages)))
        self._scale = 1.0 / np.maximum(alone, MIN_S)
        self.of = lru_cache(maxsize=None)(lambda stages: tuple(self._options(stages)))

    def of_whole(self, rule: TirRule) -> float:
        """What a rule costs that takes the program whole."""
        return float((self._seconds(rule, tuple(range(len(self._task.workload.program.stages)))) * self._scale).sum())

    def _options(self, stages: tuple[int, ...]) -> Iterator[tuple[float, TirRule]]:
        """The rules that take these stages as one piece, with what they cost; the fallback for a single one alone."""
        if not self._is_connected(stages):
            return
        workload, target = part(self._task.workload, stages), self._task.known_target
        taking = [rule for rule in self._rules if not isinstance(rule.match(workload, target), NoMatch)]
        if not taking and len(stages) == 1:
            taking = [self._fallback]
        for rule in taking:
            yield float((self._seconds(rule, stages) * self._scale).sum()), rule

    def _is_connected(self, stages: tuple[int, ...]) -> bool:
        """Whether no stage stands apart from the others."""
        program = self._task.workload.program
        touched = [{stage.tensor, *(read.tensor for read in reads(stage.body) if read.tensor in program.stage)}
                   for stage in (program.stages[at] for at in stages)]  # fmt: skip
        together, left = touched[0], touched[1:]
        while near := [each for each in left if each & together]:
            together, left = together.union(*near), [each for each in left if not each & together]
        return not left

    def _seconds(self, rule: TirRule, stages: tuple[int, ...]) -> NDArray[np.float64]:
        """[shapes] of the best of its default and a few samples, which may use other instructions."""
        own, rng = self._task.part(part(self._task.workload, stages)), np.random.default_rng(0)
        space = rule.space(own)
        kernels = [rule.default_kernel(own), *(space.sample(rng) for _ in range(SAMPLES))]
        seconds: NDArray[np.float64] = rule.estimate_s(own, kernels, self._extents).min(axis=0)
        return seconds
