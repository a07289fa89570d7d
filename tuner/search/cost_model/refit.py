"""Rates of theory, fitted again to what a search has measured itself.

A device that was never calibrated, or was under load while it was, has theory led by rates that are wrong by factors.
The residual would have to learn what that does to every kernel at every shape; some two dozen readings of a few kernels
tell the rates themselves (tuner/calibration/fit.py), and theory is then right about kernels that nothing is near to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tuner.calibration.fit import SCATTER, Observed, fitted, residuals
from tuner.program.target.rates import NUMBERS, Rates

Floats = NDArray[np.float64]
FIRST_PAIRS = 24
GROWTH = 2.0
"""The number of pairs at which rates are fitted, and the factor by which it grows until they are fitted again."""
MAX_PAIRS = 1_000
"""A fit of more changes nothing and takes long."""
ROUNDS = 2
"""Fits, each with the scatter that the one before it left."""
MIN_GAIN = 0.9
"""What must be left of the error for rates to be taken: less may be chance."""
NAMES = tuple(name for name in NUMBERS if name != "multiply_adds")
"""The rates that are fitted. What a core issues in a cycle is left to calibrations, which measure it by itself: the
readings of one search cannot tell it from the clock."""
MEDIAN_SPREAD = 0.6745
"""The median of the absolute value of a standard normal variable."""


def is_due(pairs: int, last: int) -> bool:
    """Whether rates that were last fitted to ``last`` pairs, 0 for never, are to be fitted to these."""
    return pairs >= FIRST_PAIRS and pairs >= GROWTH * last and pairs <= MAX_PAIRS


def refitted(observed: Sequence[Observed], now: Rates, centre: Rates) -> Rates:
    """The rates that explain best what was observed, if those of one half of the kernels explain the other half clearly
    better than ``now`` does; else ``now``. ``centre``: what they are likely to be near to."""
    halves = [[_half(each, part) for each in observed] for part in (0, 1)]
    usable = [[each for each in half if each.count] for half in halves]
    if not all(usable):
        return now
    before = np.concatenate([_scatter_free(half, now) for half in usable])
    after = np.concatenate(
        [_scatter_free(half, _fitted(other, centre)) for half, other in zip(usable, reversed(usable), strict=True)]
    )
    return _fitted(observed, centre) if np.median(after) < MIN_GAIN * np.median(before) else now


def _half(observed: Observed, part: int) -> Observed:
    """Every second kernel."""
    return replace(observed, kernels=observed.kernels[part::2], latency_s=observed.latency_s[part::2])


def _scatter_free(observed: Sequence[Observed], rates: Rates) -> Floats:
    """How far theory is off (log latency), by measurement; a factor that all share is left to the residual."""
    off = residuals(observed, rates)
    return np.asarray(np.abs(off - np.median(off)))


def _fitted(observed: Sequence[Observed], centre: Rates) -> Rates:
    """Rates fitted with the scatter that these measurements have around theory, which is larger than a calibration's
    for other rules than products of matrices, and on noisy devices."""
    rates, scatter = centre, float("inf")
    for _ in range(ROUNDS):
        left = float(np.median(_scatter_free(observed, rates))) / MEDIAN_SPREAD
        scatter = max(SCATTER, min(scatter, left))
        rates = fitted(observed, centre, NAMES, scatter)
    return rates
