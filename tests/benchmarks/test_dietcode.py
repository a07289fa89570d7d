"""DietCode's formulas by hand, and its search on a device that obeys them exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import shapewright as sw
from benchmarks.harness.calls import DoesNotApply
from benchmarks.rivals.dietcode import DietCodeSearch, adaption, tile_of
from tuner.library.dispatcher import choose
from tuner.measure import BuildResult, RunRequest, Turns, TurnsRequest, never
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.program.target import native
from tuner.records import NO_BASELINES, Baselines, ErrorKind, MeasureResult
from tuner.schedule import default_kernel, layout_group
from tuner.schedule.space import MicroKernel

T = sw.ShapeVar("T", range(1, 65))


def task_of(threads: int = 1, max_kernels: int = 8) -> SearchTask:
    return SearchTask(
        "dense", {"m": 4 * T, "n": 96, "k": 48}, (T,), [5, 24, 43, 64],
        target=native(), threads=threads, max_kernels=max_kernels,
    )  # fmt: skip


class Device:
    """Builder and runner: a kernel's speed is what DietCode says it is; ``broken`` ones fail."""

    def __init__(self, broken: int = -1) -> None:
        self.measured: list[MeasureResult] = []
        self._broken = broken

    def build(self, task: SearchTask, kernels: Sequence[MicroKernel]) -> list[BuildResult]:
        return [BuildResult(kernel, b"", 0.0) for kernel in kernels]

    devices = 1

    def ready(self, task: SearchTask, interrupted: Callable[[], bool] = never) -> None:
        """Always."""

    def library(self, dispatcher: Any, job_id: str | None, objects: Any) -> Any:
        raise NotImplementedError("no library is asked for here")

    def run(
        self, task: SearchTask, requests: Sequence[RunRequest], interrupted: Callable[[], bool] = never
    ) -> list[MeasureResult]:
        results = [self._result(task, request) for request in requests]
        self.measured += results
        return results

    def _result(self, task: SearchTask, request: RunRequest) -> MeasureResult:
        (instance,), kernel = request.instances, request.build.kernel
        if kernel["mr"] == self._broken:
            return MeasureResult(kernel, instance, error_kind=ErrorKind.CRASH, error="died")
        speed = 1e9 * kernel["mr"] * kernel["nv"] * adaption(task, kernel, instance.shape)
        flops = task.workload.flops(task.workload.dims(instance.shape))
        return MeasureResult(kernel, instance, latency_s=flops / speed)

    def verify(
        self,
        task: SearchTask,
        build: BuildResult,
        dims: Sequence[Mapping[str, int]],
        interrupted: Callable[[], bool] = never,
    ) -> list[tuple[Mapping[str, int], str]]:
        return []

    def baselines(self, task: SearchTask, instances: Sequence[WorkloadInstance]) -> Baselines:
        return NO_BASELINES

    def turns(self, task: SearchTask, request: TurnsRequest, interrupted: Callable[[], bool] = never) -> Turns:
        raise NotImplementedError

    def close(self) -> None:
        pass


def test_padding_and_occupancy_by_hand() -> None:
    task = task_of(threads=4)
    kernel = default_kernel(task)
    tile = tile_of(task, kernel)
    assert tile == {"m": kernel["mr"], "n": kernel["nv"] * native().hardware.lanes()}
    m, n = 4 * 5, 96
    rows, columns = -(-m // tile["m"]), -(-n // tile["n"])
    padding = m / (rows * tile["m"]) * n / (columns * tile["n"])
    tiles = rows * columns
    assert adaption(task, kernel, {"T": 5}) == pytest.approx(padding * tiles / (4 * -(-tiles // 4)))


def test_every_trial_is_another_kernel_on_the_instance_that_suits_it_best() -> None:
    task, device = task_of(), Device()
    search = DietCodeSearch(task, population=64)
    search.run(device, device, 24)
    kernels = [result.kernel for result in device.measured]
    assert search.trials == len(kernels) == len(set(kernels)) == 24
    for result in device.measured:
        suits = [adaption(task, result.kernel, instance.shape) for instance in task.instances]
        assert adaption(task, result.kernel, result.instance.shape) == max(suits)


@pytest.mark.soak
def test_the_search_finds_faster_kernels_than_its_random_start() -> None:
    device = Device()
    search = DietCodeSearch(task_of(), population=256)
    search.run(device, device, 64)
    speeds = [result.kernel["mr"] * result.kernel["nv"] for result in device.measured]
    assert np.mean(speeds[-16:]) > 1.3 * np.mean(speeds[:8])


def test_the_library_shares_a_layout_keeps_the_limit_and_leaves_out_what_failed() -> None:
    task, device = task_of(max_kernels=2), Device(broken=8)
    search = DietCodeSearch(task, population=64)
    search.run(device, device, 32)
    dispatcher = search.dispatcher()
    assert 1 <= len(dispatcher.kernels) <= 2
    assert len({layout_group(task, kernel) for kernel in dispatcher.kernels}) == 1
    assert all(kernel["mr"] != 8 for kernel in dispatcher.kernels)
    for size in range(1, 300):
        assert choose(dispatcher.tree, {"m": size}) in range(len(dispatcher.kernels))


def test_its_formulas_are_of_matrix_products() -> None:
    with pytest.raises(DoesNotApply, match="multiplies matrices"):
        DietCodeSearch(SearchTask("softmax", {"m": T, "n": 96}, (T,), target=native()))


def test_a_search_without_a_working_kernel_has_no_library() -> None:
    with pytest.raises(ValueError, match="measured no kernel"):
        DietCodeSearch(task_of()).dispatcher()
