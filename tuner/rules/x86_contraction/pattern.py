"""What the contraction rule looks for: ``out[(b,) m, n] = sum(k) left[(b,) m, k] * right``, then elementwise stages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from tuner.program.dtypes import DTYPES
from tuner.program.expr import Axis, Binary, Extent, Read, reads
from tuner.program.notation import Stage
from tuner.program.target import Hardware
from tuner.program.workload import Workload
from tuner.rules._base import Extents, Refused
from tuner.rules.access import axes_of_read, is_plain, values
from tuner.rules.intrinsics import DotProduct, dot_products
from tuner.rules.space import MicroKernel

DTYPE = "float32"
TOTALS = frozenset({"float32", "int32"})
TOTAL_BYTES = 4
UNSUPPORTED = frozenset(name for name, dtype in DTYPES.items() if dtype.bytes > TOTAL_BYTES or dtype.kind == "b")
"""Dtypes that no tensor of the workload may have: wider than a lane of the accumulators, or bool."""


class Product(Protocol):
    """What the loops and the theory ask of a contraction, whatever its operands are."""

    @property
    def batch(self) -> str | None:
        """Something if there is a batch."""

    @property
    def right_is_kn(self) -> bool:
        """Whether the right operand lies along n."""

    @property
    def right_is_constant(self) -> bool:
        """Whether it is packed ahead of time."""

    @property
    def pack_of_dots(self) -> int | None:
        """The choice of ``pack`` by which vectors run along the axis that is summed over, as both operands do; None
        where they do not."""

    @property
    def epilogue(self) -> tuple[Stage, ...]:
        """The elementwise stages that results go through on their way to the output."""

    @property
    def dynamic(self) -> frozenset[str]:
        """The roles whose extents are symbols."""

    @property
    def left_dtype(self) -> str:
        """Of the left operand in memory."""

    @property
    def right_dtype(self) -> str:
        """Of the right one."""

    def dots(self, hardware: Hardware) -> Mapping[int, DotProduct]:
        """The instructions that there are for it, by their group."""

    def by_role(self, extents: Extents) -> Extents:
        """Extents of the program's axes by their roles here."""


@dataclass(frozen=True)
class Contraction:
    """The tensors of a contraction and the program's axes in each of its roles. ``batch`` is None without one.

    The right operand lies ``[k, n]`` or ``[n, k]``, a batch axis in front. ``epilogue`` are the elementwise stages,
    each of which reads what the one before it wrote.
    """

    left: str
    right: str
    out: str
    batch: str | None
    m: str
    n: str
    k: str
    right_is_kn: bool
    right_is_constant: bool
    epilogue: tuple[Stage, ...]
    dynamic: frozenset[str]
    """The roles whose extents are symbols."""
    left_dtype: str
    right_dtype: str
    out_dtype: str
    total: str
    """The dtype of sums."""
    depth: int | None
    """The extent of k, None where it is dynamic."""

    def dots(self, hardware: Hardware) -> Mapping[int, DotProduct]:
        """The instructions that there are for it, by their group. Operands that are new at every call come as they are:
        one element at a step."""
        every = dot_products(self.left_dtype, self.right_dtype, self.total, hardware)
        return every if self.right_is_constant else {group: dot for group, dot in every.items() if group == 1}

    @property
    def pack_of_dots(self) -> int | None:
        """The choice of ``pack`` by which vectors run along k; None where the right operand does not lie so."""
        if self.right_is_kn:
            return None
        return 3 if self.right_is_constant else 0

    @property
    def axis(self) -> Mapping[str, str]:
        """The program's axis of each role."""
        axes = {"m": self.m, "n": self.n, "k": self.k}
        return axes if self.batch is None else {"b": self.batch, **axes}

    @property
    def roles(self) -> Mapping[str, str]:
        """The role of each axis of the program."""
        return {axis: role for role, axis in self.axis.items()}

    def by_role(self, extents: Extents) -> Extents:
        """Extents of the program's axes by their roles here."""
        return {role: extents[axis] for role, axis in self.axis.items()}


@lru_cache(maxsize=1024)
def match(workload: Workload) -> Contraction | Refused:
    """The roles of a workload's tensors and axes, or why it is no such contraction."""
    first, *rest = workload.program.stages
    product = first.body
    if first.reducer != "sum" or not isinstance(product, Binary) or product.operator != "*":
        return Refused("the first stage is not a sum of products")
    left, right = product.left, product.right
    if not isinstance(left, Read) or not isinstance(right, Read) or not (is_plain(left) and is_plain(right)):
        return Refused("the operands are not two tensors read at plain axes")
    result = _roles(workload, first, left, right)
    if isinstance(result, Refused):
        return result
    reason = _storage_problem(workload, result) or epilogue_problem(workload, rest, (result.left, result.right))
    return Refused(reason) if reason else result


def _roles(workload: Workload, stage: Stage, left: Read, right: Read) -> Contraction | Refused:
    x, y, out = axes_of_read(left), axes_of_read(right), stage.axes
    if len(stage.reduce_axes) != 1 or len(out) not in (2, 3):
        return Refused("not one axis is summed over, or the output has neither 2 nor 3 axes")
    (k,), (*batch, m, n) = stage.reduce_axes, out
    if x != (*batch, m, k) or y not in ((*batch, k, n), (*batch, n, k)):
        return Refused("the operands are not [m, k] and [k, n] or [n, k], with or without a batch axis in front")
    is_constant = right.tensor in workload.constants
    axes = {"m": m, "n": n, "k": k, **({"b": batch[0]} if batch else {})}
    return Contraction(
        left.tensor, right.tensor, workload.program.outputs[0], batch[0] if batch else None, m, n, k,
        right_is_kn=y[-1] == n, right_is_constant=is_constant, epilogue=workload.program.stages[1:],
        dynamic=frozenset(role for role, axis in axes.items() if workload.sizes[axis].constant is None),
        left_dtype=workload.tensors[left.tensor].dtype, right_dtype=workload.tensors[right.tensor].dtype,
        out_dtype=workload.tensors[workload.program.outputs[0]].dtype,
        total=workload.element_types.reduced_type(stage), depth=workload.sizes[k].constant,
    )  # fmt: skip


def _storage_problem(workload: Workload, result: Contraction) -> str | None:
    """What of the operands' storage the rule's code does not do."""
    for tensor in workload.tensors.values():
        if tensor.dtype in UNSUPPORTED:
            return f"{tensor.name} is {tensor.dtype}"
    if result.total not in TOTALS:
        return f"sums are {result.total}, none of {', '.join(sorted(TOTALS))}"
    if result.left == result.right:
        return f"{result.left} is both operands"
    if result.left in workload.constants:
        return f"the left operand {result.left} is constant"
    if result.right_is_constant and result.batch:
        return f"the constant {result.right} has a batch axis"
    if result.right_is_constant and result.right_is_kn:
        return f"the constant {result.right} is not [n, k]"
    for name in (result.left, result.right):
        read = next(read for read in workload.program.reads if read.tensor == name)
        if workload.tensors[name].dims != tuple(workload.sizes[axis] for axis in axes_of_read(read)):
            return f"{name} is larger than what is read of it"
    return None


def epilogue_problem(
    workload: Workload, rest: Sequence[Stage], operands: Collection[str], first: Stage | None = None,
    is_known: Callable[[Read], bool] = lambda read: False,
) -> str | None:  # fmt: skip
    """Why the stages behind ``first`` (the program's first one) are not a chain of elementwise ones that leave its
    ``operands`` alone. Reads that ``is_known`` takes may be any."""
    first = first or workload.program.stages[0]
    before = first.tensor
    for stage in rest:
        if problem := elementwise_problem(workload, stage, first.axes, {before}, operands, is_known):
            return problem
        before = stage.tensor
    return None if workload.program.outputs == (before,) else "an intermediate is an output, too"


def elementwise_problem(
    workload: Workload, stage: Stage, axes: tuple[str, ...], known: Collection[str], operands: Collection[str],
    is_known: Callable[[Read], bool] = lambda read: False,
) -> str | None:  # fmt: skip
    """Why a stage is not elementwise over ``axes``: in the stages ``known``, which have these axes, and in inputs that
    are none of the ``operands``. Reads that ``is_known`` takes may be any."""
    if stage.reducer or stage.axes != axes:
        return f"stage {stage.tensor} is not elementwise over the output"
    if any(isinstance(node, Axis | Extent) for node in values(stage.body)):
        return f"stage {stage.tensor} computes with the values of axes"
    for read in reads(stage.body):
        if read.tensor in known and axes_of_read(read) == axes:
            continue
        if read.tensor not in operands and is_known(read):
            continue
        if read.tensor in workload.program.stage or read.tensor in operands or not is_plain(read):
            return f"stage {stage.tensor} reads {read.tensor} other than element by element"
        dims = tuple(workload.sizes[axis] for axis in axes_of_read(read))
        if axes_of_read(read) != tuple(axis for axis in axes if axis in axes_of_read(read)) or (
            workload.tensors[read.tensor].dims != dims
        ):
            return f"stage {stage.tensor} reads {read.tensor} in another order than the output's"
    return None


def group_of(kernel: MicroKernel) -> int:
    """Elements of k in a step of a kernel."""
    return kernel.get("group")


def panels_of_strip(kernel: MicroKernel) -> int:
    """Panels that a tile of rows goes over before the next tile; 1 where the kernel's rule has no such axis."""
    return kernel.get("nb")


def holds_partial(dtype: str) -> bool:
    """Whether a partial sum can be stored, bit by bit, in an output of that dtype."""
    return DTYPES[dtype].bytes == TOTAL_BYTES


def contraction_of(workload: Workload) -> Contraction:
    """The roles in a workload that the rule takes. Raises ValueError for another."""
    result = match(workload)
    if isinstance(result, Refused):
        raise ValueError(f"{workload}: {result.reason}")
    return result
