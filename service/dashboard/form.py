"""The job form's own route: the job that a job file would make, or what is wrong with it. Nothing is stored."""

from __future__ import annotations

import math
from typing import Any

from fastapi import APIRouter, Request

from service.access.scopes import SUBMIT
from service.dependencies import DevicesDep
from service.jobs import service
from service.jobs.endpoints import SubmittedDep
from service.validation import Abandon, ValidationDep
from tuner.program.job.task import SearchTask
from tuner.schedule import space_of

router = APIRouter(include_in_schema=False, dependencies=[SUBMIT])

MAX_DESCRIBED = 16


@router.post("/jobs/check")
async def check_job(
    request: Request, submitted: SubmittedDep, storage: DevicesDep, validation: ValidationDep
) -> dict[str, Any]:
    """The first search tasks of a job file, and how many it has.

    A file that would be refused is refused here, with the same problem document.
    """

    def check(abandoned: Abandon) -> dict[str, Any]:
        spec = service.check(*submitted, storage, abandoned)
        tasks = [_described(task) for task in spec.tasks[:MAX_DESCRIBED]]
        return {"name": spec.name, "tasks": tasks, "task_count": len(spec.tasks)}

    return await validation.run(request, check)


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
        "cache": task.cache,
    }
