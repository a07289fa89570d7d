"""POST /validate, POST /explain, GET /ops and the JSON schema of job files. Nothing is stored, and nothing compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response

from service.access.scopes import READ
from service.dependencies import DevicesDep
from service.explain.schemas import CheckedJob, CheckedTask, ExplainedJob, ExplainedTask, OpOut
from service.jobs import service
from service.jobs.endpoints import SubmittedDep
from service.jobs.job_schema import request_body
from service.problems.openapi import answers
from service.validation import Abandon, ValidationDep
from tuner.program.catalogue import OPS
from tuner.program.job.jobspec import JobSpec
from tuner.program.job.schema import schema_text
from tuner.program.job.task import SearchTask
from tuner.program.language.effort import Abandoned
from tuner.program.target import Target
from tuner.schedule import space_of
from tuner.schedule.described import explained, op_described
from tuner.storage import Device

router = APIRouter(tags=["jobs"])

T = TypeVar("T")
DESCRIBED = 32
"""Search tasks in an answer."""
GENERIC = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1}
"""The target whose rules are named while no device has registered."""
SCHEMA_TYPE = "application/schema+json"
_SCHEMA: dict[int | str, dict[str, Any]] = {200: {"content": {SCHEMA_TYPE: {"schema": {"type": "object"}}}}}
BODY: dict[str, Any] = {
    "responses": answers(415, 422),
    "openapi_extra": request_body(sorted(service.JSON_TYPES | service.YAML_TYPES)),
}


@router.post("/validate", dependencies=[READ], **BODY)
async def validate_job(
    request: Request, submitted: SubmittedDep, devices: DevicesDep, validation: ValidationDep
) -> CheckedJob:
    """Check a job file without submitting it: one that would be refused is refused here, with the same problem."""
    spec, tasks = await validation.run(request, lambda left: _each(_check(submitted, devices, left), _checked, left))
    return CheckedJob(
        valid=True,
        name=spec.name,
        device=spec.device,
        policy=spec.policy,
        budget=spec.budget.to_json(),
        tasks=[task.model_copy(update={"count": count}) for task, count in zip(tasks, spec.counts, strict=False)],
        task_count=len(spec.tasks),
    )


@router.post("/explain", dependencies=[READ], **BODY)
async def explain_job(
    request: Request, submitted: SubmittedDep, devices: DevicesDep, validation: ValidationDep
) -> ExplainedJob:
    """Say how a job would be searched: which rule takes each workload and why, and what the search chooses from."""
    spec, tasks = await validation.run(request, lambda left: _each(_check(submitted, devices, left), _explained, left))
    return ExplainedJob(name=spec.name, tasks=tasks, task_count=len(spec.tasks))


@router.get("/ops", dependencies=[READ])
def list_ops(devices: DevicesDep) -> list[OpOut]:
    """The catalogue of operators. Their rules are those on the device that was seen last."""
    return list(_ops(_newest_target(devices.list_devices())))


@router.get("/schemas/job.json", dependencies=[READ], response_class=Response, responses=_SCHEMA)
def job_file_schema() -> Response:
    """The JSON schema of job files, for editors (draft 7)."""
    return Response(schema_text(), media_type=SCHEMA_TYPE)


def _check(submitted: tuple[bytes, str], devices: DevicesDep, left: Abandon) -> JobSpec:
    return service.check(*submitted, devices, left)


def _each(spec: JobSpec, describe: Callable[[SearchTask], T], left: Abandon) -> tuple[JobSpec, list[T]]:
    """The job, and what is said of its first tasks. Raises Abandoned."""
    described = []
    for task in spec.tasks[:DESCRIBED]:
        if left():
            raise Abandoned
        described.append(describe(task))
    return spec, described


def _checked(task: SearchTask) -> CheckedTask:
    space = space_of(task)
    return CheckedTask(
        workload=str(task.workload),
        workload_key=task.workload.key,
        target=task.known_target.fingerprint,
        threads=task.threads,
        cache=task.cache.value,
        rule=", ".join(each.rule for each in space.spaces),
        axes=sum(len(each.axes) for each in space.spaces),
        size=space.size,
        shapes=math.prod(len(var.values) for var in task.shape_vars),
        instances=len(task.instances),
        count=1,
    )


def _explained(task: SearchTask) -> ExplainedTask:
    return ExplainedTask.model_validate(explained(task))


@cache
def _ops(target: Target) -> tuple[OpOut, ...]:
    return tuple(OpOut.model_validate(op_described(op, target)) for _, op in sorted(OPS.items()))


def _newest_target(devices: tuple[Device, ...]) -> Target:
    newest = max(devices, key=lambda device: device.seen_at, default=None)
    return newest.target if newest else Target.from_json(GENERIC)
