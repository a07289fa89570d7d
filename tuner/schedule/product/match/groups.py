"""Sums of products whose axes group into a batch, m, n and k, with elementwise stages behind.

The right operand is the product of the factors that depend on the output's last axis, the left one that of all others.
Axes of the output that both depend on, or that lie between others in memory, are walked outside (``outer``); the others
are m (of the left operand) and n (of the right one), each group one flattened index, as is k, all that is summed over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from tuner.program.language.dims import DimExpr
from tuner.program.language.expr import Axis, Cast, Expr, Extent, Read, axes_of, reads
from tuner.program.language.program import index_dim
from tuner.program.language.workload import Workload
from tuner.schedule.access import is_plain, values
from tuner.schedule.product.atoms import FMA
from tuner.schedule.product.match import plain
from tuner.schedule.product.match.factors import (
    Part,
    dims_of,
    factors_of,
    in_words,
    merged,
    names_of,
    needed,
    ordered_steps,
    outer_role,
    parts_of,
    size_of,
    total_of,
)
from tuner.schedule.product.match.form import Form
from tuner.schedule.product.match.phases import Phase, phases_of
from tuner.schedule.product.operands.columns import columns_of
from tuner.schedule.product.operands.gathered import AheadColumns, AheadRows, GatheredColumns, GatheredRows
from tuner.schedule.product.operands.image import image_of
from tuner.schedule.product.operands.matrix import ViewedColumns, ViewedRows
from tuner.schedule.product.operands.turned import TurnedRows
from tuner.schedule.product.product import DTYPE, UNSUPPORTED
from tuner.schedule.rule import Mismatch, NoMatch, matched, need, pattern

Side = TypeVar("Side")
ONE = DimExpr.of(1)
MIN_COLUMNS = 8
"""A fixed n of fewer columns is not worth vectors of its own."""


@pattern
def forms(workload: Workload) -> tuple[Form, ...]:
    """The ways to group a workload's axes: where results are stored as they are computed, and, if that leaves axes out
    of m or n, where all are in."""
    first, *rest = workload.program.stages
    need(isinstance(plain.match(workload), NoMatch), "x86_contraction takes it")
    need(first.reducer == "sum" and bool(first.axes), "the first stage is no sum that leaves an axis")
    _need_types(workload)
    plain.need_chain(workload, first, rest, (), lambda read: read.tensor not in workload.program.stage, has_axes=True)
    padded = {name for name, _ in workload.padding} & set(workload.program.stage)
    need(not padded, f"{', '.join(sorted(padded))} is padded")
    return _in_phases(workload) or (*_grouped(workload), *_turned(workload))


def forms_of(workload: Workload) -> tuple[Form, ...]:
    """The groupings of a workload that the rule takes. Raises ValueError for another."""
    return matched(workload, forms(workload))


def form_of(workload: Workload, join: int) -> Form:
    """The one that a choice of ``join`` asks for, which must be there."""
    return next(form for form in forms_of(workload) if form.join == join)


def _need_types(workload: Workload) -> None:
    """Raises Mismatch for what is not computed in float32, or not of a dtype that is widened to it as it is read. Sums
    of integers may have other tensors behind them."""
    indices = workload.program.index_tensors
    need(not indices, f"{', '.join(sorted(indices))} is an index")
    total = total_of(workload)
    need(total in plain.TOTALS, f"sums are {total}, none of {', '.join(sorted(plain.TOTALS))}")
    for tensor in workload.tensors.values():
        is_right = tensor.dtype not in UNSUPPORTED and (total != DTYPE or tensor.dtype in FMA.right)
        need(is_right, f"{tensor.name} is {tensor.dtype}, none of {', '.join(sorted(FMA.right))}")


def _in_phases(workload: Workload) -> tuple[Form, ...]:
    """The one grouping of a transposed convolution, if each of its phases can be grouped like all others."""
    for is_cut in (True, False):
        try:
            phases = phases_of(workload, factors_of(workload.program.stages[0].body), is_cut)
            forms = tuple(form for phase in phases for form in _grouped(phase.workload, phase, _seed(workload)))
        except Mismatch:
            continue
        packed = [{operand.tensor for operand in (f.left, f.right) if operand.is_packed_ahead} for f in forms]
        is_right = all(phase.cut == own for phase, own in zip(phases, packed, strict=True))
        kinds = {(form.m, form.n, form.k, type(form.left), type(form.right)) for form in forms}
        if len(kinds) == 1 and is_right:
            most = max(forms, key=lambda form: math.prod(form.parts[name].extent.constant or 1 for name in form.k))
            return (replace(most, phases=forms),)
    return ()


def _seed(workload: Workload) -> str:
    """The last part of the output that has more than one element."""
    first = workload.program.stages[0]
    parts = parts_of(workload, first)
    out = names_of(parts, first.axes)
    return next((name for name in reversed(out) if parts[name].extent.constant != 1), out[-1])


def _grouped(workload: Workload, phase: Phase | None = None, seed: str | None = None) -> tuple[Form, ...]:
    """``seed``: the part of the output that vectors run along. A phase is grouped in one way: its places lie apart."""
    first, *rest = workload.program.stages
    parts = parts_of(workload, first)
    out, factors = names_of(parts, first.axes), factors_of(first.body)
    seed = seed or _seed(workload)
    needs = {factor: needed(factor, parts) for factor in factors}
    right = tuple(factor for factor in factors if seed in needs[factor])
    left = tuple(factor for factor in factors if seed not in needs[factor])
    of_left, of_right = (frozenset().union(*(needs[f] for f in side)) & set(out) for side in (left, right))
    need(of_left | of_right == set(out), "the output has axes that no factor depends on")
    rows, columns = (tuple(n for n in out if n in a - b) for a, b in ((of_left, of_right), (of_right, of_left)))
    is_product = bool(rows) and bool(columns)
    need(is_product, "there are no axes of the output on which one operand alone depends, of either")
    steps = ordered_steps(workload, first, left, right)

    def form(m: tuple[str, ...], n: tuple[str, ...], joined: bool) -> Form:
        outer = tuple(name for name in out if name not in (*m, *n))
        groups = {"m": m, "n": n, "k": steps}
        roles = None if joined else merged(out, groups)
        x = _operand(workload, parts, left, groups, "m", _ROWS)
        y = _operand(workload, parts, right, groups, "n", _COLUMNS)
        written = workload.outputs[0]
        is_float = total_of(workload) == DTYPE
        image = image_of(workload, left, parts, m, steps) if not outer and x.is_gathered and is_float else None
        pixels = phase is None and x.is_packed_ahead and y.is_gathered and is_float
        columns = columns_of(workload, right, parts, n, steps) if pixels else None
        return Form(
            parts, outer, m, n, steps, x, y, written.name, written.dtype, roles, total_of(workload), first.tensor,
            tuple(rest), image, columns, phase,
        )  # fmt: skip

    if phase is not None:
        return (form(rows, columns, True),)
    split = form(_last_run(out, rows), _suffix(out, columns), False)
    is_whole = (split.m, split.n) == (rows, columns)
    is_wide = (size_of(parts, split.n) or MIN_COLUMNS) >= MIN_COLUMNS
    kept = (split,) if _is_direct(workload, split) and (is_wide or is_whole) else ()
    return (*kept, *(() if is_whole and kept else (form(rows, columns, True),)))


def _turned(workload: Workload) -> tuple[Form, ...]:
    """The grouping by which vectors run along the columns of a constant, and rows are read where they lie, if the other
    operand and the output lie along m: a convolution of one element, of images that lie channel by channel."""
    first, *rest = workload.program.stages
    factors, tensors = factors_of(first.body), workload.tensors
    new = tuple(each for each in factors if isinstance(each, Read) and each.tensor not in workload.constants)
    kept = tuple(each for each in factors if isinstance(each, Read) and each.tensor in workload.constants)
    is_float = total_of(workload) == DTYPE and all(tensor.dtype == DTYPE for tensor in tensors.values())
    if len(factors) != 2 or len(new) != 1 or len(kept) != 1 or not is_float:
        return ()
    parts = parts_of(workload, first)
    out, of_left, of_right = names_of(parts, first.axes), needed(new[0], parts), needed(kept[0], parts)
    if not of_left & set(out) - of_right or not of_right & set(out) - of_left:
        return ()
    m = _last_run(out, [name for name in out if name in of_left - of_right])
    n = _last_run(out, [name for name in out if name in of_right - of_left])
    steps = ordered_steps(workload, first, new, kept)
    long = tuple(name for name in steps if parts[name].extent != ONE)
    roles, out_roles = merged(_places(workload, parts, new[0]), {"k": long, "m": m}), merged(out, {"m": m, "n": n})
    right = _operand(workload, parts, kept, {"n": n, "k": steps}, "n", _COLUMNS)
    if not right.is_packed_ahead or (roles or ())[-2:] != ("k", "m") or (out_roles or ())[-1:] != ("m",):
        return ()
    written, outer = workload.outputs[0], tuple(name for name in out if name not in (*m, *n))
    left = TurnedRows(new, roles or (), DTYPE, DTYPE)
    form = Form(
        parts, outer, m, n, steps, left, right, written.name, written.dtype, out_roles, DTYPE, first.tensor, tuple(rest)
    )
    return (form,) if _is_direct(workload, form) else ()


def _places(workload: Workload, parts: Mapping[str, Part], read: Read) -> list[str]:
    """The parts that the dims of a tensor are, one each, windows of one element left out; none for another tensor."""
    names = []
    for index, size in zip(read.indices, workload.tensors[read.tensor].dims, strict=True):
        long = [axis for axis in axes_of(index) if workload.sizes[axis] != ONE]
        own = long or [axis for axis in axes_of(index) if axis in workload.program.stages[0].axes]
        terms = dict(dim.terms) if (dim := index_dim(index)) is not None else {}
        is_axis = len(own) == 1 and terms.get((own[0],)) == 1 and not terms.get(())
        if not is_axis or workload.sizes[own[0]] != size or own[0] not in parts:
            return []
        names += own
    return names


def _suffix(out: tuple[str, ...], names: Sequence[str]) -> tuple[str, ...]:
    """The last parts of the output, as far as they are among ``names``; one of a single element may be any."""
    first = len(out)
    while first > 0 and out[first - 1] in names:
        first -= 1
    return out[first:] or (names[-1],)


def _last_run(out: tuple[str, ...], names: Sequence[str]) -> tuple[str, ...]:
    """The last of the runs of neighbours among ``names``."""
    last = max(out.index(name) for name in names)
    return _suffix(out[: last + 1], names)


# -- operands ---------------------------------------------------------------------------------------------------------
_Kinds = tuple[Callable[..., Side], Callable[..., Side], Callable[..., Side]]
"""What an operand may be: gathered, packed ahead, or viewed."""
_ROWS: _Kinds[AheadRows | GatheredRows | ViewedRows] = GatheredRows, AheadRows, ViewedRows
_COLUMNS: _Kinds[AheadColumns | GatheredColumns | ViewedColumns] = GatheredColumns, AheadColumns, ViewedColumns


def _operand(
    workload: Workload, parts: Mapping[str, Part], factors: tuple[Expr, ...],
    groups: Mapping[str, tuple[str, ...]], own: str, kinds: _Kinds[Side],
) -> Side:  # fmt: skip
    """How the product of some factors is read that has the group ``own``, m or n, besides k."""
    gathered_as, packed_as, viewed_as = kinds
    if len(factors) != 1 or not isinstance(factors[0], Read):
        return gathered_as(factors)
    read = factors[0]
    dtype, total = workload.tensors[read.tensor].dtype, total_of(workload)
    gathered = gathered_as(factors, dtype=dtype if total == "int32" else total, read_dtype=dtype)
    names = [name for dim in dims_of(workload, parts, read) or () for name in dim]
    if not {*groups[own], *groups["k"]} <= set(names):
        return gathered
    if read.tensor in workload.constants:
        # Whatever else reads it needs it as it is, and a library packs it once.
        is_read_again = sum(each.tensor == read.tensor for each in workload.program.reads) > 1
        outer = tuple(outer_role(name) for name in names if name not in (*groups[own], *groups["k"]))
        is_packed = not is_read_again and size_of(parts, names) is not None
        return packed_as(factors, (*outer, own, "k"), dtype, dtype) if is_packed else gathered
    if total == "int32" and not in_words(parts, groups["k"]):
        return gathered
    roles = merged(names, {own: groups[own], "k": groups["k"]})
    usable = roles is not None and (roles[-1] == "k" if own == "m" else set(roles[-2:]) == {"k", "n"})
    return viewed_as(factors, roles or (), dtype, dtype) if usable else gathered


# -- what is behind ---------------------------------------------------------------------------------------------------
def viewed(workload: Workload, form: Form, read: Read, groups: Mapping[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    """The roles of the dims of a tensor that is read element by element along the output; None for another."""
    dims = dims_of(workload, form.parts, read)
    if dims is None or not is_plain(read):
        return None
    roles = merged([name for dim in dims for name in dim], groups)
    return roles if roles is not None and (form.last not in roles or roles[-1] == form.last) else None


def _is_direct(workload: Workload, form: Form) -> bool:
    """Whether results can be written where they belong, through the epilogue, vector by vector."""
    if form.out_roles is None or form.out_roles[-1] != form.last:
        return False
    groups = {"m": form.m, "n": form.n}
    # Sums of integers are cast before anything else is done with them.
    refused = (Axis, Extent, Cast) if form.total == DTYPE else (Axis, Extent)
    for stage in form.stages:
        inputs = (read for read in reads(stage.body) if read.tensor not in workload.program.stage)
        has_refused = any(isinstance(node, refused) for node in values(stage.body))
        if has_refused or any(viewed(workload, form, read, groups) is None for read in inputs):
            return False
    return True
