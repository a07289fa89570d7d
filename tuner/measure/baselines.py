"""What the kernels of a task are compared with, measured on its device: NumPy's product, and the device's roof."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from tuner.measure.roof import measure_roof
from tuner.measure.timing import Timer, sampling
from tuner.measure.verify import Floats, operand_shape
from tuner.program.ops import Operand
from tuner.program.reference import matrices
from tuner.program.target import native
from tuner.program.task import SearchTask
from tuner.program.workload import WorkloadInstance
from tuner.records import NUMPY, Baseline, Baselines

LONGEST_S = 1.5
"""No further product is begun after so long, nor one that would last past it."""
LEAST_CALLS = 3
"""Calls of a long product: a warm-up and two samples."""
EXPECTED_SHARE = 0.5
"""Of the peak that NumPy is expected to reach at most products."""

MakeArray = Callable[[str, tuple[int, ...]], Floats]
"""An aligned array of random values, by operand and shape."""


def measure_baselines(
    task: SearchTask,
    instances: Sequence[WorkloadInstance],
    array: MakeArray,
    anchor: Callable[[], float],
    clock: Callable[[], float] = time.monotonic,
) -> Baselines:
    """The roof of this device, and NumPy's product at the instances, in their order, that LONGEST_S has room for.

    The cheapest come first. By the protocol of trials (tuner.measure.timing), but that long products are sampled
    twice and nothing is taken again. NumPy runs on one thread here: a task on more has no such points.
    """
    ends_s = clock() + LONGEST_S
    timer = Timer(anchor, least=LEAST_CALLS - 1, again=0)
    roof = measure_roof(native(), task.threads, timer)
    found: dict[WorkloadInstance, Baseline] = {}
    for instance in sorted(instances, key=lambda one: task.workload.flops(one.shape)):
        expected_s = LEAST_CALLS * task.workload.flops(instance.shape) / (EXPECTED_SHARE * roof.flops_per_s)
        if task.threads > 1 or clock() + expected_s > ends_s:
            break
        call = numpy_call(task, instance, array)
        timed = timer.measure(call, sampling(call))
        found[instance] = Baseline(NUMPY, instance, timed.latency_s, timed.anchor_s)
    return Baselines(tuple(found[instance] for instance in instances if instance in found), roof)


def numpy_call(task: SearchTask, instance: WorkloadInstance, array: MakeArray) -> Callable[[], object]:
    """The contraction alone by ``numpy.matmul``, into an output that is there already."""
    contraction, extents = task.workload.op.contraction, task.workload.extents(instance.shape)

    def made(operand: Operand) -> Floats:
        return array(operand.name, operand_shape(operand, extents))

    left, right = matrices(contraction, made(contraction.left), made(contraction.right))
    out = made(contraction.output)
    return lambda: np.matmul(left, right, out=out)
