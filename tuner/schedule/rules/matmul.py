"""The rule for two-operand contractions ``out[m, n] = sum_k left[m, k] * right`` on vector units.

The right operand is ``[k, n]`` or ``[n, k]``; all three may have a batch axis ``b`` in front. Axes of a micro-kernel
(``X86Contraction.space`` lists their choices):

========  =====================================================================================================
``mr``    rows of the register tile
``nv``    vectors in a row of the register tile; ``nr = nv * lanes`` columns, also the width of a packed panel
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
``tb``    threads along the batch
``tn``    threads along n; ``threads / (tb * tn)`` along m
``group`` elements of k in one step, where there are instructions for several (tuner/schedule/product/atoms.py)
========  =====================================================================================================

No choice depends on a shape: registers, caches and the size of the code bound them.
"""

from __future__ import annotations

from collections.abc import Mapping

from tuner.errors import IllegalKernel
from tuner.program.target import Target
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.layout import Layout
from tuner.schedule.product.atom import Atom
from tuner.schedule.product.atoms import best_of_vectors
from tuner.schedule.product.axes import (  # fmt: skip
    ALONG_K,
    MAX_BLOCK,
    atom_axes,
    atom_of,
    canonicalised,
    check,
    check_turns,
    default_values,
    panels_of_strip,
    ragged_axes,
    thread_axes,
    tile_axes,
)  # fmt: skip
from tuner.schedule.product.match.plain import Contraction, contraction_of, match  # fmt: skip
from tuner.schedule.product.product import DTYPE, Product, can_hold_partial  # fmt: skip
from tuner.schedule.product.rule import ProductRule
from tuner.schedule.rule import NoMatch
from tuner.schedule.space import Axis, MicroKernel, SearchSpace


class X86Contraction(ProductRule):
    """See the module's text for the axes; ``estimate`` for the theory, ``emit`` for the code."""

    name = "x86_contraction"
    version = 2

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        contraction = match(workload)
        if isinstance(contraction, NoMatch):
            return contraction
        if not contraction.product.atoms(target.hardware):
            pair = f"{contraction.left_dtype} by {contraction.right_dtype}"
            return NoMatch(f"{target.mcpu} has no instruction that multiplies {pair} as the operands lie")
        return contraction.roles

    def product(self, workload: Workload) -> Product:
        return contraction_of(workload).product

    def space(self, task: SearchTask) -> SearchSpace:
        hardware, workload = task.known_target.hardware, task.workload
        contraction = contraction_of(workload)
        atoms = contraction.product.atoms(hardware)
        axes = (
            *tile_axes(workload.sizes[contraction.k].constant, atoms),
            Axis("rows", "rows are packed at each call", (0, 1)),
            Axis("nb", "panels that a tile goes over before the next one", (1, 2, 4, 8, 16), is_optional=True),
            *ragged_axes("n" in contraction.dynamic),
            Axis("pack", "panels are packed at each call", _packings(task, contraction)),
            *thread_axes(task.threads, contraction.batch is not None),
            *atom_axes(atoms, is_optional=not contraction.right_is_constant),
        )

        def checked(kernel: MicroKernel) -> None:
            check(kernel, contraction.product, atoms, task.threads, hardware)
            check_turns(kernel, hardware)
            _check_words(kernel, contraction, atoms)
            if panels_of_strip(kernel) > 1 and not _has_strips(kernel, contraction):
                text = f"nb={kernel['nb']} pack={kernel['pack']} mb={kernel['mb']}"
                raise IllegalKernel(f"{text}: strips need all panels packed, or read along n, and mb above 1")

        return SearchSpace(
            self.name,
            self.version,
            axes,
            check=checked,
            canonicalise=lambda values: _canonical(values, contraction, atoms),
        )

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        """A square-ish tile, three quarters of the registers, small blocks: good at every size, best at few."""
        contraction, hardware = contraction_of(task.workload), task.known_target.hardware
        pack = 0 if contraction.right_is_constant else 1
        values = default_values(task, bool(contraction.batch), mb=MAX_BLOCK if pack else 8, pack=pack)
        atoms = contraction.product.atoms(hardware)
        if contraction.right_is_constant:
            values |= {axis.name: best_of_vectors(atoms) for axis in atom_axes(atoms)}
        along_k = contraction.product.pack_of_dots
        if contraction.right_is_constant and along_k in _packings(task, contraction):
            square = 4 if hardware.vector_registers >= 32 else 3
            values |= {**ALONG_K, "mr": square, "nv": square, "pack": along_k}
        return self.space(task).kernel(_canonical_words(values, contraction, atoms))

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        contraction = contraction_of(task.workload)
        if not contraction.right_is_constant or kernel["pack"] == contraction.product.pack_of_dots:
            return {}
        return {contraction.right: self.panels(task, kernel)}


def _packings(task: SearchTask, contraction: Contraction) -> tuple[int, ...]:
    """Choices of ``pack``. Vectors along k waste no lanes on columns that a panel of a vector's width does not have."""
    hardware, dots = task.known_target.hardware, contraction.product.pack_of_dots
    choices = (0,) if contraction.right_is_constant else (0, 1, 2)
    # Sums across vectors go through the output (dots.py).
    if contraction.out_dtype != DTYPE or 1 not in contraction.product.atoms(hardware):
        return tuple(choice for choice in choices if choice != dots)
    columns = task.workload.sizes[contraction.n].constant
    is_thin = contraction.right_is_constant and columns is not None and columns <= hardware.lanes()
    return (*choices, dots) if dots is not None and is_thin else choices


def _has_strips(values: Mapping[str, int] | MicroKernel, contraction: Contraction) -> bool:
    """Whether tiles can go over strips, and that makes a difference: one tile has all panels before it anyway."""
    return values["pack"] not in (1, contraction.product.pack_of_dots) and values["mb"] > 1


def _canonical(values: Mapping[str, int], contraction: Contraction, atoms: Mapping[int, Atom]) -> dict[str, int]:
    canonical = _canonical_words(canonicalised(values, contraction.product, atoms), contraction, atoms)
    return canonical if _has_strips(canonical, contraction) else canonical | {"nb": 1}


def _canonical_words(values: Mapping[str, int], contraction: Contraction, atoms: Mapping[int, Atom]) -> dict[str, int]:
    """The values with rows packed where the last word of k may be ragged, and k unsplit where the output cannot hold
    partial sums."""
    canonical = dict(values)
    if "group" in canonical and values["pack"] == contraction.product.pack_of_dots:
        canonical["group"] = 1
    group = atom_of(canonical, atoms).group
    if group > 1 and (contraction.depth is None or contraction.depth % group):
        canonical["rows"] = 1
    is_whole = contraction.depth is not None and canonical["kc"] * group >= contraction.depth
    if is_whole or not can_hold_partial(contraction.out_dtype):
        canonical["kc"] = 0
    return canonical


def _check_words(kernel: MicroKernel, contraction: Contraction, atoms: Mapping[int, Atom]) -> None:
    if dict(kernel.values) != _canonical_words(dict(kernel.values), contraction, atoms):
        text = f"kc={kernel['kc']} rows={kernel['rows']} group={kernel.get('group')}"
        raise IllegalKernel(f"{text}: an output of {contraction.out_dtype} needs kc=0, a ragged last word rows=1")
