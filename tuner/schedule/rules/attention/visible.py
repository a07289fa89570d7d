"""How many columns a row of an attention sees, in the mean."""

from __future__ import annotations

from typing import Any

import numpy as np

from tuner.schedule.loops.estimates import Floats
from tuner.schedule.rule import Extents
from tuner.schedule.rules.attention.chain import Chain

UNKNOWN_SHARE = 0.5
"""Of the columns, where data that nothing is known of says which a row sees."""
SAMPLED_ROWS = 8
"""At which the visible columns are counted."""


def visible(chain: Chain, extents: Extents) -> Floats:
    """[shapes] columns that the mask leaves visible to a row, in the mean."""
    return np.minimum(_within_bounds(chain, extents), _within_limits(chain, extents))


def _of(chain: Chain, name: str, extents: Extents) -> Floats:
    return np.asarray(extents[chain.axis[name]], np.float64)


def _within_limits(chain: Chain, extents: Extents) -> Floats:
    """What data leaves visible, of which only sizes are known: as many offsets part the columns into sequences of
    one length; else half of them is seen."""
    columns = _of(chain, "j", extents)
    reduced = [axis for stage in chain.positions for axis in stage.reduce_axes]
    if reduced:
        return np.asarray(columns / np.maximum(np.asarray(extents[reduced[0]], np.float64) - 1.0, 1.0))
    return columns * UNKNOWN_SHARE if chain.mask.limits else columns


def _within_bounds(chain: Chain, extents: Extents) -> Floats:
    rows, columns = _of(chain, "i", extents), _of(chain, "j", extents)
    if not chain.mask.bounds:
        return columns
    nothing, total = np.zeros(len(rows)), np.zeros(len(rows))
    values: dict[str, Any] = {f"extent({name})": np.asarray(size, np.float64) for name, size in extents.items()}
    values |= dict.fromkeys(chain.batch, nothing)
    for sample in range(SAMPLED_ROWS):
        values["i"] = np.floor(rows * (2 * sample + 1) / (2 * SAMPLED_ROWS))
        first, end = nothing, columns
        for bound in chain.mask.bounds:
            limit = np.asarray(bound.limit.evaluate(values), np.float64)
            first, end = (first, np.minimum(end, limit + 1)) if bound.is_upper else (np.maximum(first, limit), end)
        total += np.maximum(end - first, 0.0)
    return total / SAMPLED_ROWS
