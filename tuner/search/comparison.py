"""Libraries side by side: timed in turns on the device, at the instances of a task, with an interval for each ratio.

Latencies of two jobs, or of the two ends of one, were measured at different times; only in turns do small differences
mean anything (tuner.measure.timing.turns). ``compare`` is of two libraries, tuner.search.final_comparison of a new one
with the default and NumPy.

The ratio of two contenders is the weighted mean over instances of the medians over turns of their paired ratios: one
disturbed sample changes no median. Its interval is a bootstrap over turns, each with all of its instances: what
disturbs a whole turn counts once (Efron 1979; for few turns expanded as in Hesterberg 2015).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.device_speed import over_all
from tuner.errors import ShapewrightError
from tuner.library.dispatcher import Dispatcher
from tuner.library.package import LIBRARY
from tuner.measure import BuildResult, DeviceFailed, Interrupted, Runner, RunRequest, Turns, TurnsRequest, never
from tuner.measure.timing.turns import LEAST_TURNS
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject, WorkloadInstance
from tuner.records import ErrorKind, MeasureResult
from tuner.schedule import is_current
from tuner.schedule.space import MicroKernel
from tuner.search.budget import COMPARE_S
from tuner.search.verdict import Ratio, between, caution_of
from tuner.storage import Comparison

LEVEL, RESAMPLED = 0.95, 999
LEAST_S = 1e-9
"""The least time of a call that counts: an empty shape may take none."""
FAILED_RATIO = 1000.0
"""The ratio to a library that computes wrongly or crashes."""

Times = NDArray[np.float64]
"""[turns, instances] seconds of a call; NaN where it was not timed."""


# -- ratios -----------------------------------------------------------------------------------------------------------
def ratio_of(over: str, ours: Times, theirs: Times, weights: Sequence[float], shared_s: float = 0.0) -> Ratio:
    """How many times as fast ours are. Where theirs were not timed they are equal, and for ``shared_s`` more of the
    weighted time."""
    shares = np.array(weights) * np.median(ours, axis=0)
    whole_s = shares.sum() + shared_s
    logs = np.where(np.isnan(theirs), 0.0, np.log(theirs) - np.log(ours))

    def weighted(turns: NDArray[np.int64]) -> Times:
        # [resamples, turns] of numbers of turns: each is drawn with all of its instances.
        return np.asarray((np.exp(np.median(logs[turns], axis=-2)) @ shares + shared_s) / whole_s)

    ratio = float(weighted(np.arange(len(logs))))
    return between(over, ratio, *_interval(len(logs), weighted))


def _interval(turns: int, statistic: Callable[[NDArray[np.int64]], Times]) -> tuple[float, float]:
    """A percentile bootstrap over turns, at the level that makes it as wide for few of them as Student's t would."""
    from scipy import special  # noqa: PLC0415 - scipy.stats takes half a second in each process of a search

    widened = math.sqrt(turns / (turns - 1)) * special.stdtrit(turns - 1, (1 + LEVEL) / 2)
    beyond = float(special.ndtr(-widened))
    drawn = np.random.default_rng(0).integers(0, turns, (RESAMPLED, turns))
    low, high = np.quantile(statistic(drawn), (beyond, 1 - beyond))
    return float(low), float(high)


def times_of(turns: Turns, contender: int) -> Times:
    """What one of the contenders took."""
    times = [[block[contender] for block in turn] for turn in turns.seconds]
    return np.maximum(np.array(times, np.float64), LEAST_S)


# -- two libraries ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Contender:
    """A library in a comparison. ``toolchain`` is what it was built with."""

    digest: str
    dispatcher: Dispatcher
    binary: bytes
    toolchain: Mapping[str, str]

    @staticmethod
    def of(manifest: JsonObject, dispatch: JsonObject, files: Mapping[str, bytes]) -> Contender:
        """Raises ShapewrightError for what this version cannot read."""
        try:
            dispatcher = Dispatcher.from_json(dispatch)
            return Contender(str(manifest["digest"]), dispatcher, files[LIBRARY], dict(manifest.get("toolchain") or {}))
        except (KeyError, TypeError, ValueError) as error:
            raise ShapewrightError(f"it is not what this version builds ({type(error).__name__}: {error})") from error

    def kernel_at(self, task: SearchTask, instance: WorkloadInstance) -> MicroKernel:
        """What it runs at an instance of ``task``, whose shape variables need not be those that it was made for."""
        return self.dispatcher.kernels[self.dispatcher.index_for(task.workload.dims(instance.shape))]

    def build_at(self, task: SearchTask, instance: WorkloadInstance) -> BuildResult:
        # The kernel says how constants are packed, which is the same for all of a library; what runs is the library.
        return BuildResult(self.kernel_at(task, instance), self.binary, 0.0)


class _Failed(Exception):
    """A library failed on the device. ``result`` says how."""

    def __init__(self, contender: Contender, result: MeasureResult) -> None:
        super().__init__(f"library {contender.digest[:12]} at {result.instance}: {result.error}")
        self.contender, self.result = contender, result


def compare(
    task: SearchTask,
    runner: Runner,
    new: Contender,
    served: Contender,
    *,
    limit_s: float = COMPARE_S,
    interrupted: Callable[[], bool] = never,
) -> Comparison | None:
    """How the new library does beside the one that is served; None where that cannot be said.

    Where both run the very same kernel nothing is timed: there they are equal. It cannot be said where the device fails
    or has too little time, where it is interrupted, and of a library whose kernels another version of a rule made.
    Raises DeviceLost.
    """
    if not all(is_current(kernel) for kernel in served.dispatcher.kernels):
        return None
    differing = [
        instance
        for instance in task.instances
        if new.toolchain != served.toolchain or new.kernel_at(task, instance) != served.kernel_at(task, instance)
    ]
    if not differing:
        return Comparison(served.digest, 1.0, 0.0, verified=True)
    try:
        turns = _in_turns(task, runner, (new, served), differing, limit_s, interrupted)
    except Interrupted:
        return None
    except _Failed as failure:
        if failure.result.error_kind not in (ErrorKind.WRONG, ErrorKind.CRASH):
            return None
        is_new = failure.contender is new
        return Comparison(served.digest, 1.0 if is_new else FAILED_RATIO, 0.0, verified=not is_new)
    if turns is None or len(turns.seconds) < LEAST_TURNS:
        return None
    shared_s = sum(each.weight * _expected_s(task, new, each) for each in task.instances if each not in differing)
    weights = [instance.weight for instance in differing]
    ratio = ratio_of(served.digest, times_of(turns, 0), times_of(turns, 1), weights, shared_s)
    low, high = ratio.low or ratio.ratio, ratio.high or ratio.ratio
    noise = max(ratio.ratio / low, high / ratio.ratio) - 1
    caution = caution_of(over_all([each for turn in turns.anchors_s for each in turn]))
    return Comparison(served.digest, ratio.ratio, noise, verified=True, caution=caution)


def _in_turns(
    task: SearchTask,
    runner: Runner,
    contenders: tuple[Contender, Contender],
    differing: Sequence[WorkloadInstance],
    limit_s: float,
    interrupted: Callable[[], bool],
) -> Turns | None:
    """None where the device cannot take turns. Raises _Failed, Interrupted, DeviceLost."""
    for contender in contenders:
        _verified(task, runner, contender, differing[:1], interrupted)
    runs = [[contender.build_at(task, instance) for instance in differing] for contender in contenders]
    try:
        return runner.turns(task, turns_request(differing, runs, limit_s), interrupted)
    except DeviceFailed:
        # One of them, at an instance that it was not verified at; or the device cannot take turns.
        for contender in contenders:
            _verified(task, runner, contender, differing, interrupted)
        return None


def turns_request(
    instances: Sequence[WorkloadInstance],
    runs: Sequence[Sequence[BuildResult | None]],
    limit_s: float,
    *,
    with_numpy: bool = False,
) -> TurnsRequest:
    """``runs``: the build of each contender at each instance, None where it does not run."""
    builds = list(dict.fromkeys(build for run in runs for build in run if build is not None))
    places = tuple(tuple(None if build is None else builds.index(build) for build in run) for run in runs)
    return TurnsRequest(tuple(instances), tuple(builds), places, with_numpy, limit_s)


def _expected_s(task: SearchTask, library: Contender, instance: WorkloadInstance) -> float:
    return library.dispatcher.predicted_latency_s(task.workload.dims(instance.shape)) or 0.0


def _verified(
    task: SearchTask,
    runner: Runner,
    contender: Contender,
    instances: Sequence[WorkloadInstance],
    interrupted: Callable[[], bool],
) -> None:
    """Run a library as a candidate is run, which verifies it first. Raises _Failed, Interrupted."""
    for instance in instances:
        results = runner.run(task, [RunRequest(contender.build_at(task, instance), (instance,))], interrupted)
        if not results:
            raise Interrupted("the comparison is no longer wanted")
        if not results[0].ok:
            raise _Failed(contender, results[0])
