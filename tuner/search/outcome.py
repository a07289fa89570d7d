"""What a search came to, as every view of it says: a weighted time, and how many times as fast as others that is.

One statistic: of a kernel at a shape the median of its readings at one speed of the device (tuner.search.observations).
One set of shapes for all that is compared: see ``tuner.search.progress.objectives``. Command line, events, summaries,
pages and reports show these figures and compute none of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SO_FAR = "best so far in the search"
LIBRARY = "library, timed at the end"


@dataclass(frozen=True, slots=True)
class Outcome:
    """``objective_s``: the weighted time of all instances, in seconds, of what ``label`` names. None: not known.

    ``known`` of ``searches`` search tasks are in it: one, unless it is the total of a job.
    """

    label: str = SO_FAR
    objective_s: float | None = None
    speedup_vs_default: float | None = None
    speedup_vs_numpy: float | None = None
    known: int = 1
    searches: int = 1

    def to_json(self) -> dict[str, Any]:
        names = ("label", "objective_s", "speedup_vs_default", "speedup_vs_numpy")
        return {name: getattr(self, name) for name in names}

    def gains(self) -> list[tuple[float, str]]:
        """The speed-ups that are known, each with what it is over."""
        result = ((self.speedup_vs_default, "the default"), (self.speedup_vs_numpy, "NumPy's BLAS"))
        return [(gain, what) for gain, what in result if gain is not None]

    def __str__(self) -> str:
        """``1.18x over the default, 1.07x over NumPy's BLAS (library, timed at the end)``; empty if none is known."""
        gains = ", ".join(f"{gain:.2f}x over {what}" for gain, what in self.gains())
        return f"{gains} ({self.label})" if gains else ""


def total_of(parts: Sequence[tuple[int, Outcome]]) -> Outcome:
    """The outcome of several searches together, each counted as often as its workload occurs.

    It is of the libraries once all of them are. A speed-up is known if it is for each search that has a time.
    """
    if len(parts) == 1:
        return parts[0][1]
    timed = [(count * outcome.objective_s, outcome) for count, outcome in parts if outcome.objective_s]
    return Outcome(
        LIBRARY if timed and all(outcome.label == LIBRARY for _, outcome in parts) else SO_FAR,
        sum(time for time, _ in timed) if timed else None,
        _ratio([(time, outcome.speedup_vs_default) for time, outcome in timed]),
        _ratio([(time, outcome.speedup_vs_numpy) for time, outcome in timed]),
        len(timed),
        len(parts),
    )


def _ratio(gains: Sequence[tuple[float, float | None]]) -> float | None:
    """The time of all others over that of ours: speed-ups weighted by our times."""
    known = [(time, gain) for time, gain in gains if gain]
    if not known or len(known) < len(gains):
        return None
    return sum(time * gain for time, gain in known) / sum(time for time, _ in known)
