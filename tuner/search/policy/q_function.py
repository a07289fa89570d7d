"""What a step along an axis is worth: a linear Q function, fitted to all steps between kernels that were measured.

A state is a kernel at an instance, an action a step of one axis up or down. The reward is the log of the time before
over the time after, so that a path is worth what its ends differ by. A step is expected to be worth
``direction * (a + b . position + c . shape) + d``, with a row of a, b, c and d for each axis: the gradient of a
quadratic form of the positions, and what the axis costs either way.

Fitted Q iteration (Ernst, Geurts and Wehenkel, JMLR 2005): a few times over the values are fitted, by ridge regression,
to ``reward + discount * max(0, best value after it)``. The 0 is for staying there. It follows from what was measured
alone, so nothing of it is kept over a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.schedule.space import KernelSpace, MicroKernel, Step

Floats = NDArray[np.float64]

SWEEPS = 4
RIDGE = 0.3
"""The weight of the squares of all weights, beside the squared errors in log seconds."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One step that was measured at both ends, at the instance with that index."""

    kernel: MicroKernel
    step: Step
    after: MicroKernel
    instance: int
    reward: float


class QFunction:
    """A Q function of one rule's kernels. ``shapes``: [instances, dims], each dim scaled to 0..1 over the instances."""

    def __init__(self, space: KernelSpace, shapes: Floats, discount: float) -> None:
        self._space, self._shapes, self._discount = space, shapes, discount
        self._weights: Floats | None = None

    def fit(self, transitions: Sequence[Transition]) -> None:
        """Replace what was fitted before."""
        self._weights = None
        if not transitions:
            return
        inputs = np.concatenate([self._features(each.kernel, [each.step], each.instance) for each in transitions])
        rewards = np.array([each.reward for each in transitions])
        following = [self._features(t.after, list(self._space.steps(t.after)), t.instance) for t in transitions]
        square = inputs.T @ inputs + RIDGE * np.eye(inputs.shape[1])
        self._weights = np.linalg.solve(square, inputs.T @ rewards)
        for _ in range(SWEEPS):
            values = np.array([max(0.0, float((rows @ self._weights).max(initial=0.0))) for rows in following])
            self._weights = np.linalg.solve(square, inputs.T @ (rewards + self._discount * values))

    def values(self, kernel: MicroKernel, steps: Sequence[Step], instance: int) -> Floats:
        """[steps]: log seconds that each is expected to save, now and later; 0 before anything was fitted."""
        if self._weights is None:
            return np.zeros(len(steps))
        return np.asarray(self._features(kernel, steps, instance) @ self._weights)

    def _features(self, kernel: MicroKernel, steps: Sequence[Step], instance: int) -> Floats:
        """[steps, axes * (2 + axes + dims)]"""
        names = [axis.name for axis in self._space.axes_of(kernel)]
        state = np.array([1.0, *self._space.position(kernel), *self._shapes[instance]])
        rows = np.zeros((len(steps), len(names), len(state) + 1))
        for row, (axis, direction) in enumerate(steps):
            rows[row, names.index(axis)] = [*(direction * state), 1.0]
        return rows.reshape(len(steps), -1)
