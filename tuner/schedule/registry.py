"""The rules that there are, and what they offer together for one task.

Several rules may match a task: its space is the union of theirs, and a micro-kernel names the rule that emits it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tuner.errors import IllegalKernel, InvalidInput, shown
from tuner.program.job.task import SearchTask
from tuner.program.language.dims import DimExpr
from tuner.program.language.workload import Workload
from tuner.program.target import Target
from tuner.schedule.cut.rule import PREFIX, Cut, Piece
from tuner.schedule.cut.ways import ways_to_cut
from tuner.schedule.gpu.rule import GpuRule
from tuner.schedule.layout import Layout
from tuner.schedule.rule import Extents, NoMatch, Rule, TirRule
from tuner.schedule.rules.attention import Attention
from tuner.schedule.rules.columns import ColumnReduction
from tuner.schedule.rules.conv import Conv
from tuner.schedule.rules.elementwise import Elementwise
from tuner.schedule.rules.fallback import Fallback
from tuner.schedule.rules.matmul import Matmul
from tuner.schedule.rules.mlp import Mlp
from tuner.schedule.rules.moe import Moe
from tuner.schedule.rules.quantized import Quantized
from tuner.schedule.rules.rows import RowReduction
from tuner.schedule.rules.stencil import Stencil
from tuner.schedule.rules.strassen import Strassen
from tuner.schedule.rules.winograd import Winograd
from tuner.schedule.serial import SERIAL, Serial
from tuner.schedule.space import MicroKernel, UnionSpace
from tuner.schedule.vector.elementary import fusing

AnyRule = TypeVar("AnyRule", bound=Rule)
MAX_WORKSPACE_BYTES = 8 * 2**30
"""Of a call's intermediates, at the largest shape of a range."""

RULES: tuple[Rule, ...] = (
    Matmul(),
    Strassen(),
    Moe(),
    Mlp(),
    Quantized(),
    Attention(),
    RowReduction(),
    Stencil(),
    Conv(),
    Winograd(),
    ColumnReduction(),
    Elementwise(),
    GpuRule(),
    Fallback(),
)
"""In the order of preference: the first that matches gives the default kernel."""
CUT_VERSION = 1 + sum(rule.version - 1 for rule in RULES if isinstance(rule, TirRule))
"""The version of every way to cut a program: where a rule gives its kernels another meaning, so do the ways."""


def explain(workload: Workload, target: Target) -> dict[str, Mapping[str, str] | NoMatch]:
    """By rule the roles that it gives the axes, or why it does not apply."""
    return {rule.name: rule.match(workload, target) for rule in RULES}


def rules_for(workload: Workload, target: Target) -> tuple[Rule, ...]:
    """The rules that take ``workload``, the preferred one first; a fallback only where there is no other.

    Raises InvalidInput with every rule's reason if none does.
    """
    chosen = tuple(_matching(workload, target))
    if not chosen:
        answers = explain(workload, target).items()
        reasons = "; ".join(f"{name}: {answer.reason}" for name, answer in answers if isinstance(answer, NoMatch))
        raise InvalidInput("workload", f"no schedule rule takes {workload} on {target.kind} {target.mcpu}", reasons)
    return chosen


def _matching(workload: Workload, target: Target) -> Iterator[Rule]:
    """Matches rule after rule, as far as the caller asks."""
    is_taken = False
    for rule in sorted(RULES, key=lambda rule: rule.is_fallback):
        if rule.is_fallback and is_taken:
            return
        if not isinstance(rule.match(workload, target), NoMatch):
            is_taken = True
            yield rule


def rules_of(task: SearchTask) -> tuple[Rule, ...]:
    """The rules that take a task, whose target is known; ways to cut it into pieces where none but the fallback does.
    For several threads each of them for one thread, too, as the last ones.

    Raises InvalidInput if there is none, or if those that there are would keep more than MAX_WORKSPACE_BYTES of
    intermediates in memory.
    """
    within = tuple(_fitting(task))
    if not within:
        rules = rules_for(task.workload, task.known_target)
        needs = ", ".join(f"{rule.name} {rule.workspace_bytes(task) / 2**30:.4g} GiB" for rule in rules)
        remedy = f"at most {MAX_WORKSPACE_BYTES // 2**30} GiB: a smaller range, or fewer stages at once"
        raise InvalidInput("workload", f"intermediates of {task.workload} take too much memory ({needs})", remedy)
    return within


def _fitting(task: SearchTask) -> Iterator[Rule]:
    taking: list[Rule] = []
    for rule in _taking(task):
        if rule.workspace_bytes(task) <= MAX_WORKSPACE_BYTES:
            taking.append(rule)
            yield rule
    if task.threads > 1:
        yield from map(Serial, _in_tir(taking))


def _taking(task: SearchTask) -> Iterator[Rule]:
    """The rules that match, then ways to cut that theory expects to be faster: a rule that takes a program whole may
    lack an instruction that those of its pieces have. Ways to cut in place of the fallback."""
    matching: list[Rule] = []
    for rule in _matching(task.workload, task.known_target):
        if not rule.is_fallback:
            matching.append(rule)
            yield rule
            continue
        yield from _ways(_Whole(task), _in_tir(RULES), ()) or (rule,)
    if rivals := _in_tir(matching):
        yield from _ways(_Whole(task), _in_tir(RULES), rivals)


def _in_tir(rules: Iterable[Rule]) -> tuple[TirRule, ...]:
    """The rules whose kernels are functions of TensorIR: programs are cut into pieces for these."""
    return tuple(rule for rule in rules if isinstance(rule, TirRule))


class _Whole:
    """What the ways to cut a task depend on."""

    def __init__(self, task: SearchTask) -> None:
        self.task = task
        self._key = task.workload, task.shape_vars, task.known_target, task.threads

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Whole) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@lru_cache(maxsize=1024)
def _ways(whole: _Whole, rules: tuple[TirRule, ...], rivals: tuple[TirRule, ...]) -> tuple[Cut, ...]:
    return ways_to_cut(whole.task, rules, rivals, CUT_VERSION)


def rule_of(kernel: MicroKernel) -> Rule:
    """The rule that a micro-kernel names. Raises IllegalKernel for one that this version does not have."""
    name = kernel.rule.removeprefix(SERIAL)
    if name == kernel.rule:
        return _cut(name, _in_tir(RULES)) if name.startswith(PREFIX) else _named(name, RULES)
    rules = _in_tir(RULES)
    return Serial(_cut(name, rules) if name.startswith(PREFIX) else _named(name, rules))


def _named(name: str, rules: Sequence[AnyRule]) -> AnyRule:
    for rule in rules:
        if rule.name == name:
            return rule
    raise IllegalKernel(f"rule {name!r} is not known; this version has {', '.join(r.name for r in rules)}")


@lru_cache(maxsize=1024)
def _cut(name: str, rules: tuple[TirRule, ...]) -> Cut:
    """The way to cut a program that Cut.name names."""
    pieces = (piece.partition("/") for piece in name.removeprefix(PREFIX).split(","))
    try:
        each = [Piece(_named(rule, rules), tuple(map(int, stages.split(".")))) for rule, _, stages in pieces]
    except IllegalKernel:
        raise
    except ValueError:
        raise IllegalKernel(f"rule {shown(name)} does not give the stages of its pieces") from None
    return Cut(each, CUT_VERSION)


def space_of(task: SearchTask) -> UnionSpace:
    """Every micro-kernel of every rule that takes the task."""
    return UnionSpace(tuple(rule.space(task) for rule in rules_of(task)))


def default_kernel(task: SearchTask) -> MicroKernel:
    """The default of the preferred rule: right for every shape and slow for none. Raises what ``rules_of`` does."""
    preferred = next(_fitting(task), None) or rules_of(task)[0]
    return preferred.default_kernel(task)


def current_version(rule: str) -> int | None:
    """The version of a rule, or of a way to cut, by its name; None for one that this version does not have."""
    rule = rule.removeprefix(SERIAL)
    if rule.startswith(PREFIX):
        return CUT_VERSION
    return next((each.version for each in RULES if each.name == rule), None)


def is_current(kernel: MicroKernel) -> bool:
    """Whether a kernel means to this version what it meant to the one that measured it."""
    return kernel.rule_version == current_version(kernel.rule)


def tiles_of(task: SearchTask, kernels: Sequence[MicroKernel]) -> dict[DimExpr, tuple[int, ...]]:
    """By dynamic extents, over the symbols, the sizes of the kernels' tiles along them, ascending; none of 1."""
    found: dict[DimExpr, set[int]] = {}
    for kernel in kernels:
        for axes, sizes in rule_of(kernel).tiles(task, kernel).items():
            extent = math.prod((task.workload.sizes[axis] for axis in axes), start=DimExpr.of(1))
            if extent.constant is None:
                found.setdefault(extent, set()).update(size for size in sizes if size > 1)
    return {extent: tuple(sorted(sizes)) for extent, sizes in found.items()}


def is_bounded(kernel: MicroKernel) -> bool:
    """Whether the kernel's workspace is bounded at shapes beyond the range of its task, too (see Rule.is_bounded)."""
    return rule_of(kernel).is_bounded(kernel)


def layouts_of(task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
    """By constant tensor how it is packed for this kernel; those left out are passed as they are."""
    return rule_of(kernel).layouts(task, kernel)


def layout_group(task: SearchTask, kernel: MicroKernel) -> tuple[tuple[str, Layout], ...]:
    """The packed layouts as one hashable value: kernels of one library have the same."""
    return tuple(sorted(layouts_of(task, kernel).items()))


def estimate_s(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
    """[kernels, shapes]: seconds that each kernel's own rule expects."""
    width = len(next(iter(extents.values()))) if extents else 1
    latency = np.empty((len(kernels), width))
    for rule, rows in by_rule(kernels):
        latency[rows] = rule.estimate_s(task, [kernels[row] for row in rows], extents)
    return latency


def by_rule(kernels: Sequence[MicroKernel]) -> Iterator[tuple[Rule, list[int]]]:
    """The rules of some kernels, each with the positions of its own."""
    rows: dict[str, list[int]] = {}
    for row, kernel in enumerate(kernels):
        rows.setdefault(kernel.rule, []).append(row)
    for positions in rows.values():
        yield rule_of(kernels[positions[0]]), positions


def emit(task: SearchTask, kernel: MicroKernel, name: str) -> Any:
    """The private PrimFunc of a kernel, by its rule (see Rule.emit)."""
    with fusing(task.known_target.hardware):
        return rule_of(kernel).emit(task, kernel, name)
