"""What the rule looks for: a sum of products whose axes group into a batch, m, n and k; then elementwise stages.

The right operand is the product of the factors that depend on the output's last axis, the left one that of all others.
Axes of the output that both depend on, or that lie between others in memory, are walked outside (``outer``); the others
are m (of the left operand) and n (of the right one), each group one flattened index, as is k, all that is summed over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tuner.program.expr import Axis, Binary, Cast, Expr, Extent, Read, reads
from tuner.program.notation import Stage
from tuner.program.target import Hardware
from tuner.program.workload import Workload
from tuner.rules._base import Extents, Refused
from tuner.rules.access import axes_of_read, is_plain, values
from tuner.rules.intrinsics import FMA, DotProduct
from tuner.rules.x86_contraction import pattern as plain
from tuner.rules.x86_gathered.operands import Operand, dims_of, merged, operand_of, ordered_steps
from tuner.rules.x86_gathered.parts import Part, names_of, needed, parts_of

DTYPE = "float32"
FEWEST_COLUMNS = 8
"""A fixed n of fewer columns is not worth vectors of its own."""


@dataclass(frozen=True)
class Form:
    """A contraction by the parts of its axes. ``out_roles``: of the output's dims; None where results are written
    element by element through a buffer of their own (``joined``: m and n hold all of their axes)."""

    parts: Mapping[str, Part]
    outer: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]
    left: Operand
    right: Operand
    out: str
    out_dtype: str
    out_roles: tuple[str, ...] | None
    stages: tuple[Stage, ...]
    """The elementwise stages behind the contraction."""

    @property
    def joined(self) -> bool:
        return self.out_roles is None

    @property
    def holds_partial(self) -> bool:
        """Whether partial sums can be kept where results are written."""
        return self.joined or plain.holds_partial(self.out_dtype)

    @property
    def groups(self) -> Mapping[str, tuple[str, ...]]:
        outer = {"b": self.outer} if self.outer else {}
        return {**outer, "m": self.m, "n": self.n, "k": self.k}

    @property
    def roles(self) -> Mapping[str, str]:
        """The role of each axis of the program."""
        of: dict[str, list[str]] = {}
        for role, group in self.groups.items():
            for name in group:
                of.setdefault(self.parts[name].axis, []).append("batch" if role == "b" else role)
        return {axis: " and ".join(dict.fromkeys(roles)) for axis, roles in of.items()}

    def by_role(self, extents: Extents) -> Extents:
        """Extents of the program's axes by their groups here."""

        def size(name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            part = self.parts[name]
            whole = np.asarray(extents[part.axis], np.int64)
            return whole if part.extent.constant is None else np.full_like(whole, part.extent.constant)

        return {role: np.asarray(math.prod(size(name) for name in group)) for role, group in self.groups.items()}

    # What the code and the theory of x86_contraction ask.
    @property
    def batch(self) -> str | None:
        return "b" if self.outer else None

    @property
    def epilogue(self) -> tuple[Stage, ...]:
        return () if self.joined else self.stages

    @property
    def right_is_constant(self) -> bool:
        return self.right.kind == "packed"

    @property
    def right_is_kn(self) -> bool:
        return self.right.kind != "view" or self.right.roles[-1] == "n"

    @property
    def pack_of_dots(self) -> int | None:
        return None

    @property
    def left_dtype(self) -> str:
        return self.left.dtype

    @property
    def right_dtype(self) -> str:
        return self.right.dtype

    def dots(self, hardware: Hardware) -> Mapping[int, DotProduct]:
        return {FMA.group: FMA}

    @property
    def dynamic(self) -> frozenset[str]:
        """The roles whose extents depend on symbols."""
        return frozenset(
            role
            for role, group in self.groups.items()
            if any(self.parts[name].extent.constant is None for name in group)
        )


@lru_cache(maxsize=1024)
def forms(workload: Workload) -> tuple[Form, ...] | Refused:
    """The ways to group a workload's axes: where results are stored as they are computed, and, if that leaves axes out
    of m or n, where all are in. Or why there is none."""
    first, *rest = workload.program.stages
    if not isinstance(plain.match(workload), Refused):
        return Refused("x86_contraction takes it")
    if first.reducer != "sum" or not first.axes:
        return Refused("the first stage is no sum that leaves an axis")
    reason = _types_problem(workload, first) or _stages_problem(workload, first, rest)
    return Refused(reason) if reason else _grouped(workload, first, tuple(rest))


def forms_of(workload: Workload) -> tuple[Form, ...]:
    """The groupings of a workload that the rule takes. Raises ValueError for another."""
    found = forms(workload)
    if isinstance(found, Refused):
        raise ValueError(f"{workload}: {found.reason}")
    return found


def form_of(workload: Workload, joined: bool) -> Form:
    """The one that ``joined`` asks for, which must be there."""
    return next(form for form in forms_of(workload) if form.joined == joined)


def _types_problem(workload: Workload, first: Stage) -> str | None:
    """What is not computed in float32, or not of a dtype that is widened to it as it is read."""
    for tensor in workload.tensors.values():
        if tensor.dtype not in FMA.right:
            return f"{tensor.name} is {tensor.dtype}, none of {', '.join(sorted(FMA.right))}"
    if workload.program.index_tensors:
        return f"{', '.join(sorted(workload.program.index_tensors))} is an index"
    types = workload.element_types
    return None if types.reduced_type(first) == DTYPE else f"sums are not {DTYPE}"


def _stages_problem(workload: Workload, first: Stage, rest: Sequence[Stage]) -> str | None:
    """Why the stages behind the contraction are not a chain of elementwise ones."""
    before = first.tensor
    for stage in rest:
        if stage.reducer or stage.axes != first.axes:
            return f"stage {stage.tensor} is not elementwise over the output"
        for read in reads(stage.body):
            if read.tensor in workload.program.stage and (read.tensor != before or plain_axes(read) != first.axes):
                return f"stage {stage.tensor} reads {read.tensor} other than element by element"
        before = stage.tensor
    padded = {name for name, _ in workload.padding} & set(workload.program.stage)
    if padded:
        return f"{', '.join(sorted(padded))} is padded"
    return None if workload.program.outputs == (before,) else "an intermediate is an output, too"


def _grouped(workload: Workload, first: Stage, rest: tuple[Stage, ...]) -> tuple[Form, ...] | Refused:
    parts = parts_of(workload, first)
    out, factors = names_of(parts, first.axes), _factors(first.body)
    seed = next((name for name in reversed(out) if parts[name].extent.constant != 1), out[-1])
    needs = {factor: needed(factor, parts) for factor in factors}
    right = tuple(factor for factor in factors if seed in needs[factor])
    left = tuple(factor for factor in factors if seed not in needs[factor])
    of_left, of_right = (frozenset().union(*(needs[f] for f in side)) & set(out) for side in (left, right))
    if of_left | of_right != set(out):
        return Refused("the output has axes that no factor depends on")
    rows, columns = (tuple(n for n in out if n in a - b) for a, b in ((of_left, of_right), (of_right, of_left)))
    if not rows or not columns:
        return Refused("there are no axes of the output on which one operand alone depends, of either")
    steps = ordered_steps(workload, first, left, right)

    def form(m: tuple[str, ...], n: tuple[str, ...], joined: bool) -> Form:
        outer = tuple(name for name in out if name not in (*m, *n))
        groups = {"m": m, "n": n, "k": steps}
        roles = None if joined else merged(out, groups)
        x, y = operand_of(workload, parts, left, groups, "m"), operand_of(workload, parts, right, groups, "n")
        written = workload.program.outputs[0]
        return Form(parts, outer, m, n, steps, x, y, written, workload.tensors[written].dtype, roles, rest)

    split = form(_last_run(out, rows), _suffix(out, columns), False)
    size = math.prod(parts[name].extent.constant or FEWEST_COLUMNS for name in split.n)
    is_whole = (split.m, split.n) == (rows, columns)
    kept = (split,) if _is_direct(workload, split) and (size >= FEWEST_COLUMNS or is_whole) else ()
    return (*kept, *(() if is_whole and kept else (form(rows, columns, True),)))


def _factors(expr: Expr) -> tuple[Expr, ...]:
    if isinstance(expr, Binary) and expr.operator == "*":
        return (*_factors(expr.left), *_factors(expr.right))
    return (expr,)


def _suffix(out: tuple[str, ...], names: Sequence[str]) -> tuple[str, ...]:
    """The last parts of the output, as far as they are among ``names``; one of a single element may be any."""
    kept: list[str] = []
    for name in reversed(out):
        if name not in names:
            break
        kept.append(name)
    return tuple(reversed(kept)) or (names[-1],)


def _last_run(out: tuple[str, ...], names: Sequence[str]) -> tuple[str, ...]:
    """The last of the runs of neighbours among ``names``."""
    last = max(out.index(name) for name in names)
    first = last
    while first > 0 and out[first - 1] in names:
        first -= 1
    return out[first : last + 1]


# -- what is behind -------------------------------------------------------------------------------------------------
def plain_axes(read: Read) -> tuple[str, ...] | None:
    """The axes of a read at nothing but axes."""
    return axes_of_read(read) if is_plain(read) else None


def viewed(workload: Workload, form: Form, read: Read, groups: Mapping[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    """The roles of the dims of a tensor that is read element by element along the output; None for another."""
    dims = dims_of(workload, form.parts, read)
    if dims is None or plain_axes(read) is None:
        return None
    roles = merged([name for dim in dims for name in dim], groups)
    return roles if roles is not None and ("n" not in roles or roles[-1] == "n") else None


def _is_direct(workload: Workload, form: Form) -> bool:
    """Whether results can be written where they belong, through the epilogue, vector by vector."""
    if form.out_roles is None or form.out_roles[-1] != "n":
        return False
    groups = {"m": form.m, "n": form.n}
    for stage in form.stages:
        if any(isinstance(node, Axis | Extent | Cast) for node in values(stage.body)):
            return False
        for read in reads(stage.body):
            if read.tensor not in workload.program.stage and viewed(workload, form, read, groups) is None:
                return False
    return True
