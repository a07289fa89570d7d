"""An attention as a chain of stages: its tensors, the axes of each role, and which columns a row sees."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tuner.program.language.dims import DimExpr
from tuner.program.language.expr import COMPARISONS, Axis, Binary, Call, Const, Expr, Neg, Read, axes_of, reads
from tuner.program.language.indices import index_dim
from tuner.program.language.notation import Stage
from tuner.program.language.workload import Workload
from tuner.schedule.access import lies_along, stride
from tuner.schedule.product.atoms import FLOATS
from tuner.schedule.rule import need

DTYPE = "float32"
COMPUTED = Read("attention.computed", ())
"""What ``score`` reads in the place of the products, and ``out`` in that of mixed / z."""
HIDDEN = (Neg(Const(math.inf)), Const(-math.inf))
"""The score of what is hidden, as it may be written."""


@dataclass(frozen=True)
class Bound:
    """j is visible up to ``limit``, or from there on; itself included. It does not fall as i grows."""

    is_upper: bool
    limit: DimExpr


@dataclass(frozen=True)
class Limit:
    """j is visible up to the sum of ``terms``, each with its sign, and ``constant``, or from there on; itself included.
    They are integers of the row, some of them read from tensors; nothing is known of how they change with the row."""

    is_upper: bool
    terms: tuple[tuple[int, Expr], ...]
    constant: int


@dataclass(frozen=True)
class Mask:
    """``score``: the whole expression; ``inside``: what it is for every j that ``bounds`` and ``limits`` leave
    visible."""

    score: Expr
    inside: Expr
    bounds: tuple[Bound, ...]
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True)
class Chain:
    """The parts of the program, over the axes ``batch``, ``i`` (rows), ``j``, ``d`` and ``e``, which name them all.

    ``axis``: by these names the program's own. ``mask``: the scores, and where they are hidden; ``positions``: stages
    of integers that its limits read, in the program's names.
    ``is_zero_of_nothing``: rows are 0 where j is empty, in place of 0 / 0; ``is_guarded``: nor in a row whose scores
    are all -inf.
    """

    axis: Mapping[str, str]
    batch: tuple[str, ...]
    q: Read
    k: Read
    v: Read
    mask: Mask
    out: Expr
    out_axes: tuple[str, ...]
    is_zero_of_nothing: bool
    is_guarded: bool
    positions: tuple[Stage, ...] = ()

    @property
    def j_is_last(self) -> bool:
        """Whether k lies along j, not along d."""
        return stride(self.k, "j") == 1

    @property
    def is_along_d(self) -> bool:
        """Whether q and k lie along the axis that is summed over, so that products need no packing."""
        return stride(self.q, "d") == 1 and not self.j_is_last

    def roles(self, workload: Workload) -> Mapping[str, str]:
        """The role of each axis of the program, the first one where it has several."""
        words = {"i": "row", "j": "column", "d": "reduction", "e": "value"}
        roles = {axis: words.get(name, "batch") for name, axis in reversed(list(self.axis.items()))}
        # Stages may have names of their own for the same axes.
        return {axis: roles.get(axis, "elementwise") for axis in workload.program.axes}


# -- masks ------------------------------------------------------------------------------------------------------------
def mask_of(score: Expr, is_integer: Callable[[Expr], bool] = lambda expr: False) -> Mask:
    """The conditions around a score that bound j; those of other kinds stay in ``inside``. ``is_integer``: of an
    expression without j, which may be a term of a limit then."""
    conditions: list[Expr] = []
    inside = score
    while isinstance(inside, Call) and inside.function == "where" and inside.args[2] in HIDDEN:
        condition, inside, _ = inside.args
        operands = _operands(condition)
        are_comparisons = all(isinstance(each, Binary) and each.operator in COMPARISONS for each in operands)
        conditions += operands if are_comparisons else [condition]
    bounds = [_bound(condition) for condition in conditions]
    limits = [None if bound else _limit(each, is_integer) for each, bound in zip(conditions, bounds, strict=True)]
    for condition, bound, limit in reversed(list(zip(conditions, bounds, limits, strict=True))):
        if bound is None and limit is None:
            inside = Call("where", (condition, inside, Const(-math.inf)))
    return Mask(score, inside, tuple(filter(None, bounds)), tuple(filter(None, limits)))


def _operands(condition: Expr) -> list[Expr]:
    if isinstance(condition, Binary) and condition.operator == "&":
        return [*_operands(condition.left), *_operands(condition.right)]
    return [condition]


def _bound(condition: Expr) -> Bound | None:
    """A comparison as a bound of j, if it is one whose limit does not fall as i grows."""
    if not isinstance(condition, Binary) or condition.operator not in ("<", "<=", ">", ">="):
        return None
    left, right = index_dim(condition.left), index_dim(condition.right)
    if left is None or right is None:
        return None
    # The condition is: slack is 0 or more.
    slack = right - left if condition.operator in ("<", "<=") else left - right
    slack = slack - 1 if condition.operator in ("<", ">") else slack
    step = _step(slack, "j")
    if step not in (1, -1):
        return None
    limit = slack + DimExpr.var("j") if step == -1 else DimExpr.var("j") - slack
    rise = _step(limit, "i")
    return Bound(step == -1, limit) if rise is not None and rise >= 0 else None


def _limit(condition: Expr, is_integer: Callable[[Expr], bool]) -> Limit | None:
    """A comparison as a limit that data sets each row."""
    if not isinstance(condition, Binary) or condition.operator not in ("<", "<=", ">", ">="):
        return None
    less, more = condition.left, condition.right
    if condition.operator in (">", ">="):
        less, more = more, less
    terms = [*_terms(more, 1), *_terms(less, -1)]
    steps = [sign for sign, term in terms if term == Axis("j")]
    rest = [(sign, term) for sign, term in terms if term != Axis("j")]
    is_taken = len(steps) == 1 and all("j" not in axes_of(term) and is_integer(term) for _, term in rest)
    if not is_taken or not any("i" in axes_of(term) for _, term in rest) or not any(reads(term) for _, term in rest):
        return None
    # more - less is 0 or above, or 1 where they must not be equal.
    least = 1 if condition.operator in ("<", ">") else 0
    is_upper = steps[0] == -1
    side = 1 if is_upper else -1
    return Limit(is_upper, tuple((side * sign, term) for sign, term in rest), -side * least)


def _terms(expr: Expr, sign: int) -> list[tuple[int, Expr]]:
    """A sum as its terms with their signs; what has no j stays whole, in the dtype that it is computed in."""
    if "j" in axes_of(expr):
        match expr:
            case Neg(operand=operand):
                return _terms(operand, -sign)
            case Binary(operator="+" | "-" as operator, left=left, right=right):
                return [*_terms(left, sign), *_terms(right, sign if operator == "+" else -sign)]
    return [(sign, expr)]


def _step(dim: DimExpr, axis: str) -> int | None:
    """The constant factor of an axis; None where it occurs in any other way."""
    step = dict(dim.terms).get((axis,), 0)
    rest = dim - DimExpr.var(axis) * step
    return None if axis in rest.variables else step


# -- storage ----------------------------------------------------------------------------------------------------------
def need_storage(workload: Workload, chain: Chain) -> None:
    """Raises Mismatch for operands that are stored as the rule's code does not read them."""
    for read, along in ((chain.q, ("i", "d")), (chain.k, ("j", "d")), (chain.v, ("j", "e"))):
        times = [sum(axis in axes_of(index) for index in read.indices) for axis in along]
        is_plain = times == [1, 1] and {Axis(axis) for axis in along} <= set(read.indices)
        need(is_plain, f"{read.tensor} is not read at plain {along[0]} and {along[1]}, each once")
        is_own = axes_of(read) <= {*chain.batch, *along}
        need(is_own, f"{read.tensor} is read along axes that are not its own")
        need(read.tensor not in dict(workload.padding), f"{read.tensor} is padded")
    _need_dtypes(workload, chain)
    need(1 in (stride(chain.k, "d"), stride(chain.k, "j")), f"{chain.k.tensor} lies along neither of its axes")
    is_along_e = stride(chain.v, "e") == 1 and chain.out_axes[-1] == "e"
    need(is_along_e, "the values or the output do not lie along the axis of their own")
    for expr, axis in ((chain.mask.score, "j"), (chain.out, "e")):
        lies_along_vectors = all(lies_along(read, axis) for read in reads(expr))
        need(lies_along_vectors, "an elementwise part reads a tensor that does not lie along the vectors")


def _need_dtypes(workload: Workload, chain: Chain) -> None:
    """Operands and the output may be short floats; everything between is float32."""
    dtypes = {name: tensor.dtype for name, tensor in workload.tensors.items()}
    for name in (chain.q.tensor, chain.k.tensor, chain.v.tensor, *workload.program.outputs):
        need(dtypes[name] in FLOATS, f"{name} is {dtypes[name]}, none of {', '.join(sorted(FLOATS))}")
    apart = {stage.tensor for stage in chain.positions}
    for stage in (stage for stage in workload.program.stages if stage.reducer and stage.tensor not in apart):
        is_right = dtypes[stage.tensor] == DTYPE or stage.tensor in workload.program.outputs
        need(is_right, f"{stage.tensor} is {dtypes[stage.tensor]}, not {DTYPE}")
        need(workload.element_types.type_of(stage.body) == DTYPE, f"{stage.tensor} is not computed in {DTYPE}")
