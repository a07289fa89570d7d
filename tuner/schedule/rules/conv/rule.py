"""The rule for contractions of any form on vector units: convolutions, einsums, products of several factors.

Axes of the program are grouped to m, n and k (``pattern``), and what a group is made of is walked as one flattened
index. Operands that are not matrices as they lie are gathered, block by block, into what the register tile
reads (im2col), or read in a padded copy; a constant one is packed once. A micro-kernel has the axes of
every product, and:

========  =====================================================================================================
``rows``  0 and 1 as there; 2: rows are read in a padded copy of the part of the image that a block's windows are in
``pack``  0 to 2 as there; 3: panels are read in a padded copy of the part of the image that some of them are in
``join``  1: m and n hold all of their axes, results go through a buffer; 0: they hold those that lie together in the
          output, which is written in place, and others are walked outside
``group`` elements of k in one step, where there are instructions for several (tuner/schedule/product/atoms.py)
========  =====================================================================================================

A transposed convolution with a stride is several without one (``phases``), with the same choices for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.errors import IllegalKernel
from tuner.program.expr import axes_of
from tuner.program.target import Hardware, Target
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.layout import CutLayout, Layout, PackLayout
from tuner.schedule.product.atom import Atom
from tuner.schedule.product.atoms import best_of_vectors
from tuner.schedule.product.axes import (
    IN_COPY,
    IN_IMAGE,
    MAX_BLOCK,
    atom_axes,
    atom_of,
    canonicalised,
    check,
    default_values,
    ragged_axes,
    thread_axes,
    tile_axes,
)
from tuner.schedule.product.match.factors import Factors, dims_of
from tuner.schedule.product.match.form import Form
from tuner.schedule.product.match.groups import form_of, forms, forms_of
from tuner.schedule.product.match.parts import outer_role
from tuner.schedule.product.product import DTYPE
from tuner.schedule.rule import Extents, NoMatch, Rule
from tuner.schedule.rules.conv import estimate
from tuner.schedule.rules.conv.emit import emit
from tuner.schedule.space import Axis, MicroKernel, SearchSpace


class X86Gathered(Rule):
    """See the module's text for the axes; ``estimate`` for the theory, ``emit`` for the code."""

    name = "x86_gathered"

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        found = forms(workload)
        if isinstance(found, NoMatch):
            return found
        if not found[0].dots(target.hardware):
            return NoMatch(f"{target.mcpu} has no instruction that multiplies the operands as they are")
        return found[0].roles

    def workspace_bytes(self, task: SearchTask) -> int:
        """Of a right operand that is gathered as a whole: all else is of one block."""
        form = forms_of(task.workload)[-1]
        if form.right.is_packed_ahead or not form.left.is_gathered:
            return 0
        sizes = form.by_role({axis: np.array([size]) for axis, size in _largest(task).items()})
        return int(4 * task.threads * sizes["k"][0] * sizes["n"][0])

    def space(self, task: SearchTask) -> SearchSpace:
        hardware, form = task.known_target.hardware, forms_of(task.workload)[0]
        found = forms_of(task.workload)
        axes = (
            *tile_axes(form.steps, _atoms(hardware, found)),
            Axis("rows", "rows of a block are gathered", _rows(hardware, found)),
            # Code of phases is written once for each: not also for every width of the last panel.
            *ragged_axes(any("n" in form.dynamic and not form.phases for form in found)),
            Axis("pack", "panels are gathered at each call", _packings(hardware, found)),
            *thread_axes(task.threads, any(form.outer for form in found)),
            *atom_axes(_atoms(hardware, found)),
            Axis("join", "m and n hold all of their axes", tuple(sorted(int(form.joined) for form in found))),
        )

        # Once: to look a workload up takes longer than all the rest of a check.
        of_join = {int(form.joined): (form, form.product.atoms(hardware)) for form in found}
        return SearchSpace(
            self.name,
            self.version,
            axes,
            check=lambda kernel: _check(kernel, *of_join[kernel["join"]], task.threads, hardware),
            canonicalise=lambda values: _canonical(values, *of_join[values["join"]], hardware),
        )

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        """A square-ish tile, three quarters of the registers, k in chunks that stay in cache."""
        space, form = self.space(task), forms_of(task.workload)[0]
        choices = {axis.name: axis.choices for axis in space.axes}
        pack = choices["pack"][-1] if form.left.is_gathered else choices["pack"][0]
        values = default_values(
            task, bool(form.outer), mb=MAX_BLOCK if pack == 1 else 8, kc=256 if 256 in choices["kc"] else 0,
            rows=0 if form.left.is_packed_ahead else min(1, choices["rows"][-1]), pack=pack, join=int(form.joined),
        )  # fmt: skip
        if values["rows"] and pack == 1:
            values["rows"] = 0
        if "group" in choices:
            in_place = pack == 0 and not form.right.is_packed_ahead
            values["group"] = 1 if in_place else best_of_vectors(_atoms(task.known_target.hardware, [form]))
        steps, group = form.steps, atom_of(values, form.product.atoms(task.known_target.hardware)).group
        if not form.can_hold_partial or (steps is not None and values["kc"] * group >= steps):
            values["kc"] = 0
        return space.kernel(values)

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        return estimate.latency_s(task, kernels, extents)

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        return estimate.features(task, kernels, extents)

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        form = form_of(task.workload, bool(kernel["join"]))
        hardware = task.known_target.hardware
        width, atom = kernel["nv"] * hardware.lanes(), atom_of(kernel, form.product.atoms(hardware))
        parts = [_layouts(task.workload, own, width, atom) for own in form.each]
        return parts[0] if not form.phases else _cut(task.workload, form, parts)

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        return emit(task, kernel, self.layouts(task, kernel), name)


def _check(
    kernel: MicroKernel, form: Form, atoms: Mapping[int, Atom], threads: int, hardware: Hardware
) -> None:  # fmt: skip
    """Raises IllegalKernel for what the hardware cannot carry, or the form does not have."""
    check(kernel, form.product, atoms, threads, hardware, copies=len(form.each))
    atom = atom_of(kernel, atoms)
    group = atom.depth
    if kernel["kc"] and not form.can_hold_partial:
        raise IllegalKernel(f"kc={kernel['kc']}: an output of {form.out_dtype} needs kc=0, or join=1")
    if form.steps is not None and kernel["kc"] and kernel["kc"] * atom.group >= form.steps:
        raise IllegalKernel(f"kc={kernel['kc']} is all of k: needs kc=0")
    if kernel["rows"] and form.left.is_packed_ahead and atom.unit is None:
        raise IllegalKernel(f"rows={kernel['rows']}: rows that are packed ahead are read as they lie")
    if kernel["rows"] == IN_IMAGE and form.image is None:
        raise IllegalKernel(f"rows={IN_IMAGE}: with join={kernel['join']} no rows are windows of one image")
    if kernel["rows"] == IN_IMAGE and group > 1:
        raise IllegalKernel(f"rows={IN_IMAGE}: a copy of an image has elements, group={group} words")
    if kernel["pack"] == IN_COPY:
        _check_copy(kernel, form, hardware)


def _canonical(
    values: Mapping[str, int], form: Form, atoms: Mapping[int, Atom], hardware: Hardware
) -> dict[str, int]:  # fmt: skip
    """The values with one choice for axes that are don't-care beside the others."""
    if values["pack"] == IN_COPY:
        is_copied = form.copies_columns(hardware) and values.get("group", 1) == 1
        values = {**values, "near": 0} if is_copied else {**values, "pack": 1}
    result = canonicalised(values if form.can_hold_partial else {**values, "kc": 0}, form.product, atoms)
    atom = atom_of(result, atoms)
    if "group" in result and form.steps is not None and result["kc"] * atom.group >= form.steps:
        result["kc"] = 0
    if form.left.is_packed_ahead and atom.unit is None:
        result["rows"] = 0
    if result["rows"] == IN_IMAGE and (form.image is None or result.get("group", 1) > 1):
        result["rows"] = 1
    return result if form.outer else {**result, "tb": 1}


def _check_copy(kernel: MicroKernel, form: Form, hardware: Hardware) -> None:
    """Raises IllegalKernel where panels cannot be read in a copy of an image."""
    if not form.copies_columns(hardware):
        raise IllegalKernel(f"pack={IN_COPY}: with join={kernel['join']} no columns are windows of one image")
    if kernel.get("group") > 1 or kernel["near"]:
        given = f"group={kernel.get('group')} near={kernel['near']}"
        raise IllegalKernel(f"pack={IN_COPY} reads elements of a copy: needs group=1 and near=0, got {given}")
    # Beside the accumulators and what is multiplied, which lanes a vector takes.
    need = kernel["mr"] * kernel["nv"] + 2 * kernel["nv"] + 1
    if need > hardware.vector_registers:
        text = f"pack={IN_COPY} mr={kernel['mr']} nv={kernel['nv']} needs {need} vector registers"
        raise IllegalKernel(f"{text}, there are {hardware.vector_registers}")


def _largest(task: SearchTask) -> Mapping[str, int]:
    return task.workload.axis_sizes(task.largest_dims)


def _atoms(hardware: Hardware, found: Sequence[Form]) -> dict[int, Atom]:
    """The instructions that there are for all forms."""
    every = [form.product.atoms(hardware) for each in found for form in each.each]
    atoms = found[0].product.atoms(hardware)
    return {depth: atom for depth, atom in atoms.items() if all(depth in others for others in every)}


def _has_unit(hardware: Hardware, found: Sequence[Form]) -> bool:
    """Whether there is a matrix unit, whose operands are packed."""
    return any(atom.unit is not None for atom in _atoms(hardware, found).values())


def _rows(hardware: Hardware, found: Sequence[Form]) -> tuple[int, ...]:
    """Choices of ``rows``."""
    in_image = (IN_IMAGE,) if any(form.image is not None for form in found) else ()
    left = found[0].left
    if left.is_packed_ahead:
        return (0, 1) if _has_unit(hardware, found) else (0,)
    return (1, *in_image) if left.is_gathered else (0, 1)


def _packings(hardware: Hardware, found: Sequence[Form]) -> tuple[int, ...]:
    """Choices of ``pack``. A gathered panel that rows share is gathered once; all panels at the start where the rows of
    a block are gathered, too."""
    form = found[0]
    if form.right.is_packed_ahead:
        return (0,)
    again = form.left.is_gathered
    if form.right.is_viewed and form.right.lies_along_n and not any(form.joined for form in found):
        # Words of integers are made of neighbours in k, which no vector in place has.
        in_place = (0,) if form.total == DTYPE else ()
        return (*in_place, 2) if again else (*in_place, 1, 2)
    in_copy = (IN_COPY,) if any(form.copies_columns(hardware) for form in found) else ()
    at_once = (2,) if _has_unit(hardware, found) else ()
    return (2,) if again else (1, *in_copy, *at_once)


def _layouts(workload: Workload, form: Form, width: int, atom: Atom) -> dict[str, PackLayout]:
    """How the constants of one form are packed; ``width``: columns of a panel."""
    sides = ((form.left, form.m, 1), (form.right, form.n, width))
    own = form.phase.workload if form.phase is not None else workload
    return {
        operand.tensor: _layout(own, form, operand, rows, panel, atom)
        for operand, rows, panel in sides
        if operand.is_packed_ahead
    }


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
    read = next(read for read in workload.program.reads if read.tensor == operand.tensor)
    dims = dims_of(workload, form.parts, read)
    assert dims is not None
    place = {name: at for at, name in enumerate(name for names in dims for name in names)}
    sizes = tuple(tuple(form.parts[name].extent.constant or 0 for name in names) for names in dims)
    outer = [name for role in operand.roles[:-2] for name in form.outer if outer_role(name) == role]
    batch, own, steps = (tuple(place[name] for name in group) for group in (outer, rows, form.k))
    return PackLayout(panel, atom.group, atom.offset, sizes, batch, own, steps, atom.steps)
