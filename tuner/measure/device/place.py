"""Where the candidates of a bench run: all that differs between the cores of a CPU and a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tuner.blas import Blas
from tuner.measure.timing.baselines import MakeArray
from tuner.measure.timing.protocol import Timer
from tuner.measure.timing.turns import Contender
from tuner.measure.verification.guarded import Array, Guarded
from tuner.program.language.workload import WorkloadInstance
from tuner.program.target.calibration import Levels
from tuner.records import Baselines


class Timing(Protocol):
    """Calls of one candidate with operands that stay, in the caches' state that the task asks for."""

    def call(self) -> object:
        """One call, from its start to its end."""

    def sample(self, number: int, repeat: int, before: Callable[[], None]) -> tuple[float, ...]:
        """``repeat`` means of ``number`` calls in a row, in seconds, after ``before()`` each."""

    def mean(self, number: int) -> float:
        """The mean of a number of calls in a row."""


class Place(Protocol):
    """Runs the candidates of one task. Whatever a candidate does wrong may be raised, or end this process."""

    @property
    def alignment(self) -> int:
        """The bytes that operands begin at multiples of."""

    def anchor(self) -> float:
        """The seconds of a fixed piece of work, just now."""

    def waited(self) -> float:
        """The seconds that threads which candidates run on have waited for a core so far."""

    def run(self, call: Callable[..., object], operands: Sequence[Guarded]) -> None:
        """One call; what it wrote, and where, is in the operands and what surrounds them afterwards."""

    def timing(self, module: Any, arrays: Mapping[str, Array]) -> Timing:
        """Of a loaded candidate, and arrays for all operands in call order."""

    def numpy(self, dims: Mapping[str, int], array: MakeArray) -> Contender | None:
        """NumPy's products at these values of the symbols; None where they are not to be compared with."""

    def blas(self) -> Blas | None:
        """What NumPy's products are computed by, where they are compared with."""

    def baselines(self, instances: Sequence[WorkloadInstance], module: Any, array: MakeArray) -> Baselines:
        """What kernels are compared with; ``module``: machine code for the roof, if the runner has sent some."""

    def levels(self, module: Any, timer: Timer) -> Levels:
        """The peak, and what is read from each level of memory."""

    def is_lost(self) -> bool:
        """Whether a candidate has left behind what no other one can run in: another process has to take over."""
