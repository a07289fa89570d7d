"""What the rule looks for: ``out[m, n] = sum(k) left[m, k] * weight``, then elementwise stages. No compiler needed.

``weight`` is any elementwise expression of n and k over tensors that are read at ``[n, k]``, ``[n, k // g]``,
``[k // g, n]`` or ``[n]``; it may stand in stages of its own. One of them may hold two numbers of four bits in a byte
(``codes``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from tuner.program.dtypes import FLOATS
from tuner.program.expr import Axis, Binary, Const, Expr, Extent, Read, axes_of, reads, rebuild, walk
from tuner.program.inline import MAX_NODES, node_count, substituted
from tuner.program.notation import Stage
from tuner.program.workload import Workload
from tuner.schedule.product.atoms import FMA, only_fma
from tuner.schedule.product.match.stages import epilogue_problem
from tuner.schedule.product.operands.matrix import MatrixResult, MatrixRows
from tuner.schedule.product.product import UNSUPPORTED, Product
from tuner.schedule.rule import NoMatch, matched
from tuner.schedule.rules.quantized.codes import Code, code_in, outside
from tuner.schedule.rules.quantized.decoded import Decoded

MIN_GROUP = 16
"""Steps of k whose sums are worth being multiplied by what they share."""


@dataclass(frozen=True)
class Grouped:
    """``weight`` as ``each * shared``: ``shared`` is the same for ``steps`` neighbouring steps of k."""

    each: Expr
    shared: Expr
    steps: int


@dataclass(frozen=True)
class Quantized:
    """The tensors of a product and the program's axes in each of its roles.

    ``packed``: the constants in ``weight`` that lie along k, ``plain``: all else that it reads; each read with the
    steps of k that share an element of it.
    """

    left: str
    out: str
    m: str
    n: str
    k: str
    depth: int
    """The extent of k."""
    weight: Expr
    grouped: Grouped | None
    """None where no factor is shared by MIN_GROUP steps."""
    code: Code | None
    packed: tuple[tuple[Read, int], ...]
    plain: tuple[tuple[Read, int], ...]
    sums: Stage
    epilogue: tuple[Stage, ...]
    dynamic: frozenset[str]
    left_dtype: str
    right_dtype: str
    """What an element of the weight takes in memory."""
    out_dtype: str

    @property
    def axis(self) -> Mapping[str, str]:
        """The program's axis of each role."""
        return {"m": self.m, "n": self.n, "k": self.k}

    @cached_property
    def product(self) -> Product:
        """It as the loops and the theory see it."""
        return Product(
            axes=self.axis,
            left=MatrixRows(self.left, self.left_dtype),
            right=Decoded(self, self.right_dtype),
            result=MatrixResult(self.out, self.out_dtype, self.sums.tensor, self.epilogue, self.m, self.n),
            dynamic=self.dynamic,
            depth=self.depth,
            atoms=only_fma,
        )


class _NoMatch(Exception):
    """Why a program is no such product."""


@lru_cache(maxsize=1024)
def match(workload: Workload) -> Quantized | NoMatch:
    """The roles of a workload's tensors and axes, or why it is no such product."""
    try:
        return _match(workload)
    except _NoMatch as reason:
        return NoMatch(str(reason))


def quantized_of(workload: Workload) -> Quantized:
    """The roles in a workload that the rule takes. Raises ValueError for another."""
    return matched(workload, match(workload))


def _match(workload: Workload) -> Quantized:
    sums, rest = _sums(workload)
    _need(len(sums.axes) == 2 and len(sums.reduce_axes) == 1, "the sum is not over one axis, leaving two")
    (m, n), (k,) = sums.axes, sums.reduce_axes
    factors = _factors(sums.body)
    rows = [factor for factor in factors if m in axes_of(factor)]
    columns = [factor for factor in factors if m not in axes_of(factor)]
    _need(
        len(rows) == 1 and isinstance(rows[0], Read) and rows[0].indices == (Axis(m), Axis(k)),
        "there is not one factor [m, k] beside those of the weight",
    )
    _need(bool(columns), "there is no weight")
    (left,) = rows
    assert isinstance(left, Read)
    weight = columns[0]
    for factor in columns[1:]:
        weight = Binary("*", weight, factor)
    _need(not isinstance(weight, Read), "the weight is read as it is, and not computed")
    types, of = workload.element_types, {name: tensor.dtype for name, tensor in workload.tensors.items()}
    _need(types.type_of(sums.body) == "float32", "sums are not float32")
    code = code_in(weight, n, k, of)
    packed, plain = _reads(workload, weight, code, n, k)
    depth = workload.sizes[k].constant
    _need(depth is not None and workload.sizes[n].constant is not None, "the sizes of the weight are dynamic")
    assert depth is not None
    out, epilogue = workload.program.outputs[0], tuple(rest)
    widest = "int4" if code else max((of[read.tensor] for read, group in packed if group == 1), default="int4")
    grouped = _grouped(workload, weight, code, k, depth)
    result = Quantized(
        left.tensor, out, m, n, k, depth, weight, grouped, code, packed, plain, sums, epilogue,
        frozenset({"m"} if workload.sizes[m].constant is None else ()), of[left.tensor], widest, of[out],
    )  # fmt: skip
    problem = _storage_problem(workload, result) or epilogue_problem(
        workload, rest, (left.tensor, *(read.tensor for read, _ in packed), *((code.tensor,) if code else ())), sums
    )
    _need(problem is None, str(problem))
    return result


def _sums(workload: Workload) -> tuple[Stage, list[Stage]]:
    """The sum with the stages before it put into it, and the stages behind it."""
    bodies: dict[str, Stage] = {}
    for number, stage in enumerate(workload.program.stages):
        whole = replace(stage, body=rebuild(stage.body, lambda node: substituted(node, bodies, workload)))
        _need(node_count(whole.body) <= MAX_NODES, f"stage {stage.tensor} grows too long with those before it in it")
        if stage.reducer:
            _need(stage.reducer == "sum", "the first reduction is no sum")
            rest = list(workload.program.stages[number + 1 :])
            again = [read.tensor for later in rest for read in reads(later.body) if read.tensor in bodies]
            _need(not again and not set(bodies) & set(workload.program.outputs), "the weight is used besides")
            return whole, rest
        bodies[stage.tensor] = whole
    raise _NoMatch("there is no sum")


def _factors(expr: Expr) -> tuple[Expr, ...]:
    if isinstance(expr, Binary) and expr.operator == "*":
        return (*_factors(expr.left), *_factors(expr.right))
    return (expr,)


def _reads(
    workload: Workload, weight: Expr, code: Code | None, n: str, k: str
) -> tuple[tuple[tuple[Read, int], ...], tuple[tuple[Read, int], ...]]:
    """What of the weight is packed, and what is read as it lies, each with its steps of k."""
    packed, plain = dict[Read, int](), dict[Read, int]()
    for node in outside(weight, code):
        _need(not isinstance(node, Axis | Extent), "the weight is computed with the values of axes")
        if not isinstance(node, Read):
            continue
        steps = [(axis, group) for axis, group in map(_step, node.indices)]
        groups = dict(steps)
        names = [axis for axis, _ in steps]
        _need(groups.get(n, 1) == 1, f"{node.tensor} is shared by columns")
        if names == [n, k] and node.tensor in workload.constants:
            packed[node] = groups[k]
        else:
            _need(names in ([n], [k, n], []), f"{node.tensor} is read neither along n, nor a constant along k")
            plain[node] = groups.get(k, 1)
    tensors = [read.tensor for read in packed] + ([code.tensor] if code else [])
    _need(len(set(tensors)) == len(tensors), "a tensor of the weight is read in two ways")
    _need(not {read.tensor for read in plain} & set(tensors), "a tensor of the weight is read in two ways")
    _need(code is None or code.tensor in workload.constants, "the weight is not constant")
    _need(code is not None or 1 in packed.values(), "no constant of the weight is read at [n, k]")
    return tuple(packed.items()), tuple(plain.items())


def _step(index: Expr) -> tuple[str, int]:
    """The axis of an index ``axis`` or ``axis // group``, and the group."""
    match index:
        case Axis(name=name):
            return name, 1
        case Binary(operator="//", left=Axis(name=name), right=Const(value=int() as group)):
            return name, group
        case _:
            raise _NoMatch("an index of the weight is neither an axis nor a part of one")


def _grouped(workload: Workload, weight: Expr, code: Code | None, k: str, depth: int) -> Grouped | None:
    """The weight without the factors that many steps share."""
    factors = [(factor, _shared_steps(factor, code, k, depth)) for factor in _factors(weight)]
    each = [factor for factor, steps in factors if steps == 1]
    shared = [(factor, steps) for factor, steps in factors if steps > 1]
    # Only floats: products of integers may wrap, and are other numbers in another order.
    types = [workload.element_types.type_of(factor) for factor, _ in shared]
    if len(each) != 1 or not shared or any(of not in FLOATS for of in types):
        return None
    product, least = shared[0]
    for factor, steps in shared[1:]:
        product, least = Binary("*", product, factor), min(least, steps)
    if least < MIN_GROUP or any(steps % least and steps != depth for _, steps in shared):
        return None
    return Grouped(each[0], product, least)


def _shared_steps(factor: Expr, code: Code | None, k: str, depth: int) -> int:
    """How many neighbouring steps of k a factor is the same for."""
    if code is not None and any(node == code.expr for node in walk(factor)):
        return 1
    groups = {group for read in reads(factor) for axis, group in map(_step, read.indices) if axis == k}
    return min(*groups, depth) if len(groups) == 1 else 1 if groups else depth


def _storage_problem(workload: Workload, result: Quantized) -> str | None:
    """What of the tensors' storage the rule's code does not do."""
    if workload.padding:
        return "a tensor is padded"
    for tensor in workload.operands:
        if tensor.dtype in UNSUPPORTED:
            return f"{tensor.name} is {tensor.dtype}"
    if result.left_dtype not in FMA.left or result.left in workload.constants:
        return f"{result.left} is {result.left_dtype}, or constant"
    if workload.tensors[result.left].dims != (workload.sizes[result.m], workload.sizes[result.k]):
        return f"{result.left} is larger than what is read of it"
    tensors = [read.tensor for read, _ in result.packed] + ([result.code.tensor] if result.code else [])
    for name in tensors:
        first, *rest = workload.tensors[name].dims
        if first != workload.sizes[result.n] or any(dim.constant is None for dim in rest):
            return f"{name} is larger than what is read of it, or dynamic"
    return None


def _need(condition: bool, reason: str) -> None:
    if not condition:
        raise _NoMatch(reason)
