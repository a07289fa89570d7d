"""Simulated devices: the same seed says the same, and faults come as they are asked for."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

import pytest

from tests.fakes import TASK as DENSE
from tests.measuring import TASK, kernel
from tuner.measure import BuildResult, DeviceLost, Interrupted, RunRequest
from tuner.measure.runners.simulated import (
    DEVICE_SPREAD,
    NOISE,
    Faults,
    Fleet,
    SimulatedBuilder,
    SimulatedRunner,
    theory,
)
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.records import ErrorKind
from tuner.schedule import default_kernel
from tuner.schedule.space import MicroKernel


def model(task: SearchTask, kernel: MicroKernel, shape: Mapping[str, int]) -> float:
    return 1e-6 * shape["T"]


def requests(count: int, *shapes: int) -> list[RunRequest]:
    instances = tuple(WorkloadInstance.of({"T": t}) for t in shapes or (5,))
    return [RunRequest(BuildResult(kernel(number), b"code", 0.0), instances) for number in range(count)]


def latencies(fleet: Fleet, count: int = 8) -> list[float]:
    return [result.latency_s or 0.0 for result in fleet.runner().run(TASK, requests(count))]


def test_latencies_follow_the_seed_but_for_noise() -> None:
    first, again, other = (latencies(Fleet(1, seed=seed, model=model)) for seed in (1, 1, 2))
    assert again == pytest.approx(first, rel=8 * NOISE)
    assert other != pytest.approx(first, rel=8 * NOISE)


def test_devices_differ_little_and_their_anchors_say_by_how_much() -> None:
    fleet = Fleet(8, model=model, trial_s=0.01)
    same = [requests(1)[0] for _ in range(64)]
    results = fleet.runner().run(TASK, same)
    assert len({result.device for result in results}) > 1
    level = [result.latency_s / result.anchor_s for result in results if result.latency_s and result.anchor_s]
    assert max(level) / min(level) < 1 + 8 * NOISE
    anchors = [result.anchor_s for result in results if result.anchor_s]
    assert max(anchors) / min(anchors) < 1 + 12 * DEVICE_SPREAD


def test_theory_is_what_is_expected_of_a_real_kernel() -> None:
    best = default_kernel(DENSE)
    (result,) = Fleet(1).runner().run(DENSE, [RunRequest(BuildResult(best, b"", 0.0), DENSE.instances[:1])])
    assert result.latency_s == pytest.approx(theory(DENSE, best, DENSE.instances[0].shape), rel=3.0)


@pytest.mark.parametrize(
    ("faults", "kind"),
    [
        (Faults(crashing=0.25), ErrorKind.CRASH),
        (Faults(hanging=0.25), ErrorKind.RUN_TIMEOUT),
        (Faults(wrong=0.25), ErrorKind.WRONG),
    ],
)
def test_faults_hit_a_share_of_the_kernels_and_always_the_same(faults: Faults, kind: ErrorKind) -> None:
    def kinds() -> list[ErrorKind | None]:
        fleet = Fleet(4, limit_s=0.001, faults=faults, model=model)
        return [result.error_kind for result in fleet.runner().run(TASK, requests(200))]

    first = kinds()
    assert kinds() == first
    assert set(first) == {None, kind}
    assert 20 <= Counter(first)[kind] <= 80


def test_a_device_serves_one_at_a_time() -> None:
    fleet = Fleet(3, model=model)
    taken = [fleet.take(lambda: True) for _ in range(3)]
    assert sorted(taken) == [0, 1, 2]
    with pytest.raises(Interrupted):
        fleet.take(lambda: True)
    with pytest.raises(DeviceLost, match="was free within 0 s"):
        fleet.take(lambda: False, wait_s=0.0)
    fleet.give(taken[0])
    assert fleet.take(lambda: True) == taken[0]


def test_a_silent_device_is_lost_and_others_take_over() -> None:
    faults = Faults(silent=1)
    with pytest.raises(DeviceLost, match="simulated device 0 does not answer"):
        SimulatedRunner(Fleet(1, limit_s=0.01, faults=faults)).run(TASK, requests(1))
    results = Fleet(3, trial_s=0.01, limit_s=0.05, faults=faults, model=model).runner().run(TASK, requests(20))
    assert all(result.ok for result in results)
    assert {result.device for result in results} <= {"simulated-1", "simulated-2"}


def test_several_searches_share_a_fleet() -> None:
    fleet = Fleet(2, trial_s=0.002, model=model)
    done: list[int] = []

    def search() -> None:
        runner = fleet.runner()
        done.append(len(runner.run(TASK, requests(30))))
        runner.close()

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert done == [30, 30, 30]
    assert fleet.busy_s == pytest.approx(3 * 30 * 0.002)


def test_the_builder_compiles_nothing() -> None:
    (build,) = SimulatedBuilder(0.001).build(DENSE, [default_kernel(DENSE)])
    assert (build.binary, build.build_s, build.error_kind) == (b"simulated", 0.001, None)
