"""What a search came to, as every view of it says: a weighted time, and how many times as fast as others that is.

While it runs, one statistic: of a kernel at a shape the median of its readings at one speed of the device
(tuner.search.observations), and one set of shapes for all that is compared (tuner.search.progress.objectives). At the
end the final comparison (tuner.search.verdict), which has intervals. Command line, events, summaries, pages and
reports show these figures and compute none of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.search.verdict import DEFAULT, NUMPY, FinalComparison, Ratio, combined

SO_FAR = "best so far in the search"
LIBRARY = "library, timed at the end"
IN_TURNS = "library, timed in turns with them"


@dataclass(frozen=True, slots=True)
class Outcome:
    """``objective_s``: the weighted time of all instances, in seconds, of what ``label`` names. None: not known.

    ``ratios`` are what is known of that beside others, ``cautions`` what makes them worth less. ``known`` of
    ``searches`` search tasks are in it: one, unless it is the total of a job.
    """

    label: str = SO_FAR
    objective_s: float | None = None
    ratios: tuple[Ratio, ...] = ()
    cautions: tuple[str, ...] = ()
    known: int = 1
    searches: int = 1

    @staticmethod
    def so_far(label: str, objective_s: float | None, over_default: float | None, over_numpy: float | None) -> Outcome:
        """Of single readings, without intervals."""
        known = ((DEFAULT, over_default), (NUMPY, over_numpy))
        return Outcome(label, objective_s, tuple(Ratio(over, ratio) for over, ratio in known if ratio is not None))

    @staticmethod
    def final(comparison: FinalComparison) -> Outcome:
        return Outcome(IN_TURNS, comparison.objective_s, comparison.ratios, comparison.cautions)

    @property
    def speedup_vs_default(self) -> float | None:
        return self._over(DEFAULT)

    @property
    def speedup_vs_numpy(self) -> float | None:
        return self._over(NUMPY)

    def ratio(self, over: str) -> Ratio | None:
        return next((ratio for ratio in self.ratios if ratio.over == over), None)

    def _over(self, over: str) -> float | None:
        known = self.ratio(over)
        return known.ratio if known else None

    def to_json(self) -> dict[str, Any]:
        names = ("label", "objective_s", "speedup_vs_default", "speedup_vs_numpy")
        ratios = [ratio.to_json() for ratio in self.ratios]
        return {name: getattr(self, name) for name in names} | {"ratios": ratios, "cautions": list(self.cautions)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Outcome:
        """Read what ``to_json`` of this version or an older one wrote, without ratios."""
        if "ratios" not in data:
            names = ("label", "objective_s", "speedup_vs_default", "speedup_vs_numpy")
            return Outcome.so_far(*(data[name] for name in names))
        return Outcome(
            data["label"], data["objective_s"], tuple(map(Ratio.from_json, data["ratios"])), tuple(data["cautions"])
        )

    @property
    def caution(self) -> str:
        """What to be wary of, as the end of a sentence; empty if nothing is known of."""
        return "".join(f"; {text}" for text in self.cautions)

    def __str__(self) -> str:
        """``1.18x over the default (1.15x to 1.21x), equal to NumPy's BLAS (0.98x to 1.02x) (library, ...)``; empty if
        none is known."""
        gains = ", ".join(map(str, self.ratios))
        return f"{gains} ({self.label}){self.caution}" if gains else ""


def total_of(parts: Sequence[tuple[int, Outcome]]) -> Outcome:
    """The outcome of several searches together, each counted as often as its workload occurs.

    It is of the libraries once all of them are. A speed-up is known if it is for each search that has a time.
    """
    if len(parts) == 1:
        return parts[0][1]
    timed = [(count * outcome.objective_s, outcome) for count, outcome in parts if outcome.objective_s]
    ratios = (combined([(time_s, outcome.ratio(over)) for time_s, outcome in timed]) for over in (DEFAULT, NUMPY))
    return Outcome(
        _label([outcome.label for _, outcome in parts]) if timed else SO_FAR,
        sum(time_s for time_s, _ in timed) if timed else None,
        tuple(ratio for ratio in ratios if ratio is not None),
        tuple(dict.fromkeys(text for _, outcome in timed for text in outcome.cautions)),
        len(timed),
        len(parts),
    )


def _label(labels: Sequence[str]) -> str:
    """The label that all have, or that of the least certain."""
    if all(label == IN_TURNS for label in labels):
        return IN_TURNS
    return LIBRARY if all(label in (IN_TURNS, LIBRARY) for label in labels) else SO_FAR
