"""What calibration needs of each kind of target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tuner.program.job.task import SearchTask
from tuner.program.target import Target
from tuner.program.target.calibration import Levels
from tuner.program.target.rates import Rates
from tuner.schedule.space import MicroKernel


@dataclass(frozen=True, slots=True)
class Probe:
    """Some kernels of one product: a batch that is built and measured at every instance of the task."""

    task: SearchTask
    kernels: tuple[MicroKernel, ...]


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """How devices of one kind of target are calibrated."""

    probes: Callable[[Target, int, int], Iterator[Probe]]
    """The batches for a target, a number of threads and a seed, in the order in which they are measured."""
    fitted: Sequence[str]
    """The rates that are fitted to the probes."""
    in_unit: Sequence[str]
    """Those that are fitted around these, to the probes of a matrix unit."""
    is_in_unit: Callable[[SearchTask], bool]
    """Whether a probe is one of a matrix unit."""
    centre: Callable[[Levels | None, Target, int], Rates]
    """The rates around which others are fitted: typical ones, but for what the device measured of instructions."""
    completed: Callable[[Rates, Levels | None, int], Rates]
    """Fitted rates, completed with those that probes do not determine, but the levels of memory do."""
    read: Callable[[Levels, Target, int], Rates]
    """The rates of a device of which the levels alone are known."""
