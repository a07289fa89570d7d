"""TensorIR for contractions of any form: the engine's loops and register tile around gathered operands.

    for b in outer:                                 what is in both operands, or lies between m and n in the output
      for block in row blocks of mb tiles:
        [copy the image that its windows are in]    rows=2
        for chunk in chunks of kc steps of k:
          [gather or pack the block's rows]         rows=1
          for panel of nv vectors:
            [gather or pack the panel]              pack=1
            [its image is copied, for some panels]  pack=3, around the row blocks
            tiles
        [write the block's results]                 join=1

Where the rows are read in place (a weight that was packed ahead of time), a panel goes through all its chunks before
the next one, so that its results stay in cache; they are written panel by panel then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from tuner.program.job.task import SearchTask
from tuner.program.language.dtypes import DTYPES
from tuner.program.language.expr import axes_of, reads
from tuner.program.language.workload import Workload
from tuner.schedule.function import KernelFunction, dim_expr
from tuner.schedule.layout import CutLayout, Layout, PackLayout
from tuner.schedule.loops.shares import Share, on_threads
from tuner.schedule.product.atom import Atom, allowed
from tuner.schedule.product.axes import IN_IMAGE, atom_of, packed_vectors
from tuner.schedule.product.context import EmitContext, Indexing, View, context_of
from tuner.schedule.product.match.factors import Factors, dims_of, outer_role
from tuner.schedule.product.match.form import Form
from tuner.schedule.product.match.groups import form_of, viewed
from tuner.schedule.product.nest import Nest
from tuner.schedule.product.parts import multiply
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.memory import part_of


def write(task: SearchTask, kernel: MicroKernel, layouts: Mapping[str, Layout], function: KernelFunction) -> None:
    """The loops of every form: over all of its panels, or over one stretch of them after the other."""
    form = form_of(task.workload, kernel["join"])
    nests = [
        Nest(_context(task, own, kernel, function, _buffers(function, layouts, number)))
        for number, own in enumerate(form.each)
    ]
    with allowed(nests[0].context.words.atom):
        if not form.phases:
            multiply(nests[0].context)
            return
        stretches = _stretches(task, form, function)

        def share(thread: TirExpr) -> None:
            with nullcontext() if stretches is None else I.serial(i64(0), stretches) as number:
                for nest in nests:
                    nest.share(thread, None if stretches is None else partial(_stretch, number, stretches))

        on_threads(task.threads, share)


def _stretch(number: TirExpr, count: TirExpr, nest: Nest, tiles: Share, panels: Share, is_last: TirExpr) -> None:
    """One of ``count`` stretches of the panels."""
    first, length = panels[0], panels[1] - panels[0]
    begin, end = (I.Bind(first + tirx.floordiv(length * at, count)) for at in (number, number + i64(1)))
    nest.product(tiles, (begin, end), is_last)


def _stretches(task: SearchTask, form: Form, function: KernelFunction) -> TirExpr | None:
    """In how many stretches each thread takes its panels; None where all at once.

    Where vectors run along the places, each line of the output has elements of several phases. All phases write those
    of a stretch while its lines are in half of L2; else every line would come from memory and go there for each phase.
    """
    axis = form.parts[form.n[-1]].axis
    if form.phase is None or axis not in {places.axis for places in form.phase.places}:
        return None
    out = task.workload.tensors[form.out]
    size = math.prod((dim_expr(dim, function.symbols) for dim in out.dims), start=i64(DTYPES[out.dtype].bytes))
    each = i64(task.threads * task.known_target.hardware.l2_bytes // 2)
    return I.Bind(tirx.floordiv(size + each - i64(1), each))


def _buffers(function: KernelFunction, layouts: Mapping[str, Layout], number: int) -> dict[str, TirExpr]:
    """The operands as phase ``number`` takes them: of one that is packed for all phases, its part."""
    whole, cut = function.buffers, {name: own for name, own in layouts.items() if isinstance(own, CutLayout)}
    return {**whole, **{name: part_of(whole[name], own.first(number), own.shape(number)) for name, own in cut.items()}}


def _context(
    task: SearchTask, form: Form, kernel: MicroKernel, function: KernelFunction, buffers: Mapping[str, TirExpr]
) -> EmitContext:
    own = task
    if form.phase is not None:
        own = task.part(form.phase.workload)
        if kernel["rows"] == IN_IMAGE and form.image is None:
            kernel = replace(kernel, values=tuple({**dict(kernel.values), "rows": 1}.items()))
    parts = Indexing(form, function, own.workload, task.workload)
    sizes = {role: math.prod(map(parts.size, group), start=i64(1)) for role, group in form.groups.items()}
    extent = {role: _named(size) for role, size in sizes.items()}
    # Views have elements.
    parts = replace(parts, views=_views(parts, extent, buffers))
    context = context_of(own, form.product, kernel, function, extent)
    steps = context.extent["k"]
    if context.words.atom.group > 1:
        steps = _named(steps)
    return replace(context, extent={**extent, "k": steps}, buffers=buffers, indexing=parts)


def _named(size: TirExpr) -> TirExpr:
    return size if isinstance(size, tirx.IntImm) else I.Bind(size)


def _views(parts: Indexing, extent: Mapping[str, TirExpr], buffers: Mapping[str, TirExpr]) -> dict[str, View]:
    """By tensor, and by its place in the product, the tensors with dims merged to groups."""
    form, workload = parts.form, parts.workload
    sizes = {outer_role(name): parts.size(name) for name in form.outer} | {role: extent[role] for role in "mnk"}

    def declared(tensor: str, roles: tuple[str, ...]) -> View:
        shape = [sizes[role] for role in roles]
        buffer, align = buffers[tensor], DTYPES[workload.tensors[tensor].dtype].bytes
        return View(I.decl_buffer(shape, buffer.dtype, data=buffer.data, align=align), roles)

    sides = (("left", form.left), ("right", form.right))
    views = {f"{own.tensor} {side}": declared(own.tensor, own.roles) for side, own in sides if own.is_viewed}
    if form.out_roles is None:
        return views
    views["out"] = declared(form.out, form.out_roles)
    for read in (read for stage in form.stages for read in reads(stage.body)):
        roles = viewed(workload, form, read, {"m": form.m, "n": form.n})
        if read.tensor not in workload.program.stage and roles is not None:
            views[read.tensor] = declared(read.tensor, roles)
    return views


# -- layouts ----------------------------------------------------------------------------------------------------------
def layouts_of(task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
    """How constants are packed."""
    form = form_of(task.workload, kernel["join"])
    hardware, parts = task.known_target.hardware, []
    width, atom = packed_vectors(kernel) * hardware.lanes(), atom_of(kernel, form.product.atoms(hardware))
    for own in form.each:
        workload = own.phase.workload if own.phase is not None else task.workload
        sides = ((own.left, own.m, 1), (own.right, own.n, width))
        parts.append({
            operand.tensor: _layout(workload, own, operand, rows, panel, atom)
            for operand, rows, panel in sides
            if operand.is_packed_ahead
        })  # fmt: skip
    return parts[0] if not form.phases else _cut(task.workload, form, parts)


def _cut(workload: Workload, form: Form, parts: Sequence[Mapping[str, PackLayout]]) -> dict[str, CutLayout]:
    """How constants are packed of which each phase takes some taps."""

    def taken(own: Form, tensor: str) -> tuple[tuple[int, int, int, int], ...]:
        assert own.phase is not None
        (read,) = (read for read in own.phase.workload.program.reads if read.tensor == tensor)
        at = {axis: dim for dim, index in enumerate(read.indices) for axis in axes_of(index)}
        return tuple(
            (at[taps.axis], taps.last, taps.last - taps.step * taps.count, -taps.step)
            for taps in own.phase.taps
            if taps.axis in at
        )

    return {
        tensor: CutLayout(
            tuple((taken(own, tensor), part[tensor]) for own, part in zip(form.phases, parts, strict=True)),
            tuple(dim.constant or 0 for dim in workload.tensors[tensor].dims),
        )
        for tensor in parts[0]
    }


def _layout(
    workload: Workload, form: Form, operand: Factors, rows: tuple[str, ...], panel: int, atom: Atom
) -> PackLayout:  # fmt: skip
    dims = dims_of(workload, form.parts, operand.read)
    assert dims is not None
    place = {name: at for at, name in enumerate(name for names in dims for name in names)}
    sizes = tuple(tuple(form.parts[name].extent.constant or 0 for name in names) for names in dims)
    outer = [name for role in operand.roles[:-2] for name in form.outer if outer_role(name) == role]
    batch, own, steps = (tuple(place[name] for name in group) for group in (outer, rows, form.k))
    return PackLayout(panel, atom.group, atom.offset, sizes, batch, own, steps, atom.steps)
