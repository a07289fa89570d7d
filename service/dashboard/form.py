"""The job form's own route: what a job file would ask for, or what is wrong with it. Nothing is stored."""

from __future__ import annotations

import math
from typing import Any

from fastapi import APIRouter

from service.dependencies import DevicesDep
from service.jobs import service
from service.jobs.endpoints import SubmittedDep
from tuner.program.task import SearchTask
from tuner.rules import space_of

router = APIRouter(include_in_schema=False)


@router.post("/jobs/check")
def check_job(submitted: SubmittedDep, storage: DevicesDep) -> dict[str, Any]:
    """The search tasks of a job file. A file that would be refused is refused here, with the same problem document."""
    spec = service.on_device(service.read_job(*submitted), storage.list_devices())
    return {"name": spec.name, "tasks": [_described(task) for task in spec.tasks]}


def _described(task: SearchTask) -> dict[str, Any]:
    space = space_of(task)
    return {
        "workload": str(task.workload),
        "rule": ", ".join(each.rule for each in space.spaces),
        "axes": sum(len(each.axes) for each in space.spaces),
        "size": f"{space.size:.1e}",
        "shapes": math.prod(len(var.values) for var in task.shape_vars),
        "instances": len(task.instances),
        "threads": task.threads,
    }
