"""The rule for contractions of any form on vector units: convolutions, einsums, products of several factors.

Axes of the program are grouped to m, n and k (``pattern``), and what a group is made of is walked as one flattened
index. Operands that are not matrices as they lie are gathered, block by block, into what the register tile
reads (im2col), or read in a padded copy; a constant one is packed once. A micro-kernel has the axes of
every product, and:

========  =====================================================================================================
``rows``  0 and 1 as there; 2: rows are read in a padded copy of the part of the image that a block's windows are in
``edge``  0 and 1 as there; 2: of a fixed number of columns the few behind whole vectors are computed along k
``pack``  0 to 2 as there; 3: panels are read in a padded copy of the part of the image that some of them are in
``join``  1: m and n hold all of their axes, results go through a buffer; 0: they hold those that lie together in the
          output, which is written in place, and others are walked outside; 2: of a window of one element, vectors run
          along the channels, which are packed ahead, and tiles are transposed before they are written
``group`` elements of k in one step, where there are instructions for several (tuner/schedule/product/atoms.py)
========  =====================================================================================================

A transposed convolution with a stride is several without one (``phases``), with the same choices for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.errors import IllegalKernel
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Workload
from tuner.program.target import Hardware, Target
from tuner.schedule.function import KernelFunction
from tuner.schedule.layout import Layout
from tuner.schedule.loops.estimates import Floats
from tuner.schedule.product import estimate
from tuner.schedule.product.atom import Atom
from tuner.schedule.product.atoms import best_of_vectors
from tuner.schedule.product.axes import (
    BY_BLOCK,
    FEW_ALONG_K,
    IN_COPY,
    IN_IMAGE,
    IN_PLACE,
    MAX_FEW,
    TURNED,
    WIDE,
    atom_axes,
    atom_of,
    canonicalised,
    default_values,
    panel_axes,
    parts_of_k,
    ragged_axes,
    thread_axes,
    tile_axes,
    tiles,
)
from tuner.schedule.product.legal import check
from tuner.schedule.product.match.form import Form
from tuner.schedule.product.match.groups import form_of, forms, forms_of
from tuner.schedule.product.parts import most_partial_bytes, split_axes
from tuner.schedule.product.product import DTYPE
from tuner.schedule.product.rule import by_choice
from tuner.schedule.rule import Extents, NoMatch, Tiles, TirRule
from tuner.schedule.rules.conv.emit import layouts_of, write
from tuner.schedule.rules.conv.moving import moving_cycles
from tuner.schedule.space import Axis, MicroKernel, SearchSpace

ZERO_IF_TURNED = ("kc", "fetch", "rows", "edge", "pack")
"""Axes that have one choice, 0, where tiles are transposed."""


class Conv(TirRule):
    """See the module's text for the axes; ``emit`` for the code."""

    name = "x86_gathered"

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        found = forms(workload)
        if isinstance(found, NoMatch):
            return found
        if not found[0].dots(target.hardware):
            return NoMatch(f"{target.mcpu} has no instruction that multiplies the operands as they are")
        return found[0].roles

    def workspace_bytes(self, task: SearchTask) -> int:
        """Bytes of a right operand that is gathered as a whole, and of sums over parts of k; all else is of a block."""
        found = [form for form in forms_of(task.workload) if not form.is_turned]
        form, sums = found[-1], max(0 if each.phases else most_partial_bytes(task, each.product) for each in found)
        if form.right.is_packed_ahead or not form.left.is_gathered:
            return sums
        largest = task.workload.axis_sizes(task.largest_dims)
        sizes = form.by_role({axis: np.array([size]) for axis, size in largest.items()})
        return sums + int(4 * task.threads * sizes["k"][0] * sizes["n"][0])

    def space(self, task: SearchTask) -> SearchSpace:
        hardware, found = task.known_target.hardware, forms_of(task.workload)
        atoms = _atoms(hardware, found)
        packings, turned = _packings(hardware, atoms, found), {IN_PLACE for form in found if form.is_turned}
        axes = (
            *tile_axes(found[0].steps, atoms, in_place=IN_PLACE in packings),
            Axis("rows", "rows of a block are gathered", _rows(atoms, found)),
            # Code of phases is written once for each: not also for every width of the last panel.
            *ragged_axes(
                any("n" in form.dynamic and not form.phases for form in found),
                are_few=any(form.few(hardware.lanes()) for form in found),
            ),
            Axis("pack", "panels are gathered at each call", tuple(sorted({*packings, *turned}))),
            *thread_axes(task.threads, any(form.outer for form in found)),
            *atom_axes(atoms),
            *panel_axes(any(form.right.is_packed_ahead for form in found)),
            Axis("join", "what m and n hold, and where vectors run", tuple(sorted(form.join for form in found))),
            *_split_axes(task, found),
        )
        # Once: to look a workload up takes longer than all the rest of a check.
        of_join = {form.join: (form, form.product.atoms(hardware)) for form in found}
        return SearchSpace(
            self.name, self.version, axes,
            check=lambda kernel: _check(kernel, *of_join[kernel["join"]], task.threads, hardware),
            canonicalise=lambda values: _canonical(values, *of_join[values["join"]], hardware),
        )  # fmt: skip

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        """A square-ish tile, three quarters of the registers, k in chunks that stay in cache."""
        space, form, hardware = self.space(task), forms_of(task.workload)[0], task.known_target.hardware
        choices, atoms = {axis.name: axis.choices for axis in space.axes}, _atoms(hardware, [form])
        pack = _packings(hardware, atoms, forms_of(task.workload))[-1 if form.left.is_gathered else 0]
        values = default_values(
            task, bool(form.outer), kc=256 if 256 in choices["kc"] else 0, pack=pack, join=form.join,
            rows=0 if pack == 1 else min(1, choices["rows"][-1]), group=best_of_vectors(atoms),
        )  # fmt: skip
        return space.kernel(space.canonicalise(values))

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        """The engine's estimate, and what gathering and scattering add."""

        def of(join: int, some: Sequence[MicroKernel]) -> Floats:
            each = form_of(task.workload, join).each
            moving = sum(moving_cycles(task, form, some, extents) for form in each) / task.rates.clock_hz
            return np.asarray(moving + sum(estimate.latency_s(task, form.product, some, extents) for form in each))

        return by_choice(("join",), kernels, of)

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        """The features of every product, and the cycles of moving elements."""

        def of(join: int, some: Sequence[MicroKernel]) -> Floats:
            form = form_of(task.workload, join)
            base = estimate.features(task, form.product, some, extents)
            moving = np.log2(sum(moving_cycles(task, own, some, extents) for own in form.each) + 1.0)
            return np.concatenate([base, moving[:, :, None]], axis=2)

        return by_choice(("join",), kernels, of).astype(np.float32)

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        return layouts_of(task, kernel)

    def is_bounded(self, kernel: MicroKernel) -> bool:
        # Sums over parts of k are as large as the output.
        return parts_of_k(kernel) == 1

    def tiles(self, task: SearchTask, kernel: MicroKernel) -> Tiles:
        form = form_of(task.workload, kernel["join"])
        rows, columns = (tuple(form.parts[name].axis for name in names) for names in (form.m, form.n))
        return tiles(task, kernel, rows, columns)

    def body(self, task: SearchTask, kernel: MicroKernel, function: KernelFunction) -> None:
        write(task, kernel, self.layouts(task, kernel), function)


def _check(kernel: MicroKernel, form: Form, atoms: Mapping[int, Atom], threads: int, hardware: Hardware) -> None:
    check(kernel, form.product, atoms, threads, hardware, copies=len(form.each))
    values = dict(kernel.values)
    for name, value, text in _forced(values, form, atoms, hardware):
        if values[name] != value:
            raise IllegalKernel(text.format(**values))
    if kernel["pack"] != IN_COPY:
        return
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


def _canonical(values: Mapping[str, int], form: Form, atoms: Mapping[int, Atom], hardware: Hardware) -> dict[str, int]:
    if form.is_turned:
        values = {**values, **dict.fromkeys(ZERO_IF_TURNED, 0)}
    elif values["pack"] == IN_PLACE and _is_packed(form):
        values = {**values, "pack": BY_BLOCK}
    if values["pack"] == IN_COPY:
        is_copied = form.copies_columns(hardware) and values.get("group", 1) == 1
        values = {**values, "near": 0} if is_copied else {**values, "pack": 1}
    result = canonicalised(values, form.product, atoms)
    result |= {name: value for name, value, _ in _forced(result, form, atoms, hardware)}
    return result if form.outer else {**result, "tb": 1}


def _forced(
    values: Mapping[str, int], form: Form, atoms: Mapping[int, Atom], hardware: Hardware
) -> Iterator[tuple[str, int, str]]:  # fmt: skip
    """What form and instruction leave no choice of: the axis, its value, and what is said of another one."""
    atom = atom_of(values, atoms)
    if form.is_turned:
        for name in ZERO_IF_TURNED:
            yield name, 0, f"join={TURNED} writes transposed tiles: needs {name}=0, got {{{name}}}"
        if "split_k" in values:
            yield "split_k", 1, f"join={TURNED} writes transposed tiles: needs split_k=1"
        return
    if not form.right.is_packed_ahead:
        if "panel" in values:
            yield "panel", WIDE, f"panel={{panel}} is for columns that are packed ahead: needs join={TURNED}"
        if values["pack"] == IN_PLACE and _is_packed(form):
            yield "pack", BY_BLOCK, f"pack={IN_PLACE} packs nothing at a call: needs join={TURNED}"
    are_few = form.few(hardware.lanes()) and values["rows"] != IN_IMAGE and atom.depth == 1
    if values["edge"] == FEW_ALONG_K and not are_few:
        text = f"a known number of float32 columns, 1 to {MAX_FEW} of them behind whole vectors, and no copied rows"
        yield "edge", 0, f"edge={FEW_ALONG_K} with join={{join}} rows={{rows}} needs {text}"
    if not form.can_hold_partial:
        yield "kc", 0, f"kc={{kc}}: an output of {form.out_dtype} needs kc=0, or join=1"
    if form.steps is not None and values["kc"] * atom.group >= form.steps:
        yield "kc", 0, "kc={kc} is all of k: needs kc=0"
    if form.left.is_packed_ahead and atom.unit is None:
        yield "rows", 0, "rows={rows}: rows that are packed ahead are read as they lie"
    elif values["rows"] == IN_IMAGE and form.image is None:
        yield "rows", 1, "rows={rows}: with join={join} no rows are windows of one image"
    elif values["rows"] == IN_IMAGE and atom.depth > 1:
        yield "rows", 1, "rows={rows}: a copy of an image has elements, group={group} words"


def _is_packed(form: Form) -> bool:
    """Whether panels are packed, or copied, at each call."""
    return not form.right.is_packed_ahead and not form.right.is_viewed


def _split_axes(task: SearchTask, found: Sequence[Form]) -> tuple[Axis, ...]:
    """Parts of k, which phases do not have."""
    every = [split_axes(task, form.product) for form in found if not form.phases and not form.is_turned]
    return min(every, key=len, default=())


def _atoms(hardware: Hardware, found: Sequence[Form]) -> dict[int, Atom]:
    """The instructions that there are for all forms."""
    every = [form.product.atoms(hardware) for each in found for form in each.each]
    atoms = found[0].product.atoms(hardware)
    return {depth: atom for depth, atom in atoms.items() if all(depth in others for others in every)}


def _rows(atoms: Mapping[int, Atom], found: Sequence[Form]) -> tuple[int, ...]:
    """Choices of ``rows``. A matrix unit has operands that are packed."""
    in_image = (IN_IMAGE,) if any(form.image is not None for form in found) else ()
    left = found[0].left
    if left.is_packed_ahead:
        return (0, 1) if any(atom.unit is not None for atom in atoms.values()) else (0,)
    return (1, *in_image) if left.is_gathered else (0, 1)


def _packings(hardware: Hardware, atoms: Mapping[int, Atom], found: Sequence[Form]) -> tuple[int, ...]:
    """Choices of ``pack``. Panels are gathered once for all rows; at the start where rows are gathered, too."""
    form = found[0]
    if form.right.is_packed_ahead:
        return (0,)
    again = form.left.is_gathered
    if form.right.is_viewed and form.right.lies_along_n and not any(form.joined for form in found):
        # Words of integers are made of neighbours in k, which no vector in place has.
        in_place = (0,) if form.total == DTYPE else ()
        return (*in_place, 2) if again else (*in_place, 1, 2)
    in_copy = (IN_COPY,) if any(form.copies_columns(hardware) for form in found) else ()
    at_once = (2,) if any(atom.unit is not None for atom in atoms.values()) else ()
    return (2,) if again else (1, *in_copy, *at_once)
