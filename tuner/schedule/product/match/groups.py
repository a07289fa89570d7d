"""What the rule looks for: a sum of products whose axes group into a batch, m, n and k; then elementwise stages.

The right operand is the product of the factors that depend on the output's last axis, the left one that of all others.
Axes of the output that both depend on, or that lie between others in memory, are walked outside (``outer``); the others
are m (of the left operand) and n (of the right one), each group one flattened index, as is k, all that is summed over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from tuner.program.expr import Axis, Cast, Extent, Read, reads
from tuner.program.notation import Stage
from tuner.program.workload import Workload
from tuner.schedule.access import axes_of_read, is_plain, values
from tuner.schedule.product.atoms import FMA
from tuner.schedule.product.match import plain
from tuner.schedule.product.match.factors import dims_of, factors_of, merged, ordered_steps, total_of
from tuner.schedule.product.match.form import Form
from tuner.schedule.product.match.operands import COLUMNS, ROWS, operand_of
from tuner.schedule.product.match.parts import names_of, needed, parts_of
from tuner.schedule.product.match.phases import Phase, phases_of
from tuner.schedule.product.operands.columns import columns_of
from tuner.schedule.product.operands.image import image_of
from tuner.schedule.product.product import DTYPE, UNSUPPORTED
from tuner.schedule.rule import NoMatch, matched

MIN_COLUMNS = 8
"""A fixed n of fewer columns is not worth vectors of its own."""


@lru_cache(maxsize=1024)
def forms(workload: Workload) -> tuple[Form, ...] | NoMatch:
    """The ways to group a workload's axes: where results are stored as they are computed, and, if that leaves axes out
    of m or n, where all are in. Or why there is none."""
    first, *rest = workload.program.stages
    if not isinstance(plain.match(workload), NoMatch):
        return NoMatch("x86_contraction takes it")
    if first.reducer != "sum" or not first.axes:
        return NoMatch("the first stage is no sum that leaves an axis")
    reason = _types_problem(workload) or _stages_problem(workload, first, rest)
    return NoMatch(reason) if reason else _in_phases(workload) or _grouped(workload)


def forms_of(workload: Workload) -> tuple[Form, ...]:
    """The groupings of a workload that the rule takes. Raises ValueError for another."""
    return matched(workload, forms(workload))


def form_of(workload: Workload, joined: bool) -> Form:
    """The one that ``joined`` asks for, which must be there."""
    return next(form for form in forms_of(workload) if form.joined == joined)


def _types_problem(workload: Workload) -> str | None:
    """What is not computed in float32, or not of a dtype that is widened to it as it is read. Sums of integers may have
    other tensors behind them."""
    if workload.program.index_tensors:
        return f"{', '.join(sorted(workload.program.index_tensors))} is an index"
    total = total_of(workload)
    if total not in plain.TOTALS:
        return f"sums are {total}, none of {', '.join(sorted(plain.TOTALS))}"
    for tensor in workload.tensors.values():
        if tensor.dtype in UNSUPPORTED or (total == DTYPE and tensor.dtype not in FMA.right):
            return f"{tensor.name} is {tensor.dtype}, none of {', '.join(sorted(FMA.right))}"
    return None


def _stages_problem(workload: Workload, first: Stage, rest: Sequence[Stage]) -> str | None:
    """Why the stages behind the contraction are not a chain of elementwise ones."""
    before = first.tensor
    for stage in rest:
        if stage.reducer or stage.axes != first.axes:
            return f"stage {stage.tensor} is not elementwise over the output"
        for read in reads(stage.body):
            if read.tensor in workload.program.stage and (read.tensor != before or plain_axes(read) != first.axes):
                return f"stage {stage.tensor} reads {read.tensor} other than element by element"
        before = stage.tensor
    padded = {name for name, _ in workload.padding} & set(workload.program.stage)
    if padded:
        return f"{', '.join(sorted(padded))} is padded"
    return None if workload.program.outputs == (before,) else "an intermediate is an output, too"


def _in_phases(workload: Workload) -> tuple[Form, ...]:
    """The one grouping of a transposed convolution, if each of its phases can be grouped like all others."""
    for is_cut in (True, False):
        phases = phases_of(workload, factors_of(workload.program.stages[0].body), is_cut)
        found = [_grouped(phase.workload, phase, _seed(workload)) for phase in phases]
        forms = tuple(form for grouped in found if not isinstance(grouped, NoMatch) for form in grouped)
        packed = [{operand.tensor for operand in (f.left, f.right) if operand.is_packed_ahead} for f in forms]
        is_right = all(phase.cut == own for phase, own in zip(phases, packed, strict=False))
        kinds = {(form.m, form.n, form.k, type(form.left), type(form.right)) for form in forms}
        if forms and len(forms) == len(phases) and len(kinds) == 1 and is_right:
            most = max(forms, key=lambda form: math.prod(form.parts[name].extent.constant or 1 for name in form.k))
            return (replace(most, phases=forms),)
    return ()


def _seed(workload: Workload) -> str:
    """The last part of the output that has more than one element."""
    first = workload.program.stages[0]
    parts = parts_of(workload, first)
    out = names_of(parts, first.axes)
    return next((name for name in reversed(out) if parts[name].extent.constant != 1), out[-1])


def _grouped(workload: Workload, phase: Phase | None = None, seed: str | None = None) -> tuple[Form, ...] | NoMatch:
    """``seed``: the part of the output that vectors run along. A phase is grouped in one way: its places lie apart."""
    first, *behind = workload.program.stages
    rest, parts = tuple(behind), parts_of(workload, first)
    out, factors = names_of(parts, first.axes), factors_of(first.body)
    seed = seed or _seed(workload)
    needs = {factor: needed(factor, parts) for factor in factors}
    right = tuple(factor for factor in factors if seed in needs[factor])
    left = tuple(factor for factor in factors if seed not in needs[factor])
    of_left, of_right = (frozenset().union(*(needs[f] for f in side)) & set(out) for side in (left, right))
    if of_left | of_right != set(out):
        return NoMatch("the output has axes that no factor depends on")
    rows, columns = (tuple(n for n in out if n in a - b) for a, b in ((of_left, of_right), (of_right, of_left)))
    if not rows or not columns:
        return NoMatch("there are no axes of the output on which one operand alone depends, of either")
    steps = ordered_steps(workload, first, left, right)

    def form(m: tuple[str, ...], n: tuple[str, ...], joined: bool) -> Form:
        outer = tuple(name for name in out if name not in (*m, *n))
        groups = {"m": m, "n": n, "k": steps}
        roles = None if joined else merged(out, groups)
        x, y = operand_of(workload, parts, left, groups, ROWS), operand_of(workload, parts, right, groups, COLUMNS)
        written = workload.program.outputs[0]
        out_dtype, total = workload.tensors[written].dtype, total_of(workload)
        copied = not outer and x.is_gathered and total == DTYPE
        image = image_of(workload, left, parts, m, steps) if copied else None
        pixels = phase is None and x.is_packed_ahead and y.is_gathered and total == DTYPE
        columns = columns_of(workload, right, parts, n, steps) if pixels else None
        return Form(
            parts, outer, m, n, steps, x, y, written, out_dtype, roles, total, first.tensor, rest, image, columns, phase
        )

    if phase is not None:
        return (form(rows, columns, True),)
    split = form(_last_run(out, rows), _suffix(out, columns), False)
    size = math.prod(parts[name].extent.constant or MIN_COLUMNS for name in split.n)
    is_whole = (split.m, split.n) == (rows, columns)
    kept = (split,) if _is_direct(workload, split) and (size >= MIN_COLUMNS or is_whole) else ()
    return (*kept, *(() if is_whole and kept else (form(rows, columns, True),)))


def _suffix(out: tuple[str, ...], names: Sequence[str]) -> tuple[str, ...]:
    """The last parts of the output, as far as they are among ``names``; one of a single element may be any."""
    kept: list[str] = []
    for name in reversed(out):
        if name not in names:
            break
        kept.append(name)
    return tuple(reversed(kept)) or (names[-1],)


def _last_run(out: tuple[str, ...], names: Sequence[str]) -> tuple[str, ...]:
    """The last of the runs of neighbours among ``names``."""
    last = max(out.index(name) for name in names)
    first = last
    while first > 0 and out[first - 1] in names:
        first -= 1
    return out[first : last + 1]


# -- what is behind -------------------------------------------------------------------------------------------------
def plain_axes(read: Read) -> tuple[str, ...] | None:
    """The axes of a read at nothing but axes."""
    return axes_of_read(read) if is_plain(read) else None


def viewed(workload: Workload, form: Form, read: Read, groups: Mapping[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    """The roles of the dims of a tensor that is read element by element along the output; None for another."""
    dims = dims_of(workload, form.parts, read)
    if dims is None or plain_axes(read) is None:
        return None
    roles = merged([name for dim in dims for name in dim], groups)
    return roles if roles is not None and ("n" not in roles or roles[-1] == "n") else None


def _is_direct(workload: Workload, form: Form) -> bool:
    """Whether results can be written where they belong, through the epilogue, vector by vector."""
    if form.out_roles is None or form.out_roles[-1] != "n":
        return False
    groups = {"m": form.m, "n": form.n}
    # Sums of integers are cast before anything else is done with them.
    refused = (Axis, Extent, Cast) if form.total == DTYPE else (Axis, Extent)
    for stage in form.stages:
        if any(isinstance(node, refused) for node in values(stage.body)):
            return False
        for read in reads(stage.body):
            if read.tensor not in workload.program.stage and viewed(workload, form, read, groups) is None:
                return False
    return True
