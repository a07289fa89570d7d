"""NumPy beside the kernels of a task: the right product, and no more time than there is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tuner.program.ops import OPS

from tuner.measure.baselines import LONGEST_S, measure_baselines, numpy_call
from tuner.measure.timing import Timer
from tuner.measure.verify import Floats, random_array
from tuner.program.reference import compute
from tuner.program.target import Target, native
from tuner.program.task import SearchTask
from tuner.program.workload import ShapeVar, Workload
from tuner.records import Baselines, Roof

T = ShapeVar("T", range(1, 65))
ROOF = Roof(1e11, 1e10, 3e-6)


def task_of(op: str = "matmul", threads: int = 1, instances: tuple[int, ...] = (64, 1, 7)) -> SearchTask:
    args = {"b": 3, "m": T, "n": 24, "k": 16}
    wanted = {name: args[name] for name in OPS[op].args}
    return SearchTask(op, wanted, (T,), instances, target=native(), threads=threads, epilogue=("relu",))


class Arrays:
    """Makes the operands, and keeps them by name."""

    def __init__(self) -> None:
        self.made: dict[str, Floats] = {}

    def __call__(self, name: str, shape: tuple[int, ...]) -> Floats:
        return self.made.setdefault(name, random_array(name, shape))


@pytest.mark.parametrize("op", sorted(OPS))
def test_the_product_is_the_contraction_alone(op: str) -> None:
    task, arrays = task_of(op), Arrays()
    numpy_call(task, task.instances[0], arrays)()
    inputs = [arrays.made[operand.name] for operand in task.workload.operands[:2]]
    plain = Workload.of(op, dict(task.workload.args))
    out = arrays.made[task.workload.operands[-1].name]
    np.testing.assert_allclose(out, compute(plain, inputs), rtol=1e-4, atol=1e-5)


def measured(
    monkeypatch: pytest.MonkeyPatch, task: SearchTask, clock: Callable[[], float], roof: Roof = ROOF
) -> Baselines:
    """With a roof that is there already."""

    def at_once(target: Target, threads: int, timer: Timer) -> Roof:
        return roof

    monkeypatch.setattr("tuner.measure.baselines.measure_roof", at_once)
    return measure_baselines(task, task.instances, random_array, lambda: 3e-6, clock)


def test_every_instance_is_measured_in_the_order_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of()
    found = measured(monkeypatch, task, lambda: 0.0)
    assert [point.instance for point in found.points] == list(task.instances)
    assert all(0 < point.latency_s < 0.1 and point.anchor_s for point in found.points)
    assert found.roof == ROOF


def test_when_time_is_up_the_cheapest_have_been_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((0.0, 0.4 * LONGEST_S, 0.8 * LONGEST_S, 1.2 * LONGEST_S))
    found = measured(monkeypatch, task_of(), lambda: next(now))
    assert [point.instance.shape["T"] for point in found.points] == [1, 7]


def test_what_would_take_too_long_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of()
    # So slow that the largest product's three calls would not end in time, the next one's would.
    flops_per_s = 2.0 * 3 * task.workload.flops({"T": 64}) / (1.1 * LONGEST_S)
    found = measured(monkeypatch, task, lambda: 0.0, Roof(flops_per_s, 1e10))
    assert [point.instance.shape["T"] for point in found.points] == [1, 7]


def test_numpys_one_thread_is_no_match_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(monkeypatch, task_of(threads=2), lambda: 0.0) == Baselines(roof=ROOF)
