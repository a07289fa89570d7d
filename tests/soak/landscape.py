"""What candidates of a chaos test do, by their names alone: some crash, hang or compute wrongly, always; and how long
each takes is by a model, so that a library can be judged without the noise of a measurement.

Searches of some fifty trials find the best kernels of this model whatever their seeds, so libraries can be held to 5 %.
"""

from __future__ import annotations

from collections.abc import Mapping

from tuner.library.dispatcher import Dispatcher
from tuner.measure.runners.simulated import Faults
from tuner.program.job.task import SearchTask
from tuner.records import ErrorKind
from tuner.schedule.space import MicroKernel
from tuner.storage.sql import Storage

FAULTS = Faults(crashing=0.1, hanging=0.05, wrong=0.05)
STEPS_PER_ROW = 1600
STEP_S = 1e-9
"""About: a multiplication that waits for the one before it."""


def fault_of(kernel: MicroKernel) -> ErrorKind | None:
    return FAULTS.of(kernel, 0)


def steps_per_row(kernel: MicroKernel) -> int:
    """Of some kernels nearly twice that of others, for what theory takes to be good or indifferent."""
    worse = 1 + 0.4 * (kernel["ku"] >= 4) + 0.2 * (kernel["near"] > 0)
    return round(STEPS_PER_ROW * worse * (1 + 0.04 * abs(kernel["nv"] - 3)))


def cost_s(task: SearchTask, kernel: MicroKernel, shape: Mapping[str, int]) -> float:
    """What a kernel takes at a shape: always the same."""
    rows = task.workload.axis_sizes(task.workload.dims(shape))["m"]
    return -(-rows // kernel["mr"]) * kernel["mr"] * steps_per_row(kernel) * STEP_S


def objective(storage: Storage, job_id: str) -> float:
    """The time of all instances with the library of a job of one workload, by the model."""
    (row,) = storage.search_tasks(job_id)
    dispatcher = Dispatcher.from_json(storage.latest_artifact(row.workload_key, job_id=job_id).dispatch)
    shapes = [instance.shape for instance in row.task.instances]
    return sum(cost_s(row.task, dispatcher.kernel_for(shape), shape) for shape in shapes)
