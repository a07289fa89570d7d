"""What the contraction rule looks for: ``out[(b,) m, n] = sum(k) left[(b,) m, k] * right``, then elementwise stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from tuner.program.expr import Binary, Read
from tuner.program.notation import Stage
from tuner.program.target import Hardware
from tuner.program.workload import Workload
from tuner.schedule.access import axes_of_read, is_plain
from tuner.schedule.product.atom import Atom
from tuner.schedule.product.atoms import atoms_of
from tuner.schedule.product.match.stages import epilogue_problem
from tuner.schedule.product.operands.matrix import MatrixColumns, MatrixResult, MatrixRows
from tuner.schedule.product.product import UNSUPPORTED, Product
from tuner.schedule.rule import NoMatch, matched

TOTALS = frozenset({"float32", "int32"})


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
    computed: str
    """The tensor whose elements the sums are."""
    depth: int | None
    """The extent of k, None where it is dynamic."""

    @cached_property
    def product(self) -> Product:
        """It as the loops and the theory see it."""
        sums = MatrixResult(self.out, self.out_dtype, self.computed, self.epilogue, self.m, self.n, self.batch)
        return Product(
            axes=self.axis,
            left=MatrixRows(self.left, self.left_dtype),
            right=MatrixColumns(self.right, self.right_dtype, self.right_is_kn, self.right_is_constant),
            result=sums,
            dynamic=self.dynamic,
            depth=self.depth,
            atoms=self._atoms,
            has_batch=self.batch is not None,
            pack_of_dots=None if self.right_is_kn else 3 if self.right_is_constant else 0,
        )

    def _atoms(self, hardware: Hardware) -> Mapping[int, Atom]:
        """Columns that are new at every call are read as they lie, or packed as words."""
        every = atoms_of(self.left_dtype, self.right_dtype, self.total, hardware)
        if self.right_is_constant:
            return every
        kept = {depth: atom for depth, atom in every.items() if not atom.offset and self._has_words(atom.group)}
        return kept if 1 in kept else {}

    def _has_words(self, group: int) -> bool:
        """Whether columns that are new at every call are packed as words of so many steps."""
        return group == 1 or not self.right_is_kn or (self.depth is not None and self.depth % group == 0)

    @property
    def axis(self) -> Mapping[str, str]:
        """The program's axis of each role."""
        axes = {"m": self.m, "n": self.n, "k": self.k}
        return axes if self.batch is None else {"b": self.batch, **axes}

    @property
    def roles(self) -> Mapping[str, str]:
        """The role of each axis of the program."""
        return {axis: role for role, axis in self.axis.items()}


@lru_cache(maxsize=1024)
def match(workload: Workload) -> Contraction | NoMatch:
    """The roles of a workload's tensors and axes, or why it is no such contraction."""
    first, *rest = workload.program.stages
    product = first.body
    if first.reducer != "sum" or not isinstance(product, Binary) or product.operator != "*":
        return NoMatch("the first stage is not a sum of products")
    left, right = product.left, product.right
    if not isinstance(left, Read) or not isinstance(right, Read) or not (is_plain(left) and is_plain(right)):
        return NoMatch("the operands are not two tensors read at plain axes")
    result = _roles(workload, first, left, right)
    if isinstance(result, NoMatch):
        return result
    reason = _storage_problem(workload, result) or epilogue_problem(workload, rest, (result.left, result.right))
    return NoMatch(reason) if reason else result


def _roles(workload: Workload, stage: Stage, left: Read, right: Read) -> Contraction | NoMatch:
    x, y, out = axes_of_read(left), axes_of_read(right), stage.axes
    if len(stage.reduce_axes) != 1 or len(out) not in (2, 3):
        return NoMatch("not one axis is summed over, or the output has neither 2 nor 3 axes")
    (k,), (*batch, m, n) = stage.reduce_axes, out
    if x != (*batch, m, k) or y not in ((*batch, k, n), (*batch, n, k)):
        return NoMatch("the operands are not [m, k] and [k, n] or [n, k], with or without a batch axis in front")
    is_constant = right.tensor in workload.constants
    axes = {"m": m, "n": n, "k": k, **({"b": batch[0]} if batch else {})}
    return Contraction(
        left.tensor, right.tensor, workload.program.outputs[0], batch[0] if batch else None, m, n, k,
        right_is_kn=y[-1] == n, right_is_constant=is_constant, epilogue=workload.program.stages[1:],
        dynamic=frozenset(role for role, axis in axes.items() if workload.sizes[axis].constant is None),
        left_dtype=workload.tensors[left.tensor].dtype, right_dtype=workload.tensors[right.tensor].dtype,
        out_dtype=workload.tensors[workload.program.outputs[0]].dtype,
        total=workload.element_types.reduced_type(stage), computed=stage.tensor, depth=workload.sizes[k].constant,
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


def contraction_of(workload: Workload) -> Contraction:
    """The roles in a workload that the rule takes. Raises ValueError for another."""
    return matched(workload, match(workload))
