"""What theory expects of contractions of any form: x86_contraction's estimate, and what gathering and scattering add.

The constants are cycles for each element, on one core of a Zen 4 server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.program.task import SearchTask
from tuner.rules._base import Extents
from tuner.rules.space import MicroKernel
from tuner.rules.x86_contraction import prior as plain
from tuner.rules.x86_gathered.operands import is_contiguous
from tuner.rules.x86_gathered.pattern import Form, form_of

Floats = NDArray[np.float64]
BY_VECTOR, BY_ELEMENT, SCATTERED = 0.3, 4.0, 0.5


def latency_s(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> Floats:
    """[kernels, shapes] seconds."""

    def of(form: Form, some: Sequence[MicroKernel]) -> Floats:
        sizes = form.by_role(extents)
        base = plain.latency_s(task.known_target.hardware, task, some, extents, contraction=form)
        return base + _moving_cycles(task, form, some, sizes) / plain.CONSTANTS.clock_hz

    return _by_form(task, kernels, of)


def features(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
    """[kernels, shapes, features]: those of x86_contraction, and the share of moving elements."""

    def of(form: Form, some: Sequence[MicroKernel]) -> Floats:
        sizes = form.by_role(extents)
        base = plain.features(task.known_target.hardware, task, some, extents, contraction=form)
        moving = np.log2(_moving_cycles(task, form, some, sizes) + 1.0)
        return np.concatenate([base, moving[:, :, None]], axis=2)

    return _by_form(task, kernels, of).astype(np.float32)


def _by_form(
    task: SearchTask, kernels: Sequence[MicroKernel], of: Callable[[Form, Sequence[MicroKernel]], Floats]
) -> Floats:  # fmt: skip
    """What ``of`` says of the kernels of each form, in the order of the kernels."""
    joins = np.array([kernel["join"] for kernel in kernels])
    own = [[kernel for kernel in kernels if kernel["join"] == join] for join in (0, 1)]
    answers = {join: of(form_of(task.workload, bool(join)), some) for join, some in enumerate(own) if some}
    result = np.empty((len(kernels), *next(iter(answers.values())).shape[1:]))
    for join, answer in answers.items():
        result[joins == join] = answer
    return result


def _moving_cycles(task: SearchTask, form: Form, kernels: Sequence[MicroKernel], sizes: Extents) -> Floats:
    """[kernels, shapes] cycles that gathering and scattering take."""
    one = np.ones((len(kernels), len(sizes["m"])))
    b, m, n, k = (sizes.get(role, 1) * one for role in "bmnk")
    mr = np.array([[float(kernel["mr"])] for kernel in kernels])
    mb = np.array([[float(kernel["mb"])] for kernel in kernels])
    cycles = np.zeros_like(m * n)
    if form.left.kind == "gathered":
        cycles += b * m * k * (BY_VECTOR if is_contiguous(form.left.factors, form.k[-1]) else BY_ELEMENT)
    if form.right.kind == "gathered":
        blocks = np.maximum(np.ceil(m / (mr * mb)), 1.0)
        each = BY_VECTOR if is_contiguous(form.right.factors, form.parts[form.n[-1]].axis) else 4 * BY_VECTOR
        cycles += b * blocks * n * k * each
    if form.joined:
        cycles += b * m * n * SCATTERED
    return cycles / task.threads
