"""The rule for two-operand contractions ``out[m, n] = sum_k left[m, k] * right`` on vector units.

The right operand is ``[k, n]`` or ``[n, k]``; all three may have a batch axis ``b`` in front. Axes of a micro-kernel
(``Matmul.space`` lists their choices):

========  =====================================================================================================
``mr``    rows of the register tile
``nv``    vectors in a row of the register tile; ``nr = nv * lanes`` columns, also the width of a panel packed at a call
``mb``    tiles that share a panel of the right operand before the next panel is taken: a block of ``mb * mr`` rows
``nb``    panels of a strip: a tile goes over all of them before the next tile does, its rows staying in the first
          cache and the strip in the second one
``kc``    steps of k that a block goes through before the next ones, so that its operands stay in cache; 0: all
``ku``    steps of k unrolled
``near``  steps of k by which the packed operand is prefetched within its stream; 0: not
``ahead`` the next panel is prefetched while this one is used, a row of it every so many steps of k; 0: not
``fetch`` 1: the output's lines are prefetched before a tile is computed; 0: not
``rows``  1: the rows of a block are packed before they are used; 0: they are read in place
``tail``  1: a ragged rest of rows has exact code for each height; 0: it is padded inside the tile
``edge``  1: a ragged last panel of a dynamic n has code for each number of vectors; 0: it has all ``nv`` of them
``pack``  of an operand that is new at every call, 1: each panel is packed before it is used; 2: all panels are, at
          the start; 0: it is read in place (if it lies [n, k], by vectors along k: ``nv`` are columns then).
          A constant operand is packed ahead of time, or, having few columns, read so in place: 3
``panel`` 2: a constant operand is packed in panels of one vector, whatever the tile: all kernels of a library read the
          same; 1: in panels as wide as the tile, which come from memory as a single stream where each is read once;
          3: in panels of one vector, in blocks, as x86_strassen reads them, too
``tb``    threads along the batch
``tn``    threads along n; ``threads / (tb * tn)`` along m
``group`` elements of k in one step, where there are instructions for several (tuner/schedule/product/atoms.py)
========  =====================================================================================================

Where results may be few for the threads and k long, ``split_k`` is how many parts of k they compute (product/parts.py).

No choice depends on a shape: registers, caches and the size of the code bound them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tuner.errors import IllegalKernel
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Workload
from tuner.program.target import Target
from tuner.schedule.layout import Layout
from tuner.schedule.loops.estimates import is_flushed
from tuner.schedule.product import axes as engine
from tuner.schedule.product.atom import Atom
from tuner.schedule.product.atoms import best_of_vectors
from tuner.schedule.product.axes import AT_ONCE, BY_BLOCK, IN_PLACE
from tuner.schedule.product.blocks import has_blocks
from tuner.schedule.product.legal import check, check_turns
from tuner.schedule.product.match.plain import Matrices, match
from tuner.schedule.product.parts import split_axes
from tuner.schedule.product.product import DTYPE, can_hold_partial
from tuner.schedule.product.rule import ProductRule
from tuner.schedule.rule import NoMatch
from tuner.schedule.space import Axis, MicroKernel, SearchSpace
from tuner.schedule.vector.dtypes import SHORT_FLOATS


class Matmul(ProductRule[Matrices]):
    """See the module's text for the axes."""

    name = "x86_contraction"
    version = 2

    def find(self, workload: Workload) -> Matrices | NoMatch:
        return match(workload)

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        product = match(workload)
        if isinstance(product, NoMatch) or product.atoms(target.hardware):
            return super().roles(workload, target)
        pair = f"{product.left.dtype} by {product.right.dtype}"
        return NoMatch(f"{target.mcpu} has no instruction that multiplies {pair} as the operands lie")

    def space(self, task: SearchTask) -> SearchSpace:
        product, hardware = self.product(task.workload), task.known_target.hardware
        atoms = product.atoms(hardware)
        in_words = partial(_in_words, product=product, atoms=atoms, task=task)
        # What caches hold is no stream, and kernels of any width are to share its panels.
        may_be_wide = is_flushed(task, is_constant=True)
        axes = (
            *engine.tile_axes(product.depth, atoms, in_place=product.right.is_in_rows),
            Axis("rows", "rows are packed at each call", (0, 1)),
            Axis("nb", "panels that a tile goes over before the next one", (1, 2, 4, 8, 16), is_optional=True),
            *engine.ragged_axes("n" in product.dynamic),
            Axis("pack", "panels are packed at each call", _packings(task, product)),
            *engine.thread_axes(task.threads, product.has_batch),
            *engine.panel_axes(product.right.is_packed_ahead, in_blocks=has_blocks(product)),
            *engine.atom_axes(atoms, is_optional=not product.right.is_packed_ahead),
            *split_axes(task, product),
        )

        def checked(kernel: MicroKernel) -> None:
            check(kernel, product, atoms, task.threads, hardware)
            check_turns(kernel, engine.atom_of(kernel, atoms), hardware)
            if dict(kernel.values) != in_words(dict(kernel.values)):
                text = f"kc={kernel['kc']} rows={kernel['rows']} group={kernel.get('group')}: an output of"
                raise IllegalKernel(f"{text} {product.result.dtype} needs kc=0, a ragged last word rows=1")
            if engine.panels_of_strip(kernel) > 1 and not _has_strips(kernel, product):
                text = f"nb={kernel['nb']} pack={kernel['pack']} mb={kernel['mb']}"
                raise IllegalKernel(f"{text}: strips need all panels packed, or read along n, and mb above 1")

        def canonical(values: Mapping[str, int]) -> dict[str, int]:
            values = in_words(engine.canonicalised(values, product, atoms, may_be_wide=may_be_wide))
            return values if _has_strips(values, product) else {**values, "nb": 1}

        return SearchSpace(self.name, self.version, axes, checked, canonical)

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        """A square-ish tile, three quarters of the registers, small blocks: good at every size, best at few."""
        product, hardware = self.product(task.workload), task.known_target.hardware
        atoms = product.atoms(hardware)
        values, along_k = engine.default_values(task, product.has_batch, pack=BY_BLOCK), product.pack_of_dots
        if product.right.is_packed_ahead:
            values |= {"pack": IN_PLACE, "group": best_of_vectors(atoms)}
            if along_k is not None and along_k in _packings(task, product):
                square = 4 if hardware.vector_registers >= 32 else 3
                values |= {"mr": square, "nv": square, "pack": along_k}
        space = self.space(task)
        return space.kernel(space.canonicalise(values))

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        is_as_it_lies = kernel["pack"] == self.product(task.workload).pack_of_dots
        return {} if is_as_it_lies else super().layouts(task, kernel)


def _packings(task: SearchTask, product: Matrices) -> tuple[int, ...]:
    """Choices of ``pack``. Vectors along k waste no lanes on columns that a panel of a vector's width does not have."""
    hardware, right, dots = task.known_target.hardware, product.right, product.pack_of_dots
    choices = (IN_PLACE,) if right.is_packed_ahead else (IN_PLACE, BY_BLOCK, AT_ONCE)
    # Sums across vectors go through the output before an epilogue (dots.py).
    dtype, is_bare = product.result.dtype, not product.result.epilogue
    can_hold = dtype == DTYPE or (dtype in SHORT_FLOATS and is_bare)
    if not can_hold or 1 not in product.atoms(hardware):
        return tuple(choice for choice in choices if choice != dots)
    columns = task.workload.sizes[product.axes["n"]].constant
    is_thin = right.is_packed_ahead and columns is not None and columns <= hardware.lanes()
    return (*choices, dots) if dots is not None and is_thin else choices


def _has_strips(values: Mapping[str, int] | MicroKernel, product: Matrices) -> bool:
    """Whether tiles can go over strips, and that makes a difference: one tile has all panels before it anyway."""
    return values["pack"] not in (BY_BLOCK, product.pack_of_dots) and values["mb"] > 1


def _in_words(
    values: Mapping[str, int], product: Matrices, atoms: Mapping[int, Atom], task: SearchTask
) -> dict[str, int]:  # fmt: skip
    """Rows are packed where the last word of k may be ragged, k is whole where neither the output nor the kernel can
    hold partial sums."""
    canonical, depth = dict(values), product.depth
    if values["pack"] == product.pack_of_dots:
        if "group" in canonical and not engine.atom_of(canonical, atoms).is_along_k:
            canonical["group"] = 1
        return {**canonical, "kc": 0}
    atom = engine.atom_of(canonical, atoms)
    group, columns = atom.group, task.workload.sizes[product.axes["n"]].constant
    if group > 1 and (depth is None or depth % group):
        canonical["rows"] = 1
    is_whole = depth is not None and canonical["kc"] * group >= depth
    is_kept = engine.keeps_totals(canonical, atom, columns, task.known_target.hardware)
    if is_whole or not (is_kept or can_hold_partial(product.result.dtype)):
        canonical["kc"] = 0
    return canonical
