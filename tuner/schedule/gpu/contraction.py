"""Sums of products as kernels for GPUs see them: what the rules find, by the parts of their axes and two expressions.

Tiles are loaded by evaluating the expression of each side at its rows and steps of k, so that views, windows, rows by
group and decoded weights differ in nothing but their expressions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tuner.program.language.dims import DimExpr
from tuner.program.language.expr import Axis, Binary, Expr, Read, rebuild
from tuner.program.language.indices import index_of
from tuner.program.language.notation import Stage
from tuner.program.language.shapes import ElementTypes
from tuner.program.language.workload import Tensor, Workload
from tuner.schedule.product.match import groups, plain
from tuner.schedule.product.match.factors import Part, multiplied
from tuner.schedule.product.match.form import Form
from tuner.schedule.product.match.phases import Places
from tuner.schedule.rule import NoMatch
from tuner.schedule.rules import moe, quantized
from tuner.schedule.rules.quantized.four_bits import CODE, Code


@dataclass(frozen=True)
class Contraction:
    """``computed[outer, m, n] = sum(k) left * right``, then ``stages``; groups of parts of axes, each one flattened.

    ``whole``: the workload, of which this may be a phase. ``first``: the stage of the sums; ``places``: the values that
    axes of the output have, where a phase of a transposed convolution has some of them alone. ``code``: what the right
    side reads where it has numbers of four bits; ``late``: a factor of it that ``late_steps`` neighbouring steps of k
    share. ``index``: the read that gives each row its group, of ``groups``.
    """

    workload: Workload
    parts: Mapping[str, Part]
    outer: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]
    left: Expr
    right: Expr
    first: Stage
    stages: tuple[Stage, ...]
    places: tuple[Places, ...] = ()
    code: Code | None = None
    late: Expr | None = None
    late_steps: int = 0
    index: Read | None = None
    groups: int = 0
    whole: Workload | None = None

    @property
    def total(self) -> str:
        """The dtype of sums."""
        return self.workload.element_types.reduced_type(self.first)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors, as long as they are for the whole workload."""
        return (self.whole or self.workload).tensors

    @property
    def types(self) -> ElementTypes:
        """The dtypes of tensors and expressions, numbers of four bits included."""
        types = (self.whole or self.workload).element_types
        return types if self.code is None else types.with_tensor(CODE.tensor, self.code.dtype)


def contractions(workload: Workload) -> tuple[Contraction, ...]:
    """The contractions that a workload is, one after the other: several phases, or one. None where it is no product."""
    found = next((each for each in _found(workload) if each), ())
    return tuple(found)


def _found(workload: Workload) -> Iterator[tuple[Contraction, ...]]:
    dense = plain.match(workload)
    if not isinstance(dense, NoMatch):
        first = workload.program.stages[0]
        assert isinstance(first.body, Binary)
        yield (_of_matrices(workload, dense, first, first.body.left, first.body.right),)
    grouped = moe.match(workload)
    if not isinstance(grouped, NoMatch):
        yield (_by_group(workload, grouped),)
    decoded = quantized.match(workload)
    # In places of their own numbers of four bits are not read here.
    if not isinstance(decoded, NoMatch) and not decoded.right.numbers:
        yield (_decoded(workload, decoded),)
    forms = groups.forms(workload)
    if not isinstance(forms, NoMatch):
        yield tuple(_of_form(workload, form) for form in forms[-1].each)


def _of_matrices(
    workload: Workload, product: plain.MatrixProduct[Any], first: Stage, left: Expr, right: Expr, **more: Any
) -> Contraction:  # fmt: skip
    axes = product.axes
    parts = {axis: Part(axis, 1, workload.sizes[axis]) for axis in axes.values()}
    outer = (axes["b"],) if "b" in axes else ()
    m, n, k = ((axes[role],) for role in ("m", "n", "k"))
    stages = product.result.epilogue
    return Contraction(workload, parts, outer, m, n, k, left, right, first, tuple(stages), **more)


def _by_group(workload: Workload, grouped: moe.Grouped) -> Contraction:
    first = workload.program.stages[0]
    assert isinstance(first.body, Binary)
    left, right = first.body.left, first.body.right
    if isinstance(left, Read) and left.tensor != grouped.left.tensor:
        left, right = right, left
    index = Read(grouped.index, (Axis(grouped.axes["m"]),))
    return _of_matrices(workload, grouped, first, left, right, index=index, groups=grouped.groups)


def _decoded(workload: Workload, product: plain.MatrixProduct[Any]) -> Contraction:
    right, axes = product.right, product.axes
    first = workload.program.stage[product.result.computed]
    left = Read(product.left.tensor, (Axis(axes["m"]), Axis(axes["k"])))
    more: dict[str, Any] = {"code": right.code}
    weight = right.weight
    if right.grouped is not None:
        weight = right.grouped.each
        more |= {"late": right.grouped.shared, "late_steps": right.grouped.steps}
    return _of_matrices(workload, product, first, left, weight, **more)


def _of_form(whole: Workload, form: Form) -> Contraction:
    phase, first = form.phase, whole.program.stages[0]
    left, right = multiplied(form.left.factors), multiplied(form.right.factors)
    if phase is None:
        return Contraction(whole, form.parts, form.outer, form.m, form.n, form.k, left, right, first, form.stages)
    first = phase.workload.program.stages[0]
    # A library packs a constant's taps of one phase; here it lies whole.
    taps = {taps.axis: DimExpr.var(taps.axis) * -taps.step + taps.last for taps in phase.taps}

    def uncut(node: Expr) -> Expr:
        if not isinstance(node, Read) or node.tensor not in phase.cut:
            return node
        indices = (index_of(taps[i.name]) if isinstance(i, Axis) and i.name in taps else i for i in node.indices)
        return replace(node, indices=tuple(indices))

    return Contraction(
        phase.workload, form.parts, form.outer, form.m, form.n, form.k, rebuild(left, uncut), rebuild(right, uncut),
        first, form.stages, phase.places, whole=whole,
    )  # fmt: skip
