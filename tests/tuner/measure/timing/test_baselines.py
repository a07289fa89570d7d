"""NumPy beside the kernels of a task: the right product, and no more time than there is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from tuner.measure.timing.baselines import LONGEST_S, measure_baselines, numpy_call
from tuner.measure.timing.protocol import Timer
from tuner.measure.verification.guarded import Array
from tuner.measure.verification.inputs import random_array
from tuner.program.catalogue import OPS
from tuner.program.job.build import make_workload, workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar, Workload
from tuner.program.reference import compute
from tuner.program.target import native
from tuner.records import Baselines, Roof

T = ShapeVar("T", range(1, 65))
ROOF = Roof(1e11, 1e10, 3e-6)
ARGS = {"b": 3, "m": T, "n": 24, "k": 16, "i": 5, "j": T, "d": 8, "h": 2}
PRODUCTS = ("dense", "matmul", "batch_matmul_nn", "batch_matmul_nt", "gemv")


def task_of(op: str = "matmul", threads: int = 1, instances: tuple[int, ...] = (64, 1, 7)) -> SearchTask:
    args = {name: ARGS[name] for name in OPS[op].args}
    args |= {"n": T} if op == "gemv" else {}
    return SearchTask(op, args, (T,), instances, target=native(), threads=threads, epilogue=("relu",))


class Arrays:
    """Makes arrays for tensors of a workload, and keeps them by name."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.made: dict[str, Array] = {}

    def __call__(self, name: str, dims: Mapping[str, int]) -> Array:
        tensor = self.workload.tensors[name]
        return self.made.setdefault(name, random_array(name, tensor.shape(dims), tensor.dtype))


@pytest.mark.parametrize("op", PRODUCTS)
def test_the_product_is_the_contraction_alone(op: str) -> None:
    workload = task_of(op).workload
    dims = workload.dims({"T": 7})
    arrays = Arrays(workload)
    call = numpy_call(workload, dims, arrays)
    assert call is not None
    args = {name: getattr(ARGS[name], "expr", ARGS[name]) for name in OPS[op].args} | (
        {"n": "T"} if op == "gemv" else {}
    )
    plain = make_workload(op, args)
    (wanted,) = compute(plain, list(arrays.made.values()), plain.dims({"T": 7}))
    product = np.asarray(call())
    np.testing.assert_allclose(product.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-5)
    # Into the same memory at every call.
    assert np.shares_memory(np.asarray(call()), product)


def test_operands_in_any_order_of_axes_are_turned() -> None:
    text = "out[n, b, m] = sum(k, l) x[k, m, l, b] * w[b, l, n, k]"
    workload = workload_from_json({"program": text, "extents": {"n": 2, "b": 3, "m": 4, "k": 5, "l": 6}})
    arrays = Arrays(workload)
    call = numpy_call(workload, {}, arrays)
    assert call is not None
    wanted = np.einsum("kmlb,blnk->bmn", arrays.made["x"], arrays.made["w"])
    np.testing.assert_allclose(np.asarray(call()).reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-5)


def test_attention_is_compared_with_both_of_its_products() -> None:
    workload = task_of("attention").workload
    arrays = Arrays(workload)
    call = numpy_call(workload, workload.dims({"T": 7}), arrays)
    assert call is not None
    call()
    assert set(arrays.made) == {"q", "k", "e", "v"}


@pytest.mark.parametrize(
    ("op", "args", "dtype"),
    [
        ("softmax", {"m": 4, "n": 4}, "float32"),
        ("layer_norm", {"m": 4, "n": 4}, "float32"),
        ("conv2d", {"b": 1, "c": 2, "h": 5, "w": 5, "o": 2, "r": 3, "s": 3}, "float32"),
        ("moe_dense", {"t": 3, "e": 2, "n": 4, "k": 4}, "float32"),
        ("dense", {"m": 4, "n": 4, "k": 4}, "bfloat16"),
        ("dense", {"m": 4, "n": 4, "k": 4}, "int8"),
    ],
)
def test_where_numpy_has_no_product_there_is_nothing_to_compare_with(op: str, args: dict[str, int], dtype: str) -> None:
    workload = make_workload(op, args, dtype)
    assert numpy_call(workload, {}, Arrays(workload)) is None
    task = SearchTask(workload, instances=[{}], target=native())
    assert measured(task, lambda: 0.0) == Baselines(roof=ROOF)


def measured(task: SearchTask, clock: Callable[[], float], roof: Roof = ROOF) -> Baselines:
    """With a roof that is there already."""

    def at_once(timer: Timer) -> Roof:
        return roof

    def array(name: str, dims: Mapping[str, int]) -> Array:
        return Arrays(task.workload)(name, dims)

    return measure_baselines(task, task.instances, array, lambda: 3e-6, at_once, clock)


def test_every_instance_is_measured_in_the_order_asked_for() -> None:
    task = task_of()
    result = measured(task, lambda: 0.0)
    assert [point.instance for point in result.points] == list(task.instances)
    assert all(0 < point.latency_s < 0.1 and point.anchor_s for point in result.points)
    assert result.roof == ROOF


def test_when_time_is_up_the_cheapest_have_been_measured() -> None:
    now = iter((0.0, 0.4 * LONGEST_S, 0.8 * LONGEST_S, 1.2 * LONGEST_S))
    result = measured(task_of(), lambda: next(now))
    assert [point.instance.shape["T"] for point in result.points] == [1, 7]


def test_what_would_take_too_long_is_not_begun() -> None:
    task = task_of()
    # So slow that the largest product's three calls would not end in time, the next one's would.
    flops_per_s = 2.0 * 3 * task.workload.flops(task.workload.dims({"T": 64})) / (1.1 * LONGEST_S)
    result = measured(task, lambda: 0.0, Roof(flops_per_s, 1e10))
    assert [point.instance.shape["T"] for point in result.points] == [1, 7]


def test_numpys_one_thread_is_no_match_for_more() -> None:
    assert measured(task_of(threads=2), lambda: 0.0) == Baselines(roof=ROOF)
