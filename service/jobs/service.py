"""Submitting jobs: from the bytes of a request to a stored job."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tuner.errors import InvalidInput
from tuner.program.job.documents import read_json, read_yaml
from tuner.program.job.jobspec import JobSpec, check_measured, parse_job
from tuner.program.language.effort import Abandoned
from tuner.schedule import rules_of
from tuner.storage import ApiKey, Device, Job, NotFound, SearchTaskRow
from tuner.storage.sql import ClientStorage, DeviceStorage

JSON_TYPES = frozenset({"application/json"})
YAML_TYPES = frozenset({"application/yaml", "application/x-yaml", "text/yaml"})
MAX_IDEMPOTENCY_KEY = 200


def check(
    body: bytes, media_type: str, devices: DeviceStorage, abandoned: Callable[[], bool] = lambda: False
) -> JobSpec:
    """The job that a body holds, for a registered device, checked whole; the work of it is bounded.

    Raises InvalidInput, and Abandoned once ``abandoned`` says that the client has left.
    """
    if abandoned():
        raise Abandoned
    spec = on_device(read_job(body, media_type, abandoned), devices.list_devices())
    for task in spec.tasks:
        rules_of(task)  # raises here, rather than in a worker much later
        if abandoned():
            raise Abandoned
    return spec


def store(jobs: ClientStorage, spec: JobSpec, caller: ApiKey, idempotency_key: str | None) -> tuple[Job, bool]:
    """Store a checked job of the caller. Returns the job and whether it is new. Raises Conflict, QuotaExceeded."""
    return jobs.create_job(spec, caller.owner, idempotency_key, actor=caller.id, quota=caller.quota)


def find_task(
    storage: ClientStorage, job_id: str, position: int
) -> tuple[Job, tuple[SearchTaskRow, ...], SearchTaskRow]:
    """A job, its search tasks, and the one at ``position``. Raises NotFound."""
    job, rows = storage.get_job(job_id), storage.search_tasks(job_id)
    if position >= len(rows):
        raise NotFound(f"job {job_id} has no search task {position}; it has {len(rows)}")
    return job, rows, rows[position]


def read_job(body: bytes, media_type: str, abandoned: Callable[[], bool] = lambda: False) -> JobSpec:
    """The checked job that a body holds, by its media type. Raises InvalidInput, Abandoned."""
    read = read_yaml if media_type in YAML_TYPES else read_json
    return parse_job(read(body), abandoned)


def on_device(spec: JobSpec, devices: Sequence[Device]) -> JobSpec:
    """``spec`` with its native targets filled in by what its device registered with; of the one seen last if devices of
    its key differ. Raises InvalidInput, also where none of them can measure it."""
    matching = [device for device in devices if device.key == spec.device]
    if not matching:
        known = ", ".join(sorted({device.key for device in devices}))
        remedy = (
            f"a device that did: {known}" if known else "none has so far: start a worker, or shapewright device serve"
        )
        raise InvalidInput("device", f"no device ever registered with the key {spec.device!r}", remedy)
    filled = spec.on(max(matching, key=lambda device: device.seen_at).target)
    check_measured(filled, [device.target for device in matching])
    return filled


def check_idempotency_key(key: str | None) -> str | None:
    if key is not None and not (0 < len(key) <= MAX_IDEMPOTENCY_KEY and key.isascii() and key.isprintable()):
        form = f"1 to {MAX_IDEMPOTENCY_KEY} printable ASCII characters"
        raise InvalidInput("Idempotency-Key", f"{key[:40]!r} is not a valid key", form)
    return key
