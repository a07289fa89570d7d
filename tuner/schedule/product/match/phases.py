"""A transposed convolution with a stride as ordinary ones, one for each phase of the output's places.

An element of the window at tap ``r`` meets place ``p`` where ``(p + pad - r) % stride == 0``. The places
``stride*p + first`` of one phase share their taps, every stride-th one. Over these, the last one first, the sum is that
of a convolution without a stride; what is multiplied with zeros in the program as it stands is left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tuner.program.language.dims import DimExpr, Quotient
from tuner.program.language.expr import Axis, Binary, Call, Const, Expr, Extent, Read, axes_of, reads, rebuild, walk
from tuner.program.language.indices import index_dim, index_of
from tuner.program.language.program import Program
from tuner.program.language.workload import Workload
from tuner.schedule.access import values
from tuner.schedule.product.match.factors import atoms_in, multiplied
from tuner.schedule.rule import Mismatch, need

MAX_PHASES = 9
"""Each has loops of its own, which take time to build."""


@dataclass(frozen=True)
class Places:
    """The values ``step * i + first`` of an axis of the output."""

    axis: str
    step: int
    first: int


@dataclass(frozen=True)
class Taps:
    """``count`` values of a reduced axis: ``last``, ``last - step`` and so on."""

    axis: str
    step: int
    last: int
    count: int


@dataclass(frozen=True)
class Phase:
    """``workload``: the convolution of one phase, its axes counting the phase's places and taps alone; of the tensors
    in ``cut`` it has no more than the taps."""

    workload: Workload
    places: tuple[Places, ...]
    taps: tuple[Taps, ...]
    cut: frozenset[str]


class _OfPhase(Workload):
    """Extents over the symbols of the whole workload, under the names that they have there."""

    @cached_property
    def symbol_exprs(self) -> Mapping[str, DimExpr]:
        return {name: DimExpr.var(name) for name in sorted(self.variables)}


@dataclass(frozen=True)
class _Hit:
    """``(place + shift - tap) % step == 0``."""

    place: str
    tap: str
    step: int
    shift: int


def phases_of(workload: Workload, factors: Sequence[Expr], is_cut: bool) -> tuple[Phase, ...]:
    """The phases of a product of factors. ``is_cut``: constants that are read at taps alone are had without all others.
    Raises Mismatch for a workload that is no transposed convolution of a few."""
    guarded = [factor for factor in factors if isinstance(factor, Call) and factor.function == "where"]
    need(len(guarded) == 1, "not one factor has a condition")
    condition, read, otherwise = guarded[0].args
    hits = list(_hits(workload, condition))
    others = [factor for factor in factors if factor is not guarded[0]]
    if not isinstance(read, Read) or otherwise not in (Const(0), Const(0.0)) or not _is_regular(hits, read, others):
        raise Mismatch("places and taps cannot be counted anew")
    product = multiplied([read if factor is guarded[0] else factor for factor in factors])
    need(math.prod(hit.step for hit in hits) <= MAX_PHASES, f"there are more than {MAX_PHASES} phases")
    firsts = itertools.product(*(range(hit.step) for hit in hits))
    return tuple(_phase(workload, product, hits, own, is_cut) for own in firsts)


def _hits(workload: Workload, condition: Expr) -> Iterator[_Hit]:
    """What a condition asks for, each of which must be that a tap meets a place."""
    match condition:
        case Binary("&", left, right):
            yield from _hits(workload, left)
            yield from _hits(workload, right)
        case Binary("==", Binary("%", term, Const(value=int() as step)), Const(value=0)) if step > 1:
            dim, stage = index_dim(term), workload.program.stages[0]
            parts = dict(dim.terms) if dim is not None else {}
            shift = parts.pop((), 0)
            places = [name for name in stage.axes if parts.get((name,)) == 1]
            taps = [name for name in stage.reduce_axes if parts.get((name,)) == -1]
            need(len(parts) == 2 and len(places) == len(taps) == 1, "the condition is not of a place and a tap")
            need(workload.sizes[taps[0]].constant is not None, "the number of taps is dynamic")
            yield _Hit(places[0], taps[0], step, shift)
        case _:
            raise Mismatch("the condition is not that taps meet places")


def _is_regular(hits: Sequence[_Hit], read: Read, others: Sequence[Expr]) -> bool:
    """Whether places and taps occur where they can be counted anew: in indices, places in those of ``read`` alone."""
    places, taps = {hit.place for hit in hits}, {hit.tap for hit in hits}
    if len(places) + len(taps) != 2 * len(hits) or any(places & axes_of(factor) for factor in others):
        return False
    every = [read, *others]
    sized = {node.name for factor in every for node in walk(factor) if isinstance(node, Extent)}
    as_values = {node.name for factor in others for node in values(factor) if isinstance(node, Axis)}
    known = all(index_dim(index) is not None for factor in every for each in reads(factor) for index in each.indices)
    return known and not (places | taps) & (sized | as_values)


def _phase(workload: Workload, product: Expr, hits: Sequence[_Hit], firsts: Sequence[int], is_cut: bool) -> Phase:
    """The phase of places that begin there. Raises Mismatch if what is left is no convolution."""
    stage, *rest = workload.program.stages
    places = tuple(Places(hit.place, hit.step, first) for hit, first in zip(hits, firsts, strict=True))
    taps = tuple(_taps(workload, hit, first) for hit, first in zip(hits, firsts, strict=True))
    var, windows = DimExpr.var, {each.axis for each in taps}
    anew = {each.axis: var(each.axis) * each.step + each.first for each in places}
    anew |= {each.axis: var(each.axis) * -each.step + each.last for each in taps}
    cut = set[str]()

    def counted(node: Expr) -> Expr:
        if not isinstance(node, Read):
            return node
        own = is_cut and node.tensor in workload.constants
        own = own and all(isinstance(index, Axis) or not windows & axes_of(index) for index in node.indices)
        if own:
            cut.add(node.tensor)
            return node
        return replace(node, indices=tuple(_counted(index, anew) for index in node.indices))

    body = rebuild(product, counted)
    atoms = [atom for read in reads(body) for index in read.indices for atom in atoms_in(index)]
    divided = [atom.numerator.variables & set(anew) for atom in atoms if isinstance(atom, Quotient)]
    need(not any(divided), "a place or a tap is divided")
    program = Program((replace(stage, body=body), *rest), workload.program.outputs)
    sizes = dict(workload.sizes)
    sizes |= {each.axis: (sizes[each.axis] - each.first + (each.step - 1)) // each.step for each in places}
    sizes |= {each.axis: DimExpr.of(each.count) for each in taps}
    shapes = {name: workload.tensors[name].dims for name in workload.program.inputs}
    for read in (read for read in reads(body) if read.tensor in cut):
        shapes[read.tensor] = tuple(
            sizes[index.name] if isinstance(index, Axis) and index.name in windows else dim
            for index, dim in zip(read.indices, shapes[read.tensor], strict=True)
        )
    of_phase = _OfPhase(
        program, tuple(sizes.items()), workload.dtypes, workload.constants, workload.padding, tuple(shapes.items())
    )  # fmt: skip
    return Phase(of_phase, places, taps, frozenset(cut))


def _taps(workload: Workload, hit: _Hit, first: int) -> Taps:
    size = workload.sizes[hit.tap].constant or 0
    least = (first + hit.shift) % hit.step
    count = max(-(-(size - least) // hit.step), 0)
    return Taps(hit.tap, hit.step, least + hit.step * (count - 1), count)


def _counted(index: Expr, anew: Mapping[str, DimExpr]) -> Expr:
    dim = index_dim(index)
    assert dim is not None
    return index_of(dim.substituted({name: anew.get(name, DimExpr.var(name)) for name in dim.variables}))
