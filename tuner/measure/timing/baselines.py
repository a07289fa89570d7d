"""What the kernels of a task are compared with, measured on its device: NumPy's products, and the device's roof."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.measure.timing.caches import flush_of, flushed
from tuner.measure.timing.protocol import Flush, Timer, sampling
from tuner.measure.verification.guarded import Array
from tuner.program.job.task import SearchTask
from tuner.program.language.expr import Axis, Binary, Read
from tuner.program.language.notation import Stage
from tuner.program.language.workload import Workload, WorkloadInstance
from tuner.records import NUMPY, Baseline, Baselines, Roof

LONGEST_S = 1.5
"""The time after which no further product is begun, nor one that would last past it."""
MIN_CALLS = 3
"""Calls of a long product: a warm-up and two samples."""
EXPECTED_SHARE = 0.5
"""The share of the peak that NumPy is expected to reach at most products."""
BLAS = frozenset({"float32", "float64"})
"""The dtypes whose products NumPy hands to BLAS."""

MakeArray = Callable[[str, Mapping[str, int]], Array]
"""An aligned array of random values for a tensor of the program, by its name and the values of the symbols."""


def measure_baselines(
    task: SearchTask,
    instances: Sequence[WorkloadInstance],
    array: MakeArray,
    anchor: Callable[[], float],
    measure_roof: Callable[[Timer], Roof],
    clock: Callable[[], float] = time.monotonic,
) -> Baselines:
    """The roof of this device, and NumPy's products at the instances, in their order, that LONGEST_S has room for.

    The cheapest come first. By the protocol of trials (tuner.measure.timing.protocol), but that long products are
    sampled twice and nothing is taken again. A program without products of two tensors has no such points: NumPy
    has nothing to compare it with. NumPy runs on one thread here: a task on more has none, either.
    """
    timer = Timer(anchor, least=MIN_CALLS - 1, again=0)
    roof = measure_roof(timer)
    ends_s = clock() + LONGEST_S
    workload = task.workload
    work = {instance: workload.flops(workload.dims(instance.shape)) for instance in instances}
    points: dict[WorkloadInstance, Baseline] = {}
    for instance in sorted(instances, key=work.__getitem__):
        expected_s = MIN_CALLS * work[instance] / (EXPECTED_SHARE * roof.flops_per_s)
        if task.threads > 1 or clock() + expected_s > ends_s:
            break
        call = numpy_call(workload, workload.dims(instance.shape), array)
        if call is None:
            break
        flush = flush_of_numpy(task, call)
        timed = timer.measure(flushed(call, flush), sampling(call, flush))
        points[instance] = Baseline(NUMPY, instance, timed.latency_s, timed.anchor_s)
    return Baselines(tuple(points[instance] for instance in instances if instance in points), roof)


@dataclass(frozen=True, slots=True)
class NumpyCall:
    """Products of matrices, each [left, right, output], one after another. A call returns the last output. ``tensors``:
    the names of what is left and right in each."""

    products: tuple[tuple[Array, Array, Array], ...]
    tensors: tuple[tuple[str, str], ...]

    def __call__(self) -> Array:
        for left, right, out in self.products:
            np.matmul(left, right, out)
        return out


def flush_of_numpy(task: SearchTask, call: NumpyCall) -> Flush | None:
    """What comes before each call by the task's protocol. Of transposed operands the copies are flushed."""
    read = [
        pair
        for names, (left, right, _) in zip(call.tensors, call.products, strict=True)
        for pair in zip(names, (left, right), strict=True)
    ]
    return flush_of(task, read, [out for _, _, out in call.products])


def numpy_call(workload: Workload, dims: Mapping[str, int], array: MakeArray) -> NumpyCall | None:
    """The stages that are products of two tensors by ``numpy.matmul``, into outputs that are there already.

    None if the program has no such stage, or one in a dtype that NumPy has no BLAS for.
    """
    sizes = workload.axis_sizes(dims)
    found = _products(workload)
    products = tuple(_matrices(stage, left, right, sizes, array, dims) for stage, left, right in found)
    return NumpyCall(products, tuple((left.tensor, right.tensor) for _, left, right in found)) if found else None


def _products(workload: Workload) -> list[tuple[Stage, Read, Read]]:
    """Stages that sum products of two tensors read at plain axes, and what they read."""
    result = []
    for stage in workload.program.stages:
        match stage:
            case Stage(reducer="sum", body=Binary(operator="*", left=Read() as left, right=Read() as right)):
                dtypes = {workload.tensors[read.tensor].dtype for read in (left, right)}
                if len(dtypes) == 1 and dtypes <= BLAS and _is_matmul(stage, left, right):
                    result.append((stage, left, right))
            case _:
                pass
    return result


def _is_matmul(stage: Stage, left: Read, right: Read) -> bool:
    """Whether every index is an axis of its own, everything reduced is an axis of both, and something kept of one."""
    a, b = _axes(left), _axes(right)
    if a is None or b is None or left.tensor == right.tensor:
        return False
    return set(stage.reduce_axes) <= set(a) & set(b) and set(a) != set(b)


def _axes(read: Read) -> tuple[str, ...] | None:
    names = tuple(index.name for index in read.indices if isinstance(index, Axis))
    return names if len(set(names)) == len(read.indices) else None


def _matrices(
    stage: Stage, left: Read, right: Read, sizes: Mapping[str, int], array: MakeArray, dims: Mapping[str, int]
) -> tuple[Array, Array, Array]:
    """[batch, rows, sum], [batch, sum, columns] and a place for the product."""
    a, b = _axes(left) or (), _axes(right) or ()
    batch = [axis for axis in stage.axes if axis in a and axis in b]
    rows = [axis for axis in stage.axes if axis in a and axis not in b]
    columns = [axis for axis in stage.axes if axis in b and axis not in a]

    def view(read: Read, axes: Sequence[str], *groups: Sequence[str]) -> Array:
        turned = array(read.tensor, dims).transpose([axes.index(axis) for group in groups for axis in group])
        return turned.reshape([_volume(sizes, group) for group in groups])

    summed = list(stage.reduce_axes)
    first, second = view(left, a, batch, rows, summed), view(right, b, batch, summed, columns)
    out = np.empty((_volume(sizes, batch), _volume(sizes, rows), _volume(sizes, columns)), first.dtype)
    return (first, second, out) if batch else (first[0], second[0], out[0])


def _volume(sizes: Mapping[str, int], axes: Sequence[str]) -> int:
    return math.prod(sizes[axis] for axis in axes)
