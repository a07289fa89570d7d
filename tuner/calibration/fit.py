"""Fitting the rates of a core to measurements of kernels whose time theory computes from them.

The most probable rates (MAP): logarithms of measured times have a spread SCATTER around theory's, with the tails of
Huber's loss (P. J. Huber, Robust Estimation of a Location Parameter, 1964), logarithms of rates a normal spread SPREAD
around those of a centre. Found by Gauss-Newton steps with Levenberg's damping (K. Levenberg, 1944) and a numeric
Jacobian. What no measurement tells of stays as in the centre.

The clock is fitted with the rest. What bounds it is the work of the multiply-add units, of which it is known how many a
cycle they do; where these units bound nothing, only the ratios of rates to the clock are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tuner.program.job.task import SearchTask
from tuner.program.target.rates import Rates
from tuner.schedule import Extents, estimate_s, extents_of
from tuner.schedule.space import MicroKernel

Floats = NDArray[np.float64]
SPREAD = 0.7
"""Standard deviation of the logarithm of a rate between devices: twice as much or half as much is usual."""
SCATTER = 0.05
"""Standard deviation of the logarithm of a measured time around theory's."""
TAIL = 1.345
"""Huber's threshold, in SCATTER, for 95 % efficiency on normal errors: a measurement further off pulls no stronger."""
STEPS, DAMPING, MAX_DAMPING, SMALLEST_GAIN = 40, 10.0, 1e9, 1e-3
FEW = (0.0, -1.0, -2.0, 1.0, 2.0)
"""Where a fit without a clock begins, in SPREAD; the first of several that are alike."""
DIFFERENCE = 0.01
"""The step, in logarithms, of the Jacobian's differences: theory has kinks, and a smaller step would not span them."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Kernels of one task, measured at some shapes: ``latency_s`` [kernels, shapes], NaN where there is none."""

    task: SearchTask
    kernels: tuple[MicroKernel, ...]
    shapes: tuple[Mapping[str, int], ...]
    latency_s: Floats

    @property
    def count(self) -> int:
        return int(np.isfinite(self.latency_s).sum())


def fitted(observed: Sequence[Observed], centre: Rates, names: Sequence[str], scatter: float = SCATTER) -> Rates:
    """The rates that explain best what was observed; the same for the same measurements.

    ``names``: those that are fitted, around ``centre``. ``scatter``: of the logarithm of a time around theory's. Raises
    ValueError if nothing was measured.
    """
    problem = _Problem(observed, centre, names, scatter)
    # The clock takes all times by one factor: what is left to find is near.
    at = problem.at_clock() if "clock_hz" in names else problem.at_best_of_few()
    damping, cost = 1.0, problem.cost(at)
    for _ in range(STEPS):
        curvature, downhill = problem.normal_equations(at)
        while damping <= MAX_DAMPING:
            moved = at + np.linalg.solve(curvature + damping * np.eye(len(at)), downhill)
            if (found := problem.cost(moved)) < cost:
                break
            damping *= DAMPING
        else:
            break
        gain, at, cost, damping = cost - found, moved, found, damping / DAMPING
        if gain < SMALLEST_GAIN * cost:
            break
    return problem.rates(at)


def clock_alone(observed: Sequence[Observed], centre: Rates) -> Rates:
    """The rates of ``centre`` at the clock that fits best."""
    problem = _Problem(observed, centre, ("clock_hz",))
    return problem.rates(problem.at_clock())


def residuals(observed: Sequence[Observed], rates: Rates) -> Floats:
    """The logarithm of the measured time over theory's, for each measurement."""
    return _Problem(observed, rates, ()).residuals_of(rates)


def errors(observed: Sequence[Observed], rates: Rates) -> Floats:
    """How far theory is off at each measurement, as a share of the measured time."""
    return np.asarray(np.abs(np.expm1(-residuals(observed, rates))))


@dataclass(frozen=True, slots=True)
class _Part:
    """What was observed of one task: ``known`` [kernels, shapes] says where."""

    task: SearchTask
    kernels: tuple[MicroKernel, ...]
    extents: Extents
    known: NDArray[np.bool_]


class _Problem:
    """Logarithms of rates over those of ``centre``, [names], and what theory makes of them."""

    def __init__(
        self, observed: Sequence[Observed], centre: Rates, names: Sequence[str], scatter: float = SCATTER
    ) -> None:
        self._centre, self._names, self._scatter = centre, names, scatter
        known = [np.isfinite(each.latency_s) for each in observed]
        if not any(each.any() for each in known):
            raise ValueError("nothing was measured that rates could be fitted to")
        self._parts = [
            _Part(each.task, each.kernels, extents_of(each.task.workload, each.shapes), at)
            for each, at in zip(observed, known, strict=True)
        ]
        latencies = [each.latency_s[at] for each, at in zip(observed, known, strict=True)]
        self._log_s = np.log(np.concatenate(latencies))

    def rates(self, at: Floats) -> Rates:
        factors = dict(zip(self._names, np.exp(at).tolist(), strict=True))
        return replace(self._centre, **{name: getattr(self._centre, name) * by for name, by in factors.items()})

    def residuals(self, at: Floats) -> Floats:
        return self.residuals_of(self.rates(at))

    def residuals_of(self, rates: Rates) -> Floats:
        """Logarithms of measured times over theory's."""
        theory = [estimate_s(part.task.at_rates(rates), part.kernels, part.extents)[part.known] for part in self._parts]
        return np.asarray(self._log_s - np.log(np.concatenate(theory)))

    def cost(self, at: Floats) -> float:
        """Minus the logarithm of the probability, but for a constant."""
        off = np.abs(self.residuals(at)) / self._scatter
        huber = np.where(off <= TAIL, 0.5 * off**2, TAIL * (off - 0.5 * TAIL))
        return float(huber.sum() + 0.5 * (at**2).sum() / SPREAD**2)

    def at_clock(self) -> Floats:
        """The rates of the centre, but for the clock: as fast as the median of the measurements says."""
        at = np.zeros(len(self._names))
        at[self._names.index("clock_hz")] = -np.median(self.residuals(at))
        return at

    def at_best_of_few(self) -> Floats:
        """One rate after the other at the best of some: where another one binds, no slope says which way to go."""
        at = np.zeros(len(self._names))
        for unit in np.eye(len(at)):
            at = min((at + step * SPREAD * unit for step in FEW), key=self.cost)
        return at

    def normal_equations(self, at: Floats) -> tuple[Floats, Floats]:
        """The curvature [names, names] and the descent [names] of the cost, each measurement weighted as Huber's loss
        has it."""
        residuals = self.residuals(at)
        slopes = self._slopes(at, residuals)
        weights = 1 / np.maximum(1.0, np.abs(residuals) / self._scatter / TAIL) / self._scatter**2
        curvature = slopes.T @ (weights[:, None] * slopes) + np.eye(len(at)) / SPREAD**2
        return curvature, np.asarray(slopes.T @ (weights * residuals) - at / SPREAD**2)

    def _slopes(self, at: Floats, residuals: Floats) -> Floats:
        """[measurements, names]: what theory's logarithm grows by."""
        moved = [self.residuals(at + DIFFERENCE * unit) for unit in np.eye(len(at))]
        return np.stack([(residuals - each) / DIFFERENCE for each in moved], axis=1)
