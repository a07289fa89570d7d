"""The rule for contractions of any form on x86 vector units: convolutions, einsums, products of several factors.

Axes of the program are grouped to m, n and k (``pattern``), and what a group is made of is walked as one flattened
index. Operands that are not matrices as they lie are gathered, block by block, into what the register tile of
x86_contraction reads (im2col); a constant one is packed once. A micro-kernel has the axes of x86_contraction, and:

========  =====================================================================================================
``join``  1: m and n hold all of their axes, results go through a buffer; 0: they hold those that lie together in the
          output, which is written in place, and others are walked outside
========  =====================================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.errors import IllegalKernel
from tuner.program.target import Target
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.rules._base import Extents, Refused
from tuner.rules.layout import Layout, MatrixLayout
from tuner.rules.space import Axis, MicroKernel, SearchSpace
from tuner.rules.x86_contraction.rule import WIDEST_BLOCK, canonicalised, check, ragged_axes, thread_axes, tile_axes
from tuner.rules.x86_gathered import prior
from tuner.rules.x86_gathered.operands import Operand, dims_of
from tuner.rules.x86_gathered.pattern import Form, form_of, forms, forms_of


class X86Gathered:
    """See the module's text for the axes; ``prior`` for the theory, ``emit`` for the code."""

    name = "x86_gathered"
    version = 1
    is_fallback = False

    def match(self, workload: Workload, target: Target) -> Mapping[str, str] | Refused:
        if target.kind != "llvm":
            return Refused(f"{target.kind} is not a CPU that LLVM generates code for")
        found = forms(workload)
        return found if isinstance(found, Refused) else found[0].roles

    def workspace_bytes(self, task: SearchTask) -> int:
        """Of a right operand that is gathered as a whole: all else is of one block."""
        form = forms_of(task.workload)[-1]
        if form.right_is_constant or form.left.kind != "gathered":
            return 0
        sizes = form.by_role({axis: np.array([size]) for axis, size in _largest(task).items()})
        return int(4 * task.threads * sizes["k"][0] * sizes["n"][0])

    def space(self, task: SearchTask) -> SearchSpace:
        hardware, form = task.known_target.hardware, forms_of(task.workload)[0]
        found = forms_of(task.workload)
        axes = (
            *tile_axes(_steps(form)),
            Axis("rows", "rows of a block are gathered", _rows(form)),
            *ragged_axes(any("n" in form.dynamic for form in found)),
            Axis("pack", "panels are gathered at each call", _packings(found)),
            *thread_axes(task.threads, any(form.outer for form in found)),
            Axis("join", "m and n hold all of their axes", tuple(sorted(int(form.joined) for form in found))),
        )

        # Once: to look a workload up takes longer than all the rest of a check.
        of_join = {int(form.joined): form for form in found}

        def legal(kernel: MicroKernel) -> None:
            own = of_join[kernel["join"]]
            check(kernel, own, task.threads, hardware)
            if kernel["kc"] and not own.holds_partial:
                raise IllegalKernel(f"kc={kernel['kc']}: an output of {own.out_dtype} needs kc=0, or join=1")

        def canonical(values: Mapping[str, int]) -> dict[str, int]:
            own = of_join[values["join"]]
            result = canonicalised(values if own.holds_partial else {**values, "kc": 0}, own)
            return result if own.outer else {**result, "tb": 1}

        return SearchSpace(self.name, self.version, axes, check=legal, canonicalise=canonical)

    def safe_kernel(self, task: SearchTask) -> MicroKernel:
        """A square-ish tile, three quarters of the registers, k in chunks that stay in cache."""
        space, form = self.space(task), forms_of(task.workload)[0]
        wide = task.known_target.hardware.vector_registers >= 32
        choices = {axis.name: axis.choices for axis in space.axes}
        pack = choices["pack"][-1] if form.left.kind == "gathered" else choices["pack"][0]
        values = {"mr": 8 if wide else 4, "nv": 3 if wide else 2, "mb": WIDEST_BLOCK if pack == 1 else 8, "ku": 1}
        values |= {"kc": 256 if 256 in choices["kc"] else 0, "near": 0, "ahead": 0, "fetch": 0, "tail": 0, "edge": 0}
        values |= {"rows": choices["rows"][-1], "pack": pack, "join": int(form.joined)}
        values |= {"tb": task.threads, "tn": 1} if form.outer else {"tb": 1, "tn": task.threads}
        if values["rows"] and pack == 1:
            values["rows"] = 0
        if not form.holds_partial:
            values["kc"] = 0
        return space.kernel(values)

    def prior_latency_s(
        self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents
    ) -> NDArray[np.float64]:
        return prior.latency_s(task, kernels, extents)

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        return prior.features(task, kernels, extents)

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        form = form_of(task.workload, bool(kernel["join"]))
        width = kernel["nv"] * task.known_target.hardware.lanes()
        sides = ((form.left, form.m, 1), (form.right, form.n, width))
        return {
            operand.tensor: _layout(task.workload, form, operand, rows, panel)
            for operand, rows, panel in sides
            if operand.kind == "packed"
        }

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        from tuner.rules.x86_gathered.emit import emit  # noqa: PLC0415 - the one import that needs TVM

        return emit(task, kernel, self.layouts(task, kernel), name)


def _largest(task: SearchTask) -> Mapping[str, int]:
    return task.workload.axis_sizes(task.largest_dims)


def _steps(form: Form) -> int | None:
    """How many steps of k there are; None if that is dynamic."""
    result = 1
    for name in form.k:
        size = form.parts[name].extent.constant
        if size is None:
            return None
        result *= size
    return result


def _rows(form: Form) -> tuple[int, ...]:
    """Choices of ``rows``."""
    return {"gathered": (1,), "view": (0, 1), "packed": (0,)}[form.left.kind]


def _packings(found: Sequence[Form]) -> tuple[int, ...]:
    """Choices of ``pack``. A gathered panel that rows share is gathered once; all panels at the start where the rows of
    a block are gathered, too."""
    form = found[0]
    if form.right_is_constant:
        return (0,)
    again = form.left.kind == "gathered"
    if form.right.kind == "view" and form.right_is_kn and not any(form.joined for form in found):
        return (0, 2) if again else (0, 1, 2)
    return (2,) if again else (1,)


def _layout(
    workload: Workload, form: Form, operand: Operand, rows: tuple[str, ...], panel: int
) -> MatrixLayout:  # fmt: skip
    read = next(read for read in workload.program.reads if read.tensor == operand.tensor)
    dims = dims_of(workload, form.parts, read)
    assert dims is not None
    place = {name: at for at, name in enumerate(name for names in dims for name in names)}
    sizes = tuple(tuple(form.parts[name].extent.constant or 0 for name in names) for names in dims)
    batch, own, steps = (tuple(place[name] for name in group) for group in (operand.roles[:-2], rows, form.k))
    return MatrixLayout(sizes, batch, own, steps, panel)
