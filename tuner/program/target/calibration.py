"""What was measured of one device for theory and rooflines: see docs/decisions/0046-calibration-of-a-device.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tuner.program.language.workload import JsonObject
from tuner.program.target import Target
from tuner.program.target.rates import Rates, positive_numbers

VERSION = 10
"""Names the probes, the fit and the theory that is fitted. A change of any of them takes another: what was measured
for an earlier one is made again."""

MEMORY, STREAMS = "memory", "streams"
"""Memory that is read from end to end, as one stream, and in several at once."""


@dataclass(frozen=True, slots=True)
class Level:
    """A cache or memory, as reading measured it on all threads of a task together."""

    name: str
    """``L1``, ``L2``, ``L3``, MEMORY or STREAMS."""
    bytes: int
    """What was read: of a cache again and again, less than it holds, more than the one before; of memory what had been
    flushed from all caches."""
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Levels:
    """The best rates of a device on a number of threads: of multiply-adds in registers (each counts as two
    operations), and of reading each level, the nearest first."""

    flops_per_s: float
    levels: tuple[Level, ...]
    clock_hz: float | None = None
    """None where a device of an earlier release did not report it."""
    issued_per_s: Mapping[str, float] = field(default_factory=dict)
    """Multiply-add instructions per second of each thread, by the instruction's name, where they were measured."""

    def to_json(self) -> JsonObject:
        return asdict(self) | {"levels": [asdict(level) for level in self.levels]}

    def or_better(self, other: Levels) -> Levels:
        """The best of two readings: what disturbs a device makes each of them only lower."""
        theirs = {level.name: level for level in other.levels}
        levels = (max(each, theirs.get(each.name, each), key=lambda level: level.bytes_per_s) for each in self.levels)
        clocks = [hz for hz in (self.clock_hz, other.clock_hz) if hz is not None]
        names = {**self.issued_per_s, **other.issued_per_s}
        issued = {name: max(self.issued_per_s.get(name, 0.0), other.issued_per_s.get(name, 0.0)) for name in names}
        flops_per_s = max(self.flops_per_s, other.flops_per_s)
        return Levels(flops_per_s, tuple(levels), max(clocks, default=None), issued)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Levels:
        """Fields that this version does not know are left out. Raises KeyError, TypeError, ValueError."""
        levels = (Level(str(each["name"]), int(each["bytes"]), float(each["bytes_per_s"])) for each in data["levels"])
        clock_hz = data.get("clock_hz")
        return Levels(
            float(data["flops_per_s"]),
            tuple(levels),
            None if clock_hz is None else float(clock_hz),
            positive_numbers(data.get("issued_per_s", {})),
        )


@dataclass(frozen=True, slots=True)
class Calibration:
    """The rates of one device on a number of threads, and how they were found."""

    version: int
    threads: int
    target: str
    """The fingerprint of what the probes were compiled for."""
    rates: Rates
    levels: Levels | None
    """None where the device could not measure them, as those of earlier releases cannot."""
    probes: int
    """Measurements that the rates were fitted to."""
    error_before: float
    """Half of the probes were further off than this share of their time by the typical rates, of which the clock alone
    was adjusted ..."""
    error_after: float
    """... and by rates that were fitted without them, to the probes of the other layers."""
    seconds: float
    at: str
    """When it ended, UTC."""

    def serves(self, target: Target, threads: int) -> bool:
        """Whether it is of this version, and for these."""
        return (self.version, self.target, self.threads) == (VERSION, target.fingerprint, threads)

    def to_json(self) -> JsonObject:
        levels = None if self.levels is None else self.levels.to_json()
        return asdict(self) | {"rates": self.rates.to_json(), "levels": levels}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Calibration:
        """Read what ``to_json`` wrote, in this version or a later one, whose new fields are left out.

        Raises KeyError, TypeError, ValueError for anything else.
        """
        return Calibration(
            version=int(data["version"]),
            threads=int(data["threads"]),
            target=str(data["target"]),
            rates=Rates.from_json(data["rates"]),
            levels=None if data.get("levels") is None else Levels.from_json(data["levels"]),
            probes=int(data["probes"]),
            error_before=float(data["error_before"]),
            error_after=float(data["error_after"]),
            seconds=float(data["seconds"]),
            at=str(data["at"]),
        )
