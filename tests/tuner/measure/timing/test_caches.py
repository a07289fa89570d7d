"""What is flushed before a timed call, and that no two calls in a row share a flush."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from tuner.measure.timing.baselines import flush_of_numpy, numpy_call
from tuner.measure.timing.caches import FLUSH, flush_of
from tuner.measure.timing.protocol import SAMPLES, Timer, sampling
from tuner.measure.verification.guarded import Array
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.target import native

SIZES = {"x": 5, "y": 7, "w": 11, "out": 13}


@pytest.mark.parametrize(
    ("op", "cache", "names"),
    [
        ("dense", "warm", []),
        ("dense", "streamed", ["w"]),
        ("dense", "cold", ["x", "w", "out"]),
        ("matmul", "streamed", []),
        ("matmul", "cold", ["x", "y", "out"]),
    ],
)
def test_the_operands_that_leave_the_caches(
    op: str, cache: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []

    def flush_all_but_the_first(first: None, *tensors: Any) -> None:
        flushed.extend(tensor.shape[0] for tensor in tensors)

    monkeypatch.setattr(tvm_ffi, "get_global_func", {FLUSH: flush_all_but_the_first}.__getitem__)
    task = SearchTask(op, {"m": 2, "n": 3, "k": 4}, instances=[{}], target=native(), cache=cache)

    def made(name: str) -> Array:
        return np.zeros(SIZES[name], np.float32)

    flush = flush_of(task, ((name, made(name)) for name in SIZES), [made("out")])

    assert (flush is None) == (not names)
    if flush is not None:
        flush()
    assert flushed == [SIZES[name] for name in names]


TURNED = "out[n, b, m] = sum(k, l) x[k, m, l, b] * w[b, l, n, k]"
EXTENTS = {"n": 2, "b": 3, "m": 4, "k": 5, "l": 6}


@pytest.mark.parametrize(("cache", "names"), [("cold", {"x", "w"}), ("streamed", {"w"})])
def test_numpy_finds_no_copy_of_a_flushed_operand_in_the_caches(
    cache: str, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operands whose axes NumPy cannot merge where they lie are copied before the first call."""
    places: set[int] = set()

    def flush_all_but_the_first(first: None, *tensors: Any) -> None:
        places.update(tensor.data_ptr() for tensor in tensors)

    monkeypatch.setattr(tvm_ffi, "get_global_func", {FLUSH: flush_all_but_the_first}.__getitem__)
    workload = workload_from_json({"program": TURNED, "extents": EXTENTS, "constant": ["w"]})
    task = SearchTask(workload, instances=[{}], target=native(), cache=cache)
    made: dict[str, Array] = {}

    def array(name: str, dims: Mapping[str, int]) -> Array:
        tensor = workload.tensors[name]
        return made.setdefault(name, np.zeros(tensor.shape(dims), np.float32))

    call = numpy_call(workload, {}, array)
    assert call is not None
    ((left, right, out),) = call.products
    assert not np.shares_memory(left, made["x"])
    flush = flush_of_numpy(task, call)
    assert flush is not None
    flush()

    read = {"x": left, "w": right, **({"out": out} if cache == "cold" else {})}
    assert places == {read[name].ctypes.data for name in read if name in names or name == "out"}


def test_every_call_of_a_sample_has_a_flush_of_its_own_which_does_not_count() -> None:
    events: list[str] = []

    def flush() -> None:
        events.append("flush")
        time.sleep(0.02)

    sample = sampling(lambda: events.append("call"), flush)
    result = sample(3, 2, lambda: events.append("before"))
    assert events == ["before", *("flush", "call") * 3] * 2
    assert max(result) < 0.01

    flushing = Timer(lambda: 1e-6, least=1, again=0).measure(lambda: time.sleep(0.02), sample)
    assert len(flushing.samples_s) < SAMPLES, "a plan goes by the time of the flush, too"
