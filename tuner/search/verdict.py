"""The final comparison of a search as everything quotes it: ratios with intervals, verdicts, and what to be wary of.

Command line, events, summaries, pages, reports, ``check`` and the demo print these texts and make none of their own.
tuner.search.comparison measures what stands here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from math import sqrt
from typing import Any

from tuner.blas import Blas
from tuner.device_speed import DeviceSpeed, SpeedState

OURS, DEFAULT, NUMPY = "library", "default", "numpy"
"""Who is timed: a library, and what it is compared with."""
NAMES = {DEFAULT: "the default", NUMPY: "NumPy's BLAS"}
METHOD = (
    "weighted mean of the medians, by shape, of paired ratios; 95 % percentile bootstrap over turns, expanded for few "
    "turns"
)
REMEDY = "measure again on a quiet machine, or give the device cores of its own"

MIN_NOISE = 0.025
"""The least relative half-width of an interval, however well its readings agree: a ratio differs by about as much from
one process to the next. See docs/decisions/0073-one-final-comparison.md."""
DISTURBED_SHARE = 0.2
"""The share of readings in turns that stay disturbed from which they are told."""


class Verdict(StrEnum):
    FASTER = "faster"
    EQUAL = "equal"
    SLOWER = "slower"


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast ours is as what it is ``over``, and between which values that lies at 95 %.

    Without an interval, of single readings, both ends are None, and there is no verdict.
    """

    over: str
    ratio: float
    low: float | None = None
    high: float | None = None

    @property
    def verdict(self) -> Verdict | None:
        if self.low is None or self.high is None:
            return None
        return Verdict.FASTER if self.low > 1 else Verdict.SLOWER if self.high < 1 else Verdict.EQUAL

    @property
    def name(self) -> str:
        return NAMES.get(self.over, self.over)

    @property
    def figure(self) -> str:
        """``1.42x``, or ``equal`` where that is within noise."""
        return Verdict.EQUAL.value if self.verdict is Verdict.EQUAL else f"{self.ratio:.2f}x"

    @property
    def interval(self) -> str:
        """``1.38x to 1.47x``; empty where none is known. Two digits more than it takes to tell its ends apart."""
        if self.low is None or self.high is None:
            return ""
        digits = 3 if self.high - self.low < 0.02 else 2
        return f"{self.low:.{digits}f}x to {self.high:.{digits}f}x"

    @property
    def rival(self) -> str:
        """What comes after the figure: ``over the default (1.38x to 1.47x)``, or ``to ...`` where it is equal."""
        preposition = "to" if self.verdict is Verdict.EQUAL else "over"
        return f"{preposition} {self.name}" + (f" ({self.interval})" if self.interval else "")

    @property
    def text(self) -> str:
        """``1.42x over the default (1.38x to 1.47x)``; ``equal to NumPy's BLAS (0.98x to 1.03x)``"""
        return f"{self.figure} {self.rival}"

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> dict[str, Any]:
        verdict = self.verdict.value if self.verdict else None
        return {**asdict(self), "verdict": verdict, "figure": self.figure, "rival": self.rival, "text": str(self)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Ratio:
        return Ratio(str(data["over"]), float(data["ratio"]), data.get("low"), data.get("high"))


def caution_of(speed: DeviceSpeed | None) -> str:
    """What to be wary of in figures of a device that was throttled or noisy, and what to do; empty for a steady one."""
    unsteady = speed is not None and speed.state is not SpeedState.STEADY
    return f"its device was {speed}: {REMEDY}" if unsteady else ""


def within(over: str, ratio: float, noise: float) -> Ratio:
    """A ratio with an interval of the relative half-width ``noise``."""
    return Ratio(over, ratio, ratio / (1 + noise), ratio * (1 + noise))


def between(over: str, ratio: float, low: float, high: float) -> Ratio:
    """A ratio with an interval that was estimated, widened to MIN_NOISE."""
    return Ratio(over, ratio, min(low, ratio / (1 + MIN_NOISE)), max(high, ratio * (1 + MIN_NOISE)))


def combined(parts: Sequence[tuple[float, Ratio | None]]) -> Ratio | None:
    """One ratio of several, each with the time of ours that it is of: the time of all others over that of ours.

    None where one of them is not known. Their errors are taken for independent; one without an interval leaves none.
    """
    known = [(time_s, ratio) for time_s, ratio in parts if ratio is not None]
    if not known or len(known) < len(parts):
        return None
    whole_s = sum(time_s for time_s, _ in known)
    if whole_s <= 0:
        return None
    result = Ratio(known[0][1].over, sum(time_s * ratio.ratio for time_s, ratio in known) / whole_s)
    below = [time_s * (ratio.ratio - ratio.low) for time_s, ratio in known if ratio.low is not None]
    above = [time_s * (ratio.high - ratio.ratio) for time_s, ratio in known if ratio.high is not None]
    if len(below) < len(known) or len(above) < len(known):
        return result
    low, high = (sqrt(sum(each**2 for each in errors)) / whole_s for errors in (below, above))
    return replace(result, low=result.ratio - low, high=result.ratio + high)


@dataclass(frozen=True, slots=True)
class FinalComparison:
    """A library, the default and NumPy's BLAS, timed in turns on the device at the instances of the task.

    ``objective_s``: the weighted time of the library. ``times_s``: of a call, by instance and by who made it
    (``library``, ``default``, ``numpy``), while the anchor took ``anchor_s``. ``retaken`` of its blocks were disturbed
    and taken again, ``disturbed`` stayed so. ``device_speed`` is that of the device over the whole search. ``missing``
    says why there are fewer ratios than one expects.
    """

    objective_s: float
    ratios: tuple[Ratio, ...]
    times_s: Mapping[str, Mapping[str, float]]
    turns: int
    anchor_s: float | None = None
    retaken: int = 0
    disturbed: int = 0
    device_speed: DeviceSpeed | None = None
    blas: Blas | None = None
    missing: str = ""
    method: str = METHOD

    @property
    def conditions(self) -> str:
        """``in 15 turns, 3 readings taken again; NumPy has openblas 0.3.31, SkylakeX kernels, 1 thread``"""
        again = f", {self.retaken} readings taken again" if self.retaken else ""
        return f"in {self.turns} turns{again}" + (f"; NumPy has {self.blas}" if self.blas else "")

    @property
    def cautions(self) -> tuple[str, ...]:
        """What makes its figures worth less than others, with the size of it, and what to do."""
        found = []
        blocks = self.turns * len(self.times_s)
        if unsteady := caution_of(self.device_speed):
            found.append(unsteady)
        elif self.disturbed > DISTURBED_SHARE * blocks:
            found.append(f"{self.disturbed} of {blocks} of its readings in turns were disturbed: {REMEDY}")
        if self.blas is not None and self.blas.hobbled and any(ratio.over == NUMPY for ratio in self.ratios):
            found.append(f"NumPy's BLAS is hobbled: {self.blas.hobbled}")
        if self.missing:
            found.append(self.missing)
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        speed = self.device_speed
        return {
            "objective_s": self.objective_s,
            "ratios": [ratio.to_json() for ratio in self.ratios],
            "times_s": {instance: dict(times) for instance, times in self.times_s.items()},
            "turns": self.turns,
            "anchor_s": self.anchor_s,
            "retaken": self.retaken,
            "disturbed": self.disturbed,
            "device_speed": speed.to_json() if speed else None,
            "blas": self.blas.to_json() if self.blas else None,
            "missing": self.missing,
            "method": self.method,
            "cautions": list(self.cautions),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> FinalComparison:
        return FinalComparison(
            float(data["objective_s"]),
            tuple(map(Ratio.from_json, data["ratios"])),
            data["times_s"],
            int(data["turns"]),
            data.get("anchor_s"),
            int(data.get("retaken", 0)),
            int(data.get("disturbed", 0)),
            DeviceSpeed.from_json(data["device_speed"]) if data.get("device_speed") else None,
            Blas.from_json(data["blas"]) if data.get("blas") else None,
            str(data.get("missing") or ""),
            str(data.get("method") or METHOD),
        )
