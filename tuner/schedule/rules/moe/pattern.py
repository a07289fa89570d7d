"""What the rule looks for: ``out[m, n] = sum(k) left[m, k] * right[index[m], n, k]``, then elementwise stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np

from tuner.program.expr import Axis, Binary, Read
from tuner.program.notation import Stage
from tuner.program.workload import Workload
from tuner.schedule.product.atoms import FMA, atoms_of
from tuner.schedule.product.match.stages import epilogue_problem
from tuner.schedule.product.operands.matrix import MatrixColumns, MatrixResult, MatrixRows
from tuner.schedule.product.product import DTYPE, UNSUPPORTED, Product
from tuner.schedule.rule import Extents, NoMatch, matched


@dataclass(frozen=True)
class Grouped:
    """The tensors and the program's axes in each role. The constant ``right`` holds a matrix for each of ``groups``;
    ``index`` gives each row its group."""

    left: str
    right: str
    index: str
    out: str
    m: str
    n: str
    k: str
    groups: int
    depth: int
    """The extent of k."""
    epilogue: tuple[Stage, ...]
    dynamic: frozenset[str]
    left_dtype: str
    right_dtype: str
    out_dtype: str
    computed: str
    """The tensor whose elements the sums are."""

    @property
    def roles(self) -> Mapping[str, str]:
        """The role of each axis of the program."""
        return {self.m: "m", self.n: "n", self.k: "k"}

    def by_role(self, extents: Extents) -> Extents:
        """Extents by role, as if all groups that there are rows for were of one size: a batch of them."""
        rows = np.asarray(extents[self.m], np.float64)
        groups = np.maximum(np.minimum(rows, self.groups), 1)
        return {"b": groups, "m": rows / groups, "n": extents[self.n], "k": extents[self.k]}

    @cached_property
    def product(self) -> Product:
        """It as the loops and the theory see it: that of one group, or a batch of equal ones."""
        return Product(
            axes={"m": self.m, "n": self.n, "k": self.k},
            left=MatrixRows(self.left, self.left_dtype),
            right=MatrixColumns(self.right, self.right_dtype, lies_along_n=False, is_packed_ahead=True),
            result=MatrixResult(self.out, self.out_dtype, self.computed, self.epilogue, self.m, self.n),
            dynamic=self.dynamic,
            depth=self.depth,
            atoms=partial(atoms_of, self.left_dtype, self.right_dtype, DTYPE),
            sizes=self.by_role,
        )

    def is_of_group(self, workload: Workload, read: Read) -> bool:
        """Whether it reads what a row's group has: ``tensor[index[m], n]``, or ``tensor[index[m]]``."""
        first, *rest = read.indices or (None,)
        dims = tuple(dim.constant for dim in workload.tensors[read.tensor].dims)
        shape = (self.groups, workload.sizes[self.n].constant)
        is_plain = first == Read(self.index, (Axis(self.m),)) and rest in ([], [Axis(self.n)])
        return is_plain and dims == shape[: len(dims)] and read.tensor not in workload.program.stage


@lru_cache(maxsize=1024)
def match(workload: Workload) -> Grouped | NoMatch:
    """The roles of a workload's tensors and axes, or why it is no such product."""
    first, *rest = workload.program.stages
    if first.reducer != "sum" or len(first.axes) != 2 or len(first.reduce_axes) != 1:
        return NoMatch("the first stage is not a sum over one axis that leaves two")
    (m, n), (k,) = first.axes, first.reduce_axes
    product = first.body
    if not isinstance(product, Binary) or product.operator != "*":
        return NoMatch("the first stage is not a sum of products")
    for left, right in ((product.left, product.right), (product.right, product.left)):
        if isinstance(left, Read) and isinstance(right, Read) and left.indices == (Axis(m), Axis(k)):
            index = right.indices[0]
            if isinstance(index, Read) and index.indices == (Axis(m),) and right.indices[1:] == (Axis(n), Axis(k)):
                result = _grouped(workload, first, left.tensor, right.tensor, index.tensor)
                reason = _problem(workload, result, rest)
                return NoMatch(reason) if reason else result
    return NoMatch("the operands are not [m, k] and [index[m], n, k]")


def _grouped(workload: Workload, first: Stage, left: str, right: str, index: str) -> Grouped:
    (m, n), (k,) = first.axes, first.reduce_axes
    out = workload.program.outputs[0]
    sizes = workload.sizes
    return Grouped(
        left, right, index, out, m, n, k, workload.tensors[right].dims[0].constant or 0, sizes[k].constant or 0,
        workload.program.stages[1:], frozenset(role for role, axis in (("m", m), ("n", n), ("k", k))
                                               if sizes[axis].constant is None),
        workload.tensors[left].dtype, workload.tensors[right].dtype, workload.tensors[out].dtype, first.tensor,
    )  # fmt: skip


def _problem(workload: Workload, result: Grouped, rest: list[Stage]) -> str | None:
    """What of it the rule's code does not do."""
    if result.right not in workload.constants or result.left in workload.constants or result.left == result.right:
        return f"{result.right} is not constant, or {result.left} is"
    if any(dim.constant is None for dim in workload.tensors[result.right].dims):
        return f"the dims of {result.right} depend on shape variables"
    read_along = {result.left: (result.m, result.k), result.right: (result.n, result.k), result.index: (result.m,)}
    for name, axes in read_along.items():
        dims = workload.tensors[name].dims[-len(axes) :]
        if dims != tuple(workload.sizes[axis] for axis in axes):
            return f"{name} is larger than what is read of it"
    operands = (result.left, result.right)
    if workload.padding:
        return "a tensor is padded"
    for tensor in workload.tensors.values():
        if tensor.dtype in UNSUPPORTED and tensor.name != result.index:
            return f"{tensor.name} is {tensor.dtype}"
    if result.left_dtype not in FMA.left or result.right_dtype not in FMA.right:
        return f"{result.left_dtype} is not multiplied by {result.right_dtype} in float32"
    return epilogue_problem(workload, rest, operands, is_known=lambda read: result.is_of_group(workload, read))


def grouped_of(workload: Workload) -> Grouped:
    """The roles in a workload that the rule takes. Raises ValueError for another."""
    return matched(workload, match(workload))
