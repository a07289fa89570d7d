"""Whether a library is whole, right on this machine, and no slower than another.

It runs in a device process of its own, confined as candidates of a search are: a library that crashes or hangs is a
finding. Right means as ``tuner.measure.verification.verify`` has it: the NumPy reference in float64, a bound for each
element, guard regions around every operand. Slower means beyond noise, timed in turns: ``tuner.search.comparison``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from shapewright.library import check_machine
from shapewright.snapshot.entries import Entry
from shapewright.snapshot.reading import Snapshot
from tuner.errors import InvalidInput, ShapewrightError
from tuner.library import package
from tuner.library.dispatcher import Dispatcher
from tuner.measure import FIRST_GPU, BuildResult, DeviceLost, Runner
from tuner.measure.verification.ragged import ragged_dims
from tuner.program.job.cache import Cache
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject
from tuner.schedule import layouts_of
from tuner.search.budget import COMPARE_S
from tuner.search.comparison import Contender, compare
from tuner.search.verdict import Ratio, Verdict, within
from tuner.search.verification import verified_at

if TYPE_CHECKING:
    from types import TracebackType

MAX_PROBLEMS = 10
"""The most problems that are reported of one library."""


@dataclass(frozen=True, slots=True)
class Against:
    """How a library does beside another. ``ratio`` above 1: it is faster; ``noise`` is relative. ``caution``: what
    makes that worth less, such as a noisy machine. ``cache``: how both found their operands, as the library's task
    says."""

    name: str
    digest: str
    ratio: float
    noise: float
    caution: str = ""
    cache: str = "warm"

    @property
    def as_ratio(self) -> Ratio:
        """As every comparison is told (tuner.search.verdict)."""
        return within(self.name, self.ratio, self.noise)

    @property
    def verdict(self) -> str:
        return str((self.as_ratio.verdict or Verdict.EQUAL).value)

    def to_json(self) -> JsonObject:
        ratio = self.as_ratio
        return {**asdict(self), "verdict": self.verdict, "low": ratio.low, "high": ratio.high, "text": str(ratio)}

    def __str__(self) -> str:
        """``faster: 1.08x over DIR (1.05x to 1.11x)``; ``equal to DIR (0.98x to 1.03x)``"""
        text = str(self.as_ratio) if self.verdict == Verdict.EQUAL else f"{self.verdict}: {self.as_ratio}"
        text += Cache(self.cache).note
        return f"{text}; {self.caution}" if self.caution else text


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found of one library. ``shapes`` were verified; ``problems`` is empty for one that is whole and right.

    ``not_run`` says why one of a snapshot, which is whole, could not be run here.
    """

    name: str
    digest: str | None
    shapes: int
    problems: tuple[str, ...] = ()
    against: Against | None = None
    not_run: str | None = None

    @property
    def is_good(self) -> bool:
        return not self.problems and (self.against is None or self.against.verdict != Verdict.SLOWER)

    def to_json(self) -> JsonObject:
        against = self.against.to_json() if self.against else None
        return {**asdict(self), "problems": list(self.problems), "against": against, "good": self.is_good}

    def __str__(self) -> str:
        if self.problems:
            return "\n  ".join((f"{self.name}: wrong", *self.problems))
        if self.not_run:
            return f"{self.name}: whole, not run: {self.not_run}"
        beside = f"; {self.against}" if self.against else ""
        return f"{self.name}: whole, right at {self.shapes} shapes{beside}"


@dataclass
class Checker:
    """Checks libraries on private devices of this machine, each started for the first that needs it: its CPU, and its
    first GPU. A context manager."""

    seconds: float = COMPARE_S
    _stack: ExitStack = field(default_factory=ExitStack)
    _runners: dict[int | None, Runner] = field(default_factory=dict)

    def check(
        self, name: str, files: Mapping[str, bytes], against: tuple[str, Mapping[str, bytes]] | None = None
    ) -> Checked:
        """Check the library of these files; ``against`` is another's name and files.

        Raises ShapewrightError where it cannot be said: this CPU lacks instructions, the GPU is another, another
        release's kernels pack constants differently, the two are of different workloads, timing took too long.
        """
        try:
            manifest = package.check_files(files)
        except ShapewrightError as error:
            return Checked(name, None, 0, (str(error),))
        library = _runnable(name, manifest, files)
        shapes, problems = self.verify(library.dispatcher, library.binary)
        if problems or against is None:
            return Checked(name, library.digest, shapes, problems)
        other_name, other_files = against
        other = _runnable(other_name, package.check_files(other_files), other_files)
        return self._compared(name, library, shapes, other_name, other)

    def check_snapshot(self, snapshot: Snapshot) -> list[Checked]:
        """Check every library of a snapshot; those for other CPUs need only be whole."""
        return [self._check_entry(snapshot, entry) for entry in snapshot.entries]

    def _check_entry(self, snapshot: Snapshot, entry: Entry) -> Checked:
        try:
            files = snapshot.files(entry)
        except ShapewrightError as error:
            return Checked(str(entry), entry.digest, 0, (str(error),))
        try:
            return self.check(str(entry), files)
        except DeviceLost:
            raise
        except ShapewrightError as error:
            return Checked(str(entry), entry.digest, 0, not_run=str(error))

    def verify(self, dispatcher: Dispatcher, binary: bytes) -> tuple[int, tuple[str, ...]]:
        """At how many shapes a library's machine code was verified, and what is wrong at which."""
        dims = list(verified_at(dispatcher).all)
        dims += [each for each in ragged_dims(dispatcher.task.workload) if each not in dims]
        build = BuildResult(dispatcher.kernels[0], binary, 0.0)
        wrong = self._device(dispatcher.task).verify(dispatcher.task, build, dims)
        return len(dims), tuple(problem for _, problem in wrong[:MAX_PROBLEMS])

    def _compared(self, name: str, library: Contender, shapes: int, other_name: str, other: Contender) -> Checked:
        task, its = library.dispatcher.task, other.dispatcher.task
        if (task.workload.key, task.threads) != (its.workload.key, its.threads):
            problem = f"{other_name} is for {its.workload.key} on {its.threads} threads"
            raise InvalidInput("--against", problem, f"a library for {task.workload.key} on {task.threads}")
        found = compare(task, self._device(task), library, other, limit_s=self.seconds)
        if found is None:
            problem = "could not be timed beside it: its kernels are another release's, or time was too short"
            raise InvalidInput("--against", f"{other_name} {problem}", "give more --seconds, or pull it again")
        if not found.verified:
            return Checked(name, library.digest, shapes, ("it failed while it was timed",))
        # Whatever the other was tuned for: both were timed as this one's task says.
        against = Against(other_name, other.digest, found.ratio, found.noise, found.caution, task.cache.value)
        return Checked(name, library.digest, shapes, (), against)

    def _device(self, task: SearchTask) -> Runner:
        """Raises GpuFailed where there is no GPU for a task that needs one."""
        gpu = FIRST_GPU if task.known_target.gpu is not None else None
        if gpu not in self._runners:
            from tuner.measure.local import local_runner  # noqa: PLC0415  (TVM)

            self._runners[gpu] = self._stack.enter_context(local_runner(gpu))
        return self._runners[gpu]

    def __enter__(self) -> Checker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()


def _runnable(name: str, manifest: JsonObject, files: Mapping[str, bytes]) -> Contender:
    """The library, if it can be run here. Raises ShapewrightError."""
    check_machine(manifest)
    dispatcher, toolchain = package.dispatcher_of(files, manifest), manifest.get("toolchain") or {}
    library = Contender(manifest["digest"], dispatcher, files[package.LIBRARY], toolchain)
    _check_layouts(name, manifest, library.dispatcher)
    return library


def _check_layouts(name: str, manifest: JsonObject, dispatcher: Dispatcher) -> None:
    """Raise ShapewrightError unless constants are packed for it as this release packs them for its kernels."""
    its = package.packed_layouts(manifest, dispatcher.task.workload)
    try:
        ours = layouts_of(dispatcher.task, dispatcher.kernels[0])
    except (KeyError, ValueError, LookupError) as error:
        raise ShapewrightError(
            f"{name} is of an earlier release, whose kernels this one does not know ({error})"
        ) from None
    if its != dict(ours):
        raise ShapewrightError(f"{name} is of an earlier release, which packed constants differently: pull it again")
