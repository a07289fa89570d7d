"""What the attention rule looks for, whatever its stages and axes are called. No compiler needed.

    dots[.., i, j]   = sum(d) q[.., i, d] * k[.., j, d]
    scores[.., i, j] = any elementwise expression of dots, the axes and further inputs
    top[.., i]       = max(j) scores[.., i, j]
    z[.., i]         = sum(j) exp(scores[.., i, j] - top[.., i])
    mixed[.., i, e]  = sum(j) exp(scores[.., i, j] - top[.., i]) * v[.., j, e]
    out[.., i, e]    = any elementwise expression of mixed[.., i, e] / z[.., i] and further inputs

Elementwise stages between these are put into their readers first, so that it does not matter into how many of them a
program divides the work. The division by ``z`` may also stand before the second contraction, as in softmax(scores) . v.
The quotient may be ``where(top[.., i] == -inf, 0, quotient)``: then rows that see no column are 0, and NaN otherwise.
It may be ``where(extent(j) > 0, quotient, 0)``: then rows are 0 where there is no column, as if divided first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache

from tuner.program.expr import Axis, Binary, Call, Const, Expr, Extent, Read, axes_of, reads, rebuild
from tuner.program.inline import MAX_NODES, node_count, substituted
from tuner.program.notation import Stage
from tuner.program.workload import Workload
from tuner.schedule.access import axes_of_read, is_plain, stride
from tuner.schedule.rule import NoMatch, matched
from tuner.schedule.rules.attention.chain import DOTS, QUOTIENT, Chain, is_hidden, mask_of, storage_problem


class _NoMatch(Exception):
    """Why a program is no such chain."""


@lru_cache(maxsize=1024)
def match(workload: Workload) -> Chain | NoMatch:
    """The chain of a workload, or why it is none."""
    try:
        return _Matching(workload).chain()
    except _NoMatch as reason:
        return NoMatch(str(reason))


def chain_of(workload: Workload) -> Chain:
    """The chain of a workload that the rule takes. Raises ValueError for another."""
    return matched(workload, match(workload))


class _Matching:
    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        _need(len(workload.program.outputs) == 1, "there is more than one output")
        padded = [stage.tensor for stage in workload.program.stages if stage.tensor in dict(workload.padding)]
        _need(not padded, f"{', '.join(padded)} is a padded stage")
        self.stages = _without_elementwise(workload)
        names = {stage.tensor for stage in self.stages}
        reducing = [stage for stage in self.stages if stage.reducer]
        _need(
            sorted(str(stage.reducer) for stage in reducing) == ["max", "sum", "sum", "sum"]
            and all(len(stage.reduce_axes) == 1 for stage in reducing),
            "its reductions are not three sums and a maximum, each over one axis",
        )
        self.dots, self.top = reducing[0], next(stage for stage in reducing if stage.reducer == "max")
        rest = [stage for stage in reducing if stage not in (self.dots, self.top)]
        _need(self.dots is not self.top and len(rest) == 2, "the maximum is not of the products of a first sum")
        longer = [stage for stage in rest if len(stage.axes) > len(self.top.axes)]
        _need(len(longer) == 1, "not one of the sums of exponentials has an axis more than the maximum")
        (self.mixed,) = longer
        (self.total,) = (stage for stage in rest if stage is not self.mixed)
        self.inner = names
        self.is_guarded = False
        self.is_zero_of_nothing = False

    # -- the parts ------------------------------------------------------------------------------------------------
    def chain(self) -> Chain:
        score = self._score()
        self._check_total(score)
        v, e, is_divided_first = self._values(score)
        product = self.dots.body
        _need(
            isinstance(product, Binary) and product.operator == "*"
            and isinstance(product.left, Read) and isinstance(product.right, Read),
            "the first sum is not of a product of two tensors",
        )  # fmt: skip
        assert isinstance(product, Binary)
        own = self._dots_names(score)
        operands = [_renamed(side, own) for side in (product.left, product.right)]
        left, right = (node for node in operands if isinstance(node, Read))
        j = self.top.reduce_axes[0]
        q, k = (left, right) if j in axes_of(right) else (right, left)
        return self._named(score, q, k, v, e, is_divided_first)

    def _score(self) -> Expr:
        score = self.top.body
        found = [read for read in reads(score) if read.tensor in self.inner]
        _need(
            bool(found) and all(read == found[0] for read in found), "the scores do not read the products at one place"
        )
        _need(found[0].tensor == self.dots.tensor, "the maximum is not of the products")
        whole = {*self.top.axes, self.top.reduce_axes[0]}
        _need(_is_plain(found[0]) and axes_of(found[0]) == whole, "the scores are not elementwise in the products")
        return score

    def _dots_names(self, score: Expr) -> dict[str, str]:
        """The maximum's names for the axes of the products; ``d`` for the one that they are summed over."""
        read = next(read for read in reads(score) if read.tensor == self.dots.tensor)
        return {**dict(zip(self.dots.axes, axes_of_read(read), strict=True)), self.dots.reduce_axes[0]: "<d>"}

    def _check_total(self, score: Expr) -> None:
        body = self._in_names_of_top(self.total, self.total.body)
        _need(_is_exponential(body, score, self.top), "the second sum is not of exp(scores - their maximum)")

    def _values(self, score: Expr) -> tuple[Read, str, bool]:
        """v, the axis that it has of its own, and whether the exponentials are divided by their sum first."""
        own = set(self.mixed.axes) - self._top_names(self.mixed).keys()
        _need(len(own) <= 1, "the values have several axes of their own")
        (e,) = own or {""}
        body = self._in_names_of_top(self.mixed, self.mixed.body, {e: "<e>"})
        _need(isinstance(body, Binary) and body.operator == "*", "the last sum is not of a product")
        assert isinstance(body, Binary)
        v, weight = (body.left, body.right) if isinstance(body.left, Read) else (body.right, body.left)
        _need(isinstance(v, Read) and v.tensor not in self.inner, "the last sum is not of exponentials times a tensor")
        assert isinstance(v, Read)
        weight = self._guarded_by(Read(self.top.tensor, tuple(map(Axis, self.top.axes))), weight) or weight
        is_divided = isinstance(weight, Binary) and weight.operator == "/"
        if isinstance(weight, Binary) and is_divided:
            _need(weight.right == Read(self.total.tensor, self._top_index()), "the exponentials are divided otherwise")
            weight = weight.left
        _need(_is_exponential(weight, score, self.top), "the last sum is not of exp(scores - their maximum)")
        _need(is_divided or not self.is_guarded, "exponentials are 0 where a row is hidden, and so is their sum")
        return v, e, is_divided

    def _guarded_by(self, top: Read, expr: Expr) -> Expr | None:
        """The second value of ``where(top == -inf, 0, value)``; None for what is none."""
        if not (isinstance(expr, Call) and expr.function == "where"):
            return None
        condition, zero, value = expr.args
        asks = isinstance(condition, Binary) and (condition.operator, condition.left) == ("==", top)
        if not (asks and isinstance(condition, Binary) and is_hidden(condition.right) and _is_zero(zero)):
            return None
        self.is_guarded = True
        return value

    def _of_something(self, expr: Expr) -> Expr | None:
        """The second value of ``where(extent(j) > 0, value, 0)``; None for what is none."""
        if not (isinstance(expr, Call) and expr.function == "where"):
            return None
        condition, value, zero = expr.args
        asks = isinstance(condition, Binary) and condition.operator == ">" and isinstance(condition.left, Extent)
        if not (asks and isinstance(condition, Binary) and _is_zero(condition.right) and _is_zero(zero)):
            return None
        sizes = self.workload.sizes
        assert isinstance(condition.left, Extent)
        return value if sizes[condition.left.name] == sizes[self.top.reduce_axes[0]] else None

    def _top_index(self) -> tuple[Axis, ...]:
        """How the sum of exponentials is read, in the maximum's names."""
        names = self._top_names(self.total)
        return tuple(Axis(names[axis]) for axis in self.total.axes)

    def _top_names(self, stage: Stage) -> dict[str, str]:
        """The maximum's names for a stage's axes, by how it reads the maximum."""
        found = [read for read in reads(stage.body) if read.tensor == self.top.tensor]
        _need(bool(found) and _is_plain(found[0]), f"stage {stage.tensor} does not read the maximum row by row")
        names = dict(zip(axes_of_read(found[0]), self.top.axes, strict=True))
        _need(names.keys() <= set(stage.axes), f"stage {stage.tensor} reads the maximum of other rows")
        return {**names, stage.reduce_axes[0]: self.top.reduce_axes[0]}

    def _in_names_of_top(self, stage: Stage, body: Expr, further: Mapping[str, str] | None = None) -> Expr:
        names = {**self._top_names(stage), **(further or {})}
        _need(set(stage.axes) <= names.keys(), f"stage {stage.tensor} has an axis that the maximum does not have")
        sizes = self.workload.sizes
        same = all(sizes[old] == sizes[new] for old, new in names.items() if not new.startswith("<"))
        _need(same, f"stage {stage.tensor} has axes of other extents than the maximum")
        return _renamed(body, names)

    # -- names ----------------------------------------------------------------------------------------------------
    def _named(self, score: Expr, q: Read, k: Read, v: Read, e: str, is_divided_first: bool) -> Chain:
        """Everything in the names of the chain."""
        j, d = self.top.reduce_axes[0], self.dots.reduce_axes[0]
        shared = axes_of(k) | axes_of(v)
        rows = [axis for axis in self.top.axes if axis not in shared]
        _need(bool(rows), "k or v depends on every row: there is none that shares them with another")
        row = rows[-1]
        batch = {axis: f"b{number}" for number, axis in enumerate(axis for axis in self.top.axes if axis != row)}
        names = {**batch, row: "i", j: "j", "<d>": "d", "<e>": "e"}
        q, k, v = (replace(read, indices=_renamed_all(read.indices, names)) for read in (q, k, v))
        out, out_axes = self._output(names, e, is_divided_first)
        mask = mask_of(_marked(_renamed(score, names), self.dots.tensor, DOTS))
        axis = {**{new: old for old, new in {**batch, row: "i", j: "j"}.items()}, "d": d, "e": e}
        chain = Chain(
            axis, tuple(batch.values()), q, k, v, mask, out, out_axes, self.workload.program.outputs[0],
            stride(k, "j") == 1, self.is_zero_of_nothing, self.is_guarded,
        )  # fmt: skip
        problem = storage_problem(self.workload, chain)
        _need(problem is None, str(problem))
        return chain

    def _output(self, names: Mapping[str, str], e: str, is_divided_first: bool) -> tuple[Expr, tuple[str, ...]]:
        """What is done to the quotient, and the axes of the output."""
        own = {**self._top_names(self.mixed), e: "<e>"}
        inner = [names[own[axis]] for axis in self.mixed.axes]
        last = self.stages[-1]
        if last is self.mixed:
            _need(is_divided_first, "the sums are not divided by that of the exponentials")
            self.is_zero_of_nothing = True
            return Read(QUOTIENT, ()), tuple(inner)
        found = [read for read in reads(last.body) if read.tensor == self.mixed.tensor]
        _need(last.reducer is None and bool(found), "the last stage does not read the last sum")
        _need(_is_plain(found[0]) and axes_of(found[0]) == set(last.axes), "the output is not elementwise in the sums")
        outer = dict(zip(axes_of_read(found[0]), inner, strict=True))
        _need(self._has_extents(outer, names, e), "the output has axes of other extents than the sums")
        body = _renamed(last.body, outer)
        if is_divided_first:
            self.is_zero_of_nothing = True
            body = _marked(body, self.mixed.tensor, QUOTIENT, tuple(map(Axis, inner)))
        else:
            total = tuple(Axis(names[own_name.name]) for own_name in self._top_index())
            quotient = Binary("/", Read(self.mixed.tensor, tuple(map(Axis, inner))), Read(self.total.tensor, total))
            top = Read(self.top.tensor, tuple(Axis(names[axis]) for axis in self.top.axes))
            whole = rebuild(body, lambda node: Read(QUOTIENT, ()) if self._guarded_by(top, node) == quotient else node)
            if not self.is_guarded:
                whole = rebuild(body, lambda node: Read(QUOTIENT, ()) if self._of_something(node) == quotient else node)
                self.is_zero_of_nothing = whole != body
            body = whole if whole != body else _marked_all(body, quotient)
        _need(not {read.tensor for read in reads(body)} & self.inner, "the output is not made of the quotient alone")
        return body, tuple(outer[axis] for axis in last.axes)

    def _has_extents(self, outer: Mapping[str, str], names: Mapping[str, str], e: str) -> bool:
        back = {new: old for old, new in names.items()} | {"e": e}
        sizes = self.workload.sizes
        return all(sizes[axis] == sizes[back[new]] for axis, new in outer.items())


def _without_elementwise(workload: Workload) -> list[Stage]:
    """The reductions and the output, with the elementwise stages between them put into their readers."""
    bodies: dict[str, Stage] = {}
    kept = []
    for stage in workload.program.stages:
        _need(
            not any(
                read.tensor in workload.program.stage and any(map(reads, read.indices)) for read in reads(stage.body)
            ),
            f"stage {stage.tensor} looks an intermediate up by elements of a tensor",
        )
        whole = replace(stage, body=rebuild(stage.body, lambda node: substituted(node, bodies, workload)))
        _need(node_count(whole.body) <= MAX_NODES, f"stage {stage.tensor} grows too long with those before it in it")
        if stage.reducer or stage.tensor in workload.program.outputs:
            kept.append(whole)
        else:
            bodies[stage.tensor] = whole
    return kept


def _is_exponential(expr: Expr, score: Expr, top: Stage) -> bool:
    """Whether it is exp(score - top), in the names of ``top``."""
    return expr == Call("exp", (Binary("-", score, Read(top.tensor, tuple(map(Axis, top.axes)))),))


def _renamed(expr: Expr, names: Mapping[str, str]) -> Expr:
    return rebuild(expr, lambda node: Axis(names.get(node.name, node.name)) if isinstance(node, Axis) else node)


def _renamed_all(exprs: tuple[Expr, ...], names: Mapping[str, str]) -> tuple[Expr, ...]:
    return tuple(_renamed(expr, names) for expr in exprs)


def _marked(expr: Expr, tensor: str, marker: str, at: tuple[Expr, ...] | None = None) -> Expr:
    """Reads of ``tensor`` as reads of a scalar ``marker``."""
    change: Callable[[Expr], Expr] = lambda node: (  # noqa: E731
        Read(marker, ()) if isinstance(node, Read) and node.tensor == tensor and at in (None, node.indices) else node
    )
    return rebuild(expr, change)


def _marked_all(expr: Expr, quotient: Expr) -> Expr:
    return rebuild(expr, lambda node: Read(QUOTIENT, ()) if node == quotient else node)


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.value == 0


def _is_plain(read: Read) -> bool:
    """Whether every index is an axis of its own."""
    return is_plain(read) and len(set(read.indices)) == len(read.indices)


def _need(condition: bool, reason: str) -> None:
    if not condition:
        raise _NoMatch(reason)
