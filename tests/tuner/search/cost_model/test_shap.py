"""Which axes matter: what a planted device likes is found, and nothing is said of too little."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.fakes import TASK
from tests.tuner.figures.searches import sampled
from tuner.program.language.workload import WorkloadInstance
from tuner.records import MeasureResult
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model.shap import MAX_PAIRS, MIN_PAIRS, importance_of
from tuner.search.importance import Importance
from tuner.search.observations import Measured

KERNELS = sampled(TASK, 120)


def planted(kernel: MicroKernel, instance: WorkloadInstance) -> float:
    """A device that likes one axis much, another a little, and no other."""
    return 1e-6 * instance.shape["T"] * (3.0 if kernel["ku"] > 2 else 1.0) * (1.0 + 0.2 * (kernel["ahead"] == 1))


def measured(kernels: list[MicroKernel], noise: float = 0.0) -> Measured:
    rng = np.random.default_rng(0)
    return Measured(
        MeasureResult(kernel, instance, planted(kernel, instance) * float(rng.lognormal(0, noise)))
        for kernel in kernels
        for instance in TASK.instances
    )


def test_the_axes_that_a_device_likes_are_found_in_their_order() -> None:
    found = importance_of(TASK, measured(KERNELS, noise=0.02))
    assert found is not None
    assert [axis.name for axis in found.axes[:2]] == ["ku", "ahead"]
    assert found.axes[0].share > 0.6
    # Some kernels take three times as long as the others: at most the half of its log, either side of the middle.
    assert 0.25 < found.axes[0].effect < np.log(3) / 2
    assert found.explained > 0.9
    assert sum(axis.share for axis in found.axes) == pytest.approx(1)
    assert found.pairs == len(KERNELS) * len(TASK.instances)
    assert Importance.from_json(found.to_json()) == found
    assert importance_of(TASK, measured(KERNELS, noise=0.02)) == found


def test_a_device_that_likes_nothing_is_explained_by_nothing() -> None:
    rng = np.random.default_rng(1)
    results = [MeasureResult(kernel, at, float(rng.lognormal(-11, 0.1))) for kernel in KERNELS for at in TASK.instances]
    found = importance_of(TASK, Measured(results))
    assert found is not None
    assert found.explained < 0.1


def test_nothing_is_said_of_too_little() -> None:
    few = MIN_PAIRS // len(TASK.instances)
    assert importance_of(TASK, Measured()) is None
    assert importance_of(TASK, measured(KERNELS[:few])) is None
    readings = [MeasureResult(KERNELS[0], replace(at), 1e-6) for at in TASK.instances for _ in range(20)]
    assert importance_of(TASK, Measured(readings)) is None
    assert MAX_PAIRS > MIN_PAIRS
