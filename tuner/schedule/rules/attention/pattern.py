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

from tuner.program.language.dtypes import INTEGERS
from tuner.program.language.expr import Axis, Binary, Call, Const, Expr, Extent, Read, axes_of, reads, rebuild
from tuner.program.language.inline import MAX_NODES, node_count, substituted
from tuner.program.language.notation import Stage
from tuner.program.language.workload import Workload
from tuner.schedule.access import axes_of_read, is_plain
from tuner.schedule.rule import Mismatch, matched, need, pattern
from tuner.schedule.rules.attention.chain import COMPUTED, HIDDEN, Chain, mask_of, need_storage


@pattern
def match(workload: Workload) -> Chain:
    """The chain of a workload."""
    return _Matching(workload).chain()


def chain_of(workload: Workload) -> Chain:
    """The chain of a workload that the rule takes. Raises ValueError for another."""
    return matched(workload, match(workload))


class _Matching:
    """The parts of a program. Expressions are in the maximum's names of axes: ``<d>`` is the axis that products are
    summed over, ``<e>`` that of the values alone."""

    def __init__(self, workload: Workload) -> None:
        self.workload, self.sizes = workload, workload.sizes
        need(len(workload.program.outputs) == 1, "there is more than one output")
        padded = [stage.tensor for stage in workload.program.stages if stage.tensor in dict(workload.padding)]
        need(not padded, f"{', '.join(padded)} is a padded stage")
        stages = _without_elementwise(workload)
        self.positions = tuple(stage for stage in stages if self._is_position(stage))
        stages = [stage for stage in stages if stage not in self.positions]
        self.inner, self.last = {stage.tensor for stage in stages}, stages[-1]
        reducing = [stage for stage in stages if stage.reducer]
        need(
            sorted(str(stage.reducer) for stage in reducing) == ["max", "sum", "sum", "sum"]
            and all(len(stage.reduce_axes) == 1 for stage in reducing),
            "its reductions are not three sums and a maximum, each over one axis",
        )
        self.dots, self.top = reducing[0], next(stage for stage in reducing if stage.reducer == "max")
        need(self.dots is not self.top, "the maximum is not of the products of a first sum")
        rest = (stage for stage in reducing if stage not in (self.dots, self.top))
        self.total, self.mixed = sorted(rest, key=lambda stage: len(stage.axes))
        is_one_longer = len(self.total.axes) <= len(self.top.axes) < len(self.mixed.axes)
        need(is_one_longer, "not one of the sums of exponentials has an axis more than the maximum")
        self.j, self.peak = self.top.reduce_axes[0], _at_axes(self.top)

    def _is_position(self, stage: Stage) -> bool:
        """Whether a stage reduces to integers that are no output: the softmax has none of them."""
        dtype = self.workload.tensors[stage.tensor].dtype
        return stage.reducer is not None and dtype in INTEGERS and stage.tensor not in self.workload.program.outputs

    def _is_integer(self, expr: Expr) -> bool:
        """Whether an expression is of integers, and reads nothing of the chain."""
        is_apart = not {read.tensor for read in reads(expr)} & {*self.inner, COMPUTED.tensor}
        return is_apart and self.workload.element_types.type_of(expr) in INTEGERS

    def chain(self) -> Chain:
        dots = self._dots()
        exponential = Call("exp", (Binary("-", self.top.body, self.peak),))
        total = self._in_names_of_top(self.total)
        need(total.body == exponential, "the second sum is not of exp(scores - their maximum)")
        mixed = self._in_names_of_top(self.mixed)
        v, is_divided, is_guarded = self._values(mixed.body, exponential, _at_axes(total))
        q, k = self._factors(dots)
        names = self._names(k, v)
        out, out_axes = self._output(mixed)
        if is_divided:
            out, is_zero_of_nothing = _put(out, _at_axes(mixed), COMPUTED), True
        else:
            need(self.last is not self.mixed, "the sums are not divided by that of the exponentials")
            quotient = Binary("/", _at_axes(mixed), _at_axes(total))
            out, is_zero_of_nothing, is_guarded = self._with_quotient(out, quotient)
        need(not {read.tensor for read in reads(out)} & self.inner, "the output is not made of the quotient alone")
        own = {"<d>": self.dots.reduce_axes[0], "<e>": self.mixed.axes[mixed.axes.index("<e>")]}
        chain = Chain(
            axis={name: own.get(axis, axis) for axis, name in names.items()},
            batch=tuple(name for name in names.values() if name not in ("i", "j", "d", "e")),
            q=_read_by(names, q), k=_read_by(names, k), v=_read_by(names, v),
            mask=mask_of(_renamed(_put(self.top.body, dots, COMPUTED), names), self._is_integer),
            out=_renamed(out, names), out_axes=tuple(names[axis] for axis in out_axes),
            is_zero_of_nothing=is_zero_of_nothing, is_guarded=is_guarded, positions=self.positions,
        )  # fmt: skip
        apart = (read.tensor not in self.inner for stage in self.positions for read in reads(stage.body))
        need(all(apart), "integers are made of what the softmax is made of")
        types, dtypes = self.workload.element_types, self.workload.tensors
        are_own = all(types.reduced_type(stage) == dtypes[stage.tensor].dtype for stage in self.positions)
        need(are_own, "integers are reduced in another dtype than they are stored in")
        need_storage(self.workload, chain)
        return chain

    # -- the parts ----------------------------------------------------------------------------------------------------
    def _dots(self) -> Read:
        found = [read for read in reads(self.top.body) if read.tensor in self.inner]
        need(len(set(found)) == 1, "the scores do not read the products at one place")
        need(found[0].tensor == self.dots.tensor, "the maximum is not of the products")
        whole = {*self.top.axes, self.j}
        need(_is_plain(found[0]) and axes_of(found[0]) == whole, "the scores are not elementwise in the products")
        return found[0]

    def _factors(self, dots: Read) -> tuple[Read, Read]:
        names = {**dict(zip(self.dots.axes, axes_of_read(dots), strict=True)), self.dots.reduce_axes[0]: "<d>"}
        match self.dots.body:
            case Binary("*", Read() as left, Read() as right):
                left, right = _read_by(names, left), _read_by(names, right)
                return (left, right) if self.j in axes_of(right) else (right, left)
        raise Mismatch("the first sum is not of a product of two tensors")

    def _values(self, body: Expr, exponential: Expr, total: Read) -> tuple[Read, bool, bool]:
        """v, whether the exponentials are divided by their sum first, and whether they are 0 in a hidden row."""
        match body:
            case Binary("*", Read() as v, weight) | Binary("*", weight, Read() as v):
                need(v.tensor not in self.inner, "the last sum is not of exponentials times a tensor")
            case Binary("*"):
                raise Mismatch("the last sum is not of exponentials times a tensor")
            case _:
                raise Mismatch("the last sum is not of a product")
        guarded = self._unless_hidden(weight)
        weight = guarded or weight
        is_divided = isinstance(weight, Binary) and weight.operator == "/"
        if isinstance(weight, Binary) and is_divided:
            need(weight.right == total, "the exponentials are divided otherwise")
            weight = weight.left
        need(weight == exponential, "the last sum is not of exp(scores - their maximum)")
        need(is_divided or guarded is None, "exponentials are 0 where a row is hidden, and so is their sum")
        return v, is_divided, guarded is not None

    def _output(self, mixed: Stage) -> tuple[Expr, tuple[str, ...]]:
        """What becomes of the last sums, and the axes of the output."""
        if self.last is self.mixed:
            return _at_axes(mixed), mixed.axes
        found = [read for read in reads(self.last.body) if read.tensor == mixed.tensor]
        need(self.last.reducer is None and bool(found), "the last stage does not read the last sum")
        is_elementwise = _is_plain(found[0]) and axes_of(found[0]) == set(self.last.axes)
        need(is_elementwise, "the output is not elementwise in the sums")
        outer = axes_of_read(found[0])
        has_sizes = all(self.sizes[axis] == self.sizes[own] for axis, own in zip(outer, self.mixed.axes, strict=True))
        need(has_sizes, "the output has axes of other extents than the sums")
        names = dict(zip(outer, mixed.axes, strict=True))
        return _renamed(self.last.body, names), tuple(names[axis] for axis in self.last.axes)

    def _with_quotient(self, out: Expr, quotient: Expr) -> tuple[Expr, bool, bool]:
        """The output as it is made of the quotient; whether that is 0 where j is empty, and where a row is hidden."""
        guarded = _put(out, quotient, COMPUTED, self._unless_hidden)
        if guarded != out:
            return guarded, False, True
        some = _put(out, quotient, COMPUTED, self._unless_empty)
        return (some, True, False) if some != out else (_put(out, quotient, COMPUTED), False, False)

    def _unless_hidden(self, expr: Expr) -> Expr | None:
        """The second value of ``where(top == -inf, 0, value)``; None for what is none."""
        match expr:
            case Call("where", (Binary("==", self.peak, lowest), Const(0), value)) if lowest in HIDDEN:
                return value
        return None

    def _unless_empty(self, expr: Expr) -> Expr | None:
        """The second value of ``where(extent(j) > 0, value, 0)``; None for what is none."""
        match expr:
            case Call("where", (Binary(">", Extent(name), Const(0)), value, Const(0))):
                return value if self.sizes[name] == self.sizes[self.j] else None
        return None

    # -- names --------------------------------------------------------------------------------------------------------
    def _in_names_of_top(self, stage: Stage) -> Stage:
        """A stage in the maximum's names, by how it reads the maximum."""
        found = [read for read in reads(stage.body) if read.tensor == self.top.tensor]
        need(bool(found) and _is_plain(found[0]), f"stage {stage.tensor} does not read the maximum row by row")
        names = dict(zip(axes_of_read(found[0]), self.top.axes, strict=True))
        need(names.keys() <= set(stage.axes), f"stage {stage.tensor} reads the maximum of other rows")
        own = [axis for axis in stage.axes if axis not in names]
        need(len(own) <= 1, "the values have several axes of their own")
        names[stage.reduce_axes[0]] = self.j
        same = all(self.sizes[axis] == self.sizes[name] for axis, name in names.items())
        need(same, f"stage {stage.tensor} has axes of other extents than the maximum")
        names |= dict.fromkeys(own, "<e>")
        return replace(stage, axes=tuple(names[axis] for axis in stage.axes), body=_renamed(stage.body, names))

    def _names(self, k: Read, v: Read) -> Mapping[str, str]:
        """The chain's names by those of the maximum."""
        rows = [axis for axis in self.top.axes if axis not in axes_of(k) | axes_of(v)]
        need(bool(rows), "k or v depends on every row: there is none that shares them with another")
        batch = [axis for axis in self.top.axes if axis != rows[-1]]
        names = {axis: f"b{number}" for number, axis in enumerate(batch)}
        return {**names, rows[-1]: "i", self.j: "j", "<d>": "d", "<e>": "e"}


def _without_elementwise(workload: Workload) -> list[Stage]:
    """The reductions and the output, with the elementwise stages between them put into their readers."""
    bodies: dict[str, Stage] = {}
    kept = []
    for stage in workload.program.stages:
        inner = [read for read in reads(stage.body) if read.tensor in workload.program.stage]
        is_looked_up = any(reads(index) for read in inner for index in read.indices)
        need(not is_looked_up, f"stage {stage.tensor} looks an intermediate up by elements of a tensor")
        whole = replace(stage, body=rebuild(stage.body, lambda node: substituted(node, bodies, workload)))
        need(node_count(whole.body) <= MAX_NODES, f"stage {stage.tensor} grows too long with those before it in it")
        if stage.reducer or stage.tensor in workload.program.outputs:
            kept.append(whole)
        else:
            bodies[stage.tensor] = whole
    return kept


def _at_axes(stage: Stage) -> Read:
    """The element of a stage at its own axes."""
    return Read(stage.tensor, tuple(map(Axis, stage.axes)))


def _renamed(expr: Expr, names: Mapping[str, str]) -> Expr:
    return rebuild(expr, lambda node: Axis(names.get(node.name, node.name)) if isinstance(node, Axis) else node)


def _read_by(names: Mapping[str, str], read: Read) -> Read:
    return replace(read, indices=tuple(_renamed(index, names) for index in read.indices))


def _put(expr: Expr, old: Expr, new: Expr, part: Callable[[Expr], Expr | None] = lambda node: node) -> Expr:
    """``expr`` with ``new`` in the places of nodes of which that ``part`` is ``old``."""
    return rebuild(expr, lambda node: new if part(node) == old else node)


def _is_plain(read: Read) -> bool:
    """Whether every index is an axis of its own."""
    return is_plain(read) and len(set(read.indices)) == len(read.indices)
