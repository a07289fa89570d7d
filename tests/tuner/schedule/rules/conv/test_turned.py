"""Convolutions of one element whose vectors run along the channels: right at every size, on every width of vectors."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

from tests.compiled import built_problems, runnable
from tests.tuner.schedule.rules.conv.test_kernels import RULE, conv, task_of
from tuner.errors import IllegalKernel
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Workload
from tuner.schedule import extents_of
from tuner.schedule.product.axes import APART, JOINED, TURNED
from tuner.schedule.product.match.groups import forms_of
from tuner.schedule.space import MicroKernel


def one(epilogue: tuple[Any, ...] = (), **args: object) -> Workload:
    return workload_from_json({"op": "conv2d", "args": {"r": 1, "s": 1, **args}, "epilogue": list(epilogue)})


WORKLOADS = {
    "images": one(b="T", c=19, h=7, w=7, o=40),
    "sizes that are known at the call": one(b=2, c=5, h="T", w=3, o=17),
    "one image, a bias, a residual": one(("bias", "add", "relu"), b=1, c=8, h="T", w="T", o=33),
    "a long epilogue": one(("bias", "gelu"), b="T", c=6, h=3, w=5, o=21),
    "fewer channels than lanes": one(b="T", c=3, h=5, w=5, o=3),
    "lines": workload_from_json({"op": "conv1d", "args": {"b": 2, "c": 9, "w": "T", "o": 18, "s": 1}}),
    "a product of the user's own": workload_from_json(
        {
            "program": "z[n, m] = sum(k) w[n, k] * x[k, m]; out[n, m] = max(z[n, m] * g[n, m], 0.0) + y[n]",
            "extents": {"m": "T", "n": 21, "k": 12},
            "constant": ["w"],
        }
    ),
    "weights that lie the other way": workload_from_json(
        {
            "program": "out[b, n, m] = sum(k) w[k, n] * x[b, k, m]",
            "extents": {"b": 3, "m": "T", "n": 35, "k": 12},
            "constant": ["w"],
        }
    ),
}


def turned(task: SearchTask, seed: int, count: int) -> list[MicroKernel]:
    rng = np.random.default_rng(seed)
    drawn = (RULE.space(task).sample(rng) for _ in range(400))
    found = list(islice((kernel for kernel in drawn if kernel["join"] == TURNED), count))
    assert len(found) == count
    return found


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("threads", [1, 2])
def test_every_size_is_right(name: str, threads: int) -> None:
    workload = WORKLOADS[name]
    task = task_of(workload, threads)
    shapes = [workload.dims(dict.fromkeys(workload.variables, size)) for size in (0, 1, 6, 16)]
    for kernel in turned(task, len(name) + threads, 3):
        assert built_problems(task, kernel, shapes) == [], (kernel, workload.program)


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_vectors_of_other_widths_are_right(target: str) -> None:
    workload = WORKLOADS["one image, a bias, a residual"]
    task = task_of(workload).on(runnable(target))
    shapes = [workload.dims(dict.fromkeys(workload.variables, size)) for size in (1, 7)]
    for kernel in turned(task, 3, 3):
        assert built_problems(task, kernel, shapes) == []


@pytest.mark.parametrize(
    ("workload", "joins"),
    [
        (one(b="T", c=19, h=7, w=7, o=40), {APART, JOINED, TURNED}),
        # Windows, steps, channels that lie last, groups, other dtypes, and weights that are new at every call.
        (conv(b="T", c=19, h=7, w=7, o=40, r=3, s=3, pad=1), {APART, JOINED}),
        (one(b="T", c=19, h=7, w=7, o=40, stride=2), {APART, JOINED}),
        (one(b="T", c=19, h=7, w=7, o=40, pad=1), {APART, JOINED}),
        (one(b="T", c=16, h=7, w=7, o=40, groups=2), {JOINED}),
        (workload_from_json({"op": "conv2d", "args": {"b": "T", "c": 8, "h": 4, "w": 4, "o": 8, "r": 1, "s": 1},
                             "dtype": "bfloat16"}), {APART, JOINED}),
    ],
)  # fmt: skip
def test_which_workloads_have_it(workload: Workload, joins: set[int]) -> None:
    assert {form.join for form in forms_of(workload)} - {APART} == joins - {APART}


def test_what_it_cannot_have_is_refused_by_name() -> None:
    workload = WORKLOADS["images"]
    space = RULE.space(task_of(workload))
    (kernel,) = turned(task_of(workload), 0, 1)
    for name, value in (("kc", 16), ("fetch", 1), ("pack", 1)):
        choices = next(axis.choices for axis in space.axes if axis.name == name)
        given = value if value in choices else choices[-1]
        if given:
            with pytest.raises(IllegalKernel, match=f"join={TURNED}.*needs {name}=0"):
                space.kernel({**space.values_of(kernel), name: given})
    with pytest.raises(IllegalKernel, match=f"needs join={TURNED}"):
        space.kernel({**space.values_of(RULE.default_kernel(task_of(workload))), "panel": 2})


def test_theory_knows_what_transposing_takes() -> None:
    """Of few steps of k it is much of the work."""

    def ratio(channels: int) -> float:
        workload = one(b="T", c=channels, h=14, w=14, o=64)
        task, rng = task_of(workload), np.random.default_rng(0)
        kernels = [RULE.space(task).sample(rng) for _ in range(400)]
        times = RULE.estimate_s(task, kernels, extents_of(workload, [{"T": 1}]))[:, 0]
        joins = np.array([kernel["join"] for kernel in kernels])
        return float(times[joins == TURNED].min() / times[joins == APART].min())

    assert ratio(4) > 1.0 > ratio(512) * 0.95
