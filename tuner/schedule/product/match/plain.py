"""Products of matrices as they lie: ``out[(b,) m, n] = sum(k) left[(b,) m, k] * right``, then elementwise stages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

from tuner.program.language.expr import Axis, Binary, Extent, Read, reads
from tuner.program.language.notation import Stage
from tuner.program.language.workload import Tensor, Workload
from tuner.program.target import Hardware
from tuner.schedule.access import axes_of_read, is_plain, values
from tuner.schedule.product.atom import Atom
from tuner.schedule.product.atoms import FMA, atoms_of
from tuner.schedule.product.operands.matrix import MatrixColumns, MatrixResult, MatrixRows
from tuner.schedule.product.product import DTYPE, UNSUPPORTED, Product, Right
from tuner.schedule.rule import Mismatch, need, pattern

Columns = TypeVar("Columns", bound=Right)
TOTALS = frozenset({"float32", "int32"})


@dataclass(frozen=True, kw_only=True, eq=False)
class MatrixProduct(Product, Generic[Columns]):
    """A product of matrices, or of a batch of them, whose rows and results lie as they are."""

    left: MatrixRows
    right: Columns
    result: MatrixResult


Matrices = MatrixProduct[MatrixColumns]
"""The right operand lies ``[k, n]`` or ``[n, k]``, too."""


def matrix_product(
    workload: Workload, sums: Stage, left: str, right: Columns, epilogue: Sequence[Stage] = (),
    atoms: Callable[[Hardware], Mapping[int, Atom]] | None = None,
) -> MatrixProduct[Columns]:  # fmt: skip
    """The product of two operands that ``sums`` adds up, and the stages behind it, the last of which writes results.
    ``atoms``: by default all instructions that multiply elements of these dtypes."""
    (*batch, m, n), (k,) = sums.axes, sums.reduce_axes
    axes = {**({"b": batch[0]} if batch else {}), "m": m, "n": n, "k": k}
    dtype, stages = workload.tensors[left].dtype, tuple(epilogue)
    out = workload.tensors[(sums, *stages)[-1].tensor]
    return MatrixProduct(
        axes=axes,
        left=MatrixRows(left, dtype),
        right=right,
        result=MatrixResult(out.name, m, n, axes.get("b"), dtype=out.dtype, computed=sums.tensor, epilogue=stages),
        dynamic=frozenset(role for role, axis in axes.items() if workload.sizes[axis].constant is None),
        depth=workload.sizes[k].constant,
        atoms=atoms or partial(atoms_of, dtype, right.dtype, workload.element_types.reduced_type(sums)),
        has_batch=bool(batch),
    )


def matrix_columns(workload: Workload, read: Read, n: str) -> MatrixColumns:
    """The operand of a read at ``n`` and k."""
    tensor = workload.tensors[read.tensor]
    return MatrixColumns(tensor.name, tensor.dtype, axes_of_read(read)[-1] == n, tensor.constant)


# -- what the contraction rule takes ----------------------------------------------------------------------------------
@pattern
def match(workload: Workload) -> Matrices:
    """The product that a workload is."""
    first, *rest = workload.program.stages
    body = first.body
    if first.reducer != "sum" or not isinstance(body, Binary) or body.operator != "*":
        raise Mismatch("the first stage is not a sum of products")
    left, right = body.left, body.right
    if not isinstance(left, Read) or not isinstance(right, Read) or not (is_plain(left) and is_plain(right)):
        raise Mismatch("the operands are not two tensors read at plain axes")
    is_matrix = len(first.reduce_axes) == 1 and len(first.axes) in (2, 3)
    need(is_matrix, "not one axis is summed over, or the output has neither 2 nor 3 axes")
    (k,), (*batch, m, n) = first.reduce_axes, first.axes
    x, y = axes_of_read(left), axes_of_read(right)
    is_matrix = x == (*batch, m, k) and y in ((*batch, k, n), (*batch, n, k))
    need(is_matrix, "the operands are not [m, k] and [k, n] or [n, k], with or without a batch axis in front")
    _need_storage(workload, first, left, right)
    need_chain(workload, first, rest, (left.tensor, right.tensor))
    product = matrix_product(workload, first, left.tensor, matrix_columns(workload, right, n), rest)
    along_k = None if product.right.lies_along_n else 3 if product.right.is_packed_ahead else 0
    return replace(product, atoms=partial(_instructions, product), pack_of_dots=along_k)


def _need_storage(workload: Workload, sums: Stage, left: Read, right: Read) -> None:
    need_dtypes(workload.tensors.values())
    x, y, total = left.tensor, right.tensor, workload.element_types.reduced_type(sums)
    need(total in TOTALS, f"sums are {total}, none of {', '.join(sorted(TOTALS))}")
    need(x != y, f"{x} is both operands")
    need(x not in workload.constants, f"the left operand {x} is constant")
    if y in workload.constants:
        need(len(sums.axes) == 2, f"the constant {y} has a batch axis")
        need(axes_of_read(right)[-1] in sums.reduce_axes, f"the constant {y} is not [n, k]")
    need_whole(workload, {x: axes_of_read(left), y: axes_of_read(right)})


def _instructions(product: Matrices, hardware: Hardware) -> Mapping[int, Atom]:
    """Columns that are new at every call are read as they lie, or packed as words of several steps of k."""
    every, right, depth = product.atoms(hardware), product.right, product.depth
    if right.is_packed_ahead:
        return every

    def has_words(group: int) -> bool:
        return group == 1 or not right.lies_along_n or (depth is not None and depth % group == 0)

    kept = {steps: atom for steps, atom in every.items() if not atom.offset and has_words(atom.group)}
    return kept if 1 in kept else {}


# -- what patterns of such products have in common --------------------------------------------------------------------
def operands_of(sums: Stage, name: str) -> Iterator[tuple[Read, Read]]:
    """The two operands of a sum over one axis that leaves two, either of them first."""
    is_matrix = sums.reducer == "sum" and len(sums.axes) == 2 and len(sums.reduce_axes) == 1
    need(is_matrix, f"{name} is not a sum over one axis that leaves two")
    body = sums.body
    if not isinstance(body, Binary) or body.operator != "*":
        raise Mismatch(f"{name} is not a sum of products")
    for left, right in ((body.left, body.right), (body.right, body.left)):
        if isinstance(left, Read) and isinstance(right, Read):
            yield left, right


def need_dtypes(tensors: Iterable[Tensor]) -> None:
    """Raises Mismatch for a tensor of a dtype that is in no product."""
    for tensor in tensors:
        need(tensor.dtype not in UNSUPPORTED, f"{tensor.name} is {tensor.dtype}")


def need_fma(product: Product) -> None:
    """Raises Mismatch for operands that are not multiplied in float32."""
    left, right = product.left.dtype, product.right.dtype
    need(left in FMA.left and right in FMA.right, f"{left} is not multiplied by {right} in {DTYPE}")


def need_whole(workload: Workload, axes: Mapping[str, Sequence[str]]) -> None:
    """Raises Mismatch for a tensor whose last dims are not the extents of the axes that it is read at."""
    for name, own in axes.items():
        need(_is_whole(workload, name, own), f"{name} is larger than what is read of it")


def _is_whole(workload: Workload, name: str, axes: Sequence[str]) -> bool:
    return workload.tensors[name].dims[-len(axes) :] == tuple(workload.sizes[axis] for axis in axes)


def need_chain(
    workload: Workload, first: Stage, rest: Sequence[Stage], operands: Collection[str],
    is_known: Callable[[Read], bool] = lambda read: False, has_axes: bool = False,
) -> None:  # fmt: skip
    """Raises Mismatch if the stages behind ``first`` are not a chain of elementwise ones that leave its ``operands``
    alone. Reads that ``is_known`` takes may be any. ``has_axes``: stages may compute with the values of axes."""
    before = first.tensor
    for stage in rest:
        need_elementwise(workload, stage, first.axes, {before}, operands, is_known, has_axes)
        before = stage.tensor
    need(workload.program.outputs == (before,), "an intermediate is an output, too")


def need_elementwise(
    workload: Workload, stage: Stage, axes: tuple[str, ...], known: Collection[str], operands: Collection[str],
    is_known: Callable[[Read], bool] = lambda read: False, has_axes: bool = False,
) -> None:  # fmt: skip
    """Raises Mismatch if a stage is not elementwise over ``axes``: in the stages ``known``, which have these axes, and
    in inputs that are none of the ``operands``."""
    need(not stage.reducer and stage.axes == axes, f"stage {stage.tensor} is not elementwise over the output")
    is_free = has_axes or not any(isinstance(node, Axis | Extent) for node in values(stage.body))
    need(is_free, f"stage {stage.tensor} computes with the values of axes")
    for read in reads(stage.body):
        own, what = axes_of_read(read), f"stage {stage.tensor} reads {read.tensor}"
        if (read.tensor in known and own == axes) or (read.tensor not in operands and is_known(read)):
            continue
        is_input = read.tensor not in workload.program.stage and read.tensor not in operands
        need(is_input and is_plain(read), f"{what} other than element by element")
        is_in_order = own == tuple(axis for axis in axes if axis in own) and _is_whole(workload, read.tensor, own)
        need(is_in_order, f"{what} in another order than the output's")
