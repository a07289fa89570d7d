"""The rule for products with weights that are computed: ``out[m, n] = sum(k) left[m, k] * weight``.

Elementwise stages may follow. ``weight`` is any elementwise expression of n and k over tensors that are read at
``[n, k]``, ``[n, k // g]``, ``[k // g, n]`` or ``[n]``; it may stand in stages of its own. One of them may hold two
numbers of four bits in a byte (``code_in``), or as many as fit in an element, in any order (places.py), and so may zero
points. Constants stay as they are in panels, and become float32 on their way into
the register tile (decoded.py). A micro-kernel has the axes of every product; ``near`` and ``ahead`` are 0, ``pack`` is

1: a panel is unpacked to memory before the tiles of a block use it, 0: by every tile, in registers, as it is needed.

One axis more is of this rule alone, ``late``,

1: what neighbouring steps of k share, as the scale of a group, is multiplied by the sums over them, 0: by each weight.

Rows of bfloat16, or of bytes, are multiplied by small integers in words of both (``group``): what is shared is
multiplied late then, and panels are unpacked first, but for words that are looked up. Sums of integers have words
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from tuner.errors import IllegalKernel
from tuner.program.job.task import SearchTask
from tuner.program.language.dtypes import FLOATS
from tuner.program.language.expr import (
    Axis,
    Binary,
    Cast,
    Const,
    Expr,
    Extent,
    Read,
    axes_of,
    reads,
    rebuild,
    walk,
)
from tuner.program.language.inline import MAX_NODES, node_count, substituted
from tuner.program.language.notation import Stage
from tuner.program.language.workload import Workload
from tuner.program.target import Target
from tuner.schedule.access import values as values_of
from tuner.schedule.layout import Layout, Numbers, PackLayout
from tuner.schedule.product.atom import Atom
from tuner.schedule.product.atoms import BYTES, FMA, best_of_vectors
from tuner.schedule.product.axes import (
    BY_BLOCK,
    atom_axes,
    atom_of,
    canonicalised,
    default_values,
    packed_vectors,
    panel_axes,
    ragged_axes,
    thread_axes,
    tile_axes,
)
from tuner.schedule.product.context import EmitContext
from tuner.schedule.product.legal import check
from tuner.schedule.product.match.factors import factors_of, multiplied
from tuner.schedule.product.match.plain import MatrixProduct, matrix_product, need_chain, need_dtypes, need_whole
from tuner.schedule.product.parts import split_axes
from tuner.schedule.product.product import DTYPE, can_hold_partial
from tuner.schedule.product.rule import ProductRule
from tuner.schedule.rule import Mismatch, NoMatch, need, pattern
from tuner.schedule.rules.quantized.codes import code_in, code_of
from tuner.schedule.rules.quantized.decoded import Decoded, Grouped
from tuner.schedule.rules.quantized.four_bits import CODE, elements_of, in_words, numbers_of
from tuner.schedule.rules.quantized.places import Placed, placed_in
from tuner.schedule.rules.quantized.words import instructions
from tuner.schedule.space import DEFAULT_CHOICE, MicroKernel, SearchSpace
from tuner.schedule.space import Axis as KernelAxis

MIN_GROUP = 16
"""Steps of k whose sums are worth being multiplied by what they share."""


class Quantized(ProductRule[MatrixProduct[Decoded]]):
    """See the module's text for the axes; decoded.py for the code and the theory of the weight."""

    name = "x86_quantized"
    version = 2

    def find(self, workload: Workload) -> MatrixProduct[Decoded] | NoMatch:
        return match(workload)

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        product = match(workload)
        if isinstance(product, NoMatch) or product.atoms(target.hardware):
            return super().roles(workload, target)
        return NoMatch(f"{target.mcpu} has no instruction that multiplies {product.left.dtype} by such a weight")

    def space(self, task: SearchTask) -> SearchSpace:
        hardware, product = task.known_target.hardware, self.product(task.workload)
        atoms = product.atoms(hardware)
        tile = tile_axes(product.depth if can_hold_partial(product.result.dtype) else 0, atoms)
        axes = (
            *(KernelAxis(axis.name, axis.doc, (0,)) if axis.name in ("near", "ahead") else axis for axis in tile),
            KernelAxis("rows", "rows are packed at each call", (0, 1)),
            *ragged_axes(False),
            KernelAxis("pack", "panels are unpacked before they are used", (0, 1)),
            *thread_axes(task.threads, False),
            *panel_axes(is_packed_ahead=True),
            *split_axes(task, product),
            KernelAxis("late", "shared factors are multiplied by sums", (0, 1) if product.right.grouped else (0,)),
            *atom_axes(atoms, is_optional=DEFAULT_CHOICE in atoms),
        )
        names = {axis.name for axis in axes}

        def forced(atom: Atom) -> dict[str, int]:
            values = {"late": int(product.right.grouped is not None), "kc": 0}
            is_free = atom.unit is None and product.right.looks_up(hardware, atom)
            values |= {} if is_free else {"pack": BY_BLOCK}
            # What takes an offset from sums is packed with all of k.
            return values | ({"split_k": 1} if atom.offset and "split_k" in names else {})

        def checked(kernel: MicroKernel) -> None:
            check(kernel, product, atoms, task.threads, hardware)
            atom = atom_of(kernel, atoms)
            if atom.group > 1:
                for name, value in forced(atom).items():
                    if kernel.get(name) != value:
                        raise IllegalKernel(f"group={kernel['group']} needs {name}={value}, got {kernel[name]}")
            elif kernel["late"] and (kernel["pack"] or kernel["kc"]):
                raise IllegalKernel(f"late=1 needs pack=0 kc=0, got pack={kernel['pack']} kc={kernel['kc']}")

        def canonical(values: Mapping[str, int]) -> dict[str, int]:
            if (atom := atom_of(values, atoms)).group > 1:
                is_looked_up = product.right.looks_up(hardware, atom)
                return canonicalised({**values, **forced(atom)}, product, atoms, may_be_wide=is_looked_up)
            # Weights that are unpacked are used as they are; beside ``late``, k is in one chunk.
            late = 0 if values["pack"] else values["late"]
            return canonicalised({**values, "late": late, "kc": 0 if late else values["kc"]}, product, atoms)

        return SearchSpace(self.name, self.version, axes, checked, canonical)

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        """A square-ish tile, three quarters of the registers, with half of what a word holds unrolled."""
        values, space = default_values(task, False, ku=4, late=0), self.space(task)
        atoms = self.product(task.workload).atoms(task.known_target.hardware)
        if DEFAULT_CHOICE not in atoms:
            values = space.canonicalise({**values, "ku": 1, "group": best_of_vectors(atoms)})
        return space.kernel(values)

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        product, hardware = self.product(task.workload), task.known_target.hardware
        right, width = product.right, packed_vectors(kernel) * hardware.lanes()
        groups, placed = dict.fromkeys(right.constants, 1), dict(right.numbers)
        if (code := right.code) is not None:
            tensor = task.workload.tensors[code.tensor]
            # Eight steps of k of a column stand together.
            groups[code.tensor] = elements_of(tensor.dtype)
            if right.looks_up(hardware, atom_of(kernel, product.atoms(hardware))):
                rows = int(tensor.dims[0].constant or 0)
                numbers = placed.get(code.tensor) or numbers_of(code, tensor.dtype, rows, right.depth)
                placed[code.tensor] = in_words(numbers)
        return {
            name: PackLayout(width, group, numbers=(placed[name],) if name in placed else ())
            for name, group in groups.items()
        }

    def write(self, context: EmitContext) -> None:
        kernel, right = context.kernel, self.product(context.task.workload).right
        right = replace(right, is_packed_ahead=not kernel["pack"], grouped=right.grouped if kernel["late"] else None)
        super().write(replace(context, right=right))


# -- the pattern ------------------------------------------------------------------------------------------------------
@pattern
def match(workload: Workload) -> MatrixProduct[Decoded]:
    """The product that a workload is."""
    sums, rest = _sums(workload)
    need(len(sums.axes) == 2 and len(sums.reduce_axes) == 1, "the sum is not over one axis, leaving two")
    (m, n), (k,) = sums.axes, sums.reduce_axes
    factors = factors_of(sums.body)
    rows = [factor for factor in factors if m in axes_of(factor)]
    columns = [factor for factor in factors if m not in axes_of(factor)]
    left = rows[0] if len(rows) == 1 else None
    if not isinstance(left, Read) or left.indices != (Axis(m), Axis(k)):
        raise Mismatch("there is not one factor [m, k] beside those of the weight")
    need(bool(columns), "there is no weight")
    need(not isinstance(multiplied(columns), Read), "the weight is read as it is, and not computed")
    total, known = workload.element_types.type_of(sums.body), workload.tensors[left.tensor].dtype
    is_known = total == DTYPE or (total == "int32" and known in BYTES)
    need(is_known, f"sums are {total}, neither {DTYPE} nor int32 over bytes")
    right = _decoded(workload, multiplied(columns), n, k)
    _need_storage(workload, left.tensor, right, (m, n, k))
    need_chain(workload, sums, rest, (left.tensor, *right.constants))
    atoms = partial(instructions, workload, left.tensor, right, workload.sizes[k].constant or 0, total)
    return matrix_product(workload, sums, left.tensor, right, rest, atoms)


def _sums(workload: Workload) -> tuple[Stage, list[Stage]]:
    """The sum with the stages before it put into it, and the stages behind it."""
    bodies: dict[str, Stage] = {}
    for number, stage in enumerate(workload.program.stages):
        whole = replace(stage, body=rebuild(stage.body, lambda node: substituted(node, bodies, workload)))
        need(node_count(whole.body) <= MAX_NODES, f"stage {stage.tensor} grows too long with those before it in it")
        if stage.reducer:
            need(stage.reducer == "sum", "the first reduction is no sum")
            rest = list(workload.program.stages[number + 1 :])
            again = [read.tensor for later in rest for read in reads(later.body) if read.tensor in bodies]
            need(not again and not set(bodies) & set(workload.program.outputs), "the weight is used besides")
            return whole, rest
        bodies[stage.tensor] = whole
    raise Mismatch("there is no sum")


def _decoded(workload: Workload, weight: Expr, n: str, k: str) -> Decoded:
    tensors, depth = workload.tensors, workload.sizes[k].constant
    bits, code = code_in(workload, weight, n, k) or (None, None)
    numbers = dict[str, Numbers]()
    for placed in list(placed_in(workload, weight, n, k)):
        if code is not None and code.tensor == placed.tensor:
            continue
        need(placed.tensor not in numbers, "a tensor of the weight is read in two ways")
        numbers[placed.tensor] = placed.numbers
        if placed.steps == 1:
            need(code is None, "two constants hold a number of four bits for each weight")
            bits, code = code_of(workload, weight, placed)
        else:
            # As it is packed.
            weight = _with_read(workload, weight, placed, n, k)
    packed, plain = dict[Read, int](), dict[Read, int]()
    for node in values_of(_put(weight, bits)):
        if node == CODE:
            continue
        need(not isinstance(node, Axis | Extent), "the weight is computed with the values of axes")
        if isinstance(node, Read):
            steps = [_step(index) for index in node.indices]
            groups, names = dict(steps), [axis for axis, _ in steps]
            need(groups.get(n, 1) == 1, f"{node.tensor} is shared by columns")
            is_packed = names == [n, k] and node.tensor in workload.constants
            is_known = is_packed or names in ([n], [k, n], [])
            need(is_known, f"{node.tensor} is read neither along n, nor a constant along k")
            (packed if is_packed else plain)[node] = groups.get(k, 1)
    constants = [read.tensor for read in packed] + ([code.tensor] if code else [])
    is_read_once = len(set(constants)) == len(constants) and not {read.tensor for read in plain} & set(constants)
    need(is_read_once, "a tensor of the weight is read in two ways")
    need(code is None or code.tensor in workload.constants, "the weight is not constant")
    need(code is not None or 1 in packed.values(), "no constant of the weight is read at [n, k]")
    if depth is None or workload.sizes[n].constant is None:
        raise Mismatch("the sizes of the weight are dynamic")
    dtype = "int4" if code else max(tensors[read.tensor].dtype for read, group in packed.items() if group == 1)
    grouped = _grouped(workload, weight, bits, k, depth)
    reads_of = tuple(packed.items()), tuple(plain.items())
    return Decoded(_put(weight, bits), grouped, code, *reads_of, dtype, depth, numbers=tuple(numbers.items()))


def _with_read(workload: Workload, weight: Expr, placed: Placed, n: str, k: str) -> Expr:
    """A weight that reads a number that neighbouring steps share as an element of its constant, computed as before."""
    read = Read(placed.tensor, (Axis(n), Binary("//", Axis(k), Const(placed.steps))))
    number = Cast(read, workload.element_types.type_of(placed.node))
    return rebuild(weight, lambda node: number if node == placed.node else node)


def _put(weight: Expr, bits: Expr | None) -> Expr:
    """A part of the weight with CODE in the place of ``bits``."""
    return rebuild(weight, lambda node: CODE if node == bits else node)


def _step(index: Expr) -> tuple[str, int]:
    """The axis of an index ``axis`` or ``axis // group``, and the group."""
    match index:
        case Axis(name=name):
            return name, 1
        case Binary(operator="//", left=Axis(name=name), right=Const(value=int() as group)):
            return name, group
        case _:
            raise Mismatch("an index of the weight is neither an axis nor a part of one")


def _grouped(workload: Workload, weight: Expr, bits: Expr | None, k: str, depth: int) -> Grouped | None:
    """The weight without the factors that many steps share."""
    factors = [(factor, _shared_steps(factor, bits, k, depth)) for factor in factors_of(weight)]
    each = [factor for factor, steps in factors if steps == 1]
    shared = [(factor, steps) for factor, steps in factors if steps > 1]
    # Only floats: products of integers may wrap, and are other numbers in another order.
    types = [workload.element_types.type_of(factor) for factor, _ in shared]
    if len(each) != 1 or not shared or any(of not in FLOATS for of in types):
        return None
    least = min(steps for _, steps in shared)
    if least < MIN_GROUP or any(steps % least and steps != depth for _, steps in shared):
        return None
    return Grouped(_put(each[0], bits), multiplied([factor for factor, _ in shared]), least)


def _shared_steps(factor: Expr, bits: Expr | None, k: str, depth: int) -> int:
    """How many neighbouring steps of k a factor is the same for."""
    if bits is not None and bits in walk(factor):
        return 1
    groups = {group for read in reads(factor) for axis, group in map(_step, read.indices) if axis == k}
    return min(*groups, depth) if len(groups) == 1 else 1 if groups else depth


def _need_storage(workload: Workload, left: str, right: Decoded, axes: tuple[str, str, str]) -> None:
    m, n, k = axes
    need(not workload.padding, "a tensor is padded")
    need_dtypes(workload.operands)
    dtype = workload.tensors[left].dtype
    is_known = dtype in FMA.left | BYTES and left not in workload.constants
    need(is_known, f"{left} is {dtype}, or constant")
    need_whole(workload, {left: (m, k)})
    for name in set(right.constants) - dict(right.numbers).keys():
        first, *rest = workload.tensors[name].dims
        is_whole = first == workload.sizes[n] and all(dim.constant is not None for dim in rest)
        need(is_whole, f"{name} is larger than what is read of it, or dynamic")
