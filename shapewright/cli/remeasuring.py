"""Jobs that measure stale knowledge again: the last search of each workload, on the same target."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tuner.program.job.jobspec import MAX_NAME, JobSpec, parse_job
from tuner.program.job.policies import DEFAULT_POLICY
from tuner.records import PROTOCOL
from tuner.schedule import RULES
from tuner.storage import NotFound

if TYPE_CHECKING:
    from tuner.program.language.workload import JsonObject
    from tuner.storage import Device, SearchTaskRow, StaleKnowledge
    from tuner.storage.sql import Storage

OWNER = "db remeasure"
SUFFIX = " (measured again)"
DEFAULT_TRIALS = 64
"""Trials for a workload that no job here has searched: its records were imported."""
MAX_VALUES = 256
"""Instances of such a job: the first that were recorded."""


def submit_again(storage: Storage, keys: Sequence[str], trials: int | None) -> list[dict[str, Any]]:
    """Submit a job for each workload, target, threads and caches that have something stale (of these keys, if any).

    Each comes with its ``job_id``, or null and a ``note`` that says why. Raises NotFound for a key with nothing stale.
    """
    result = {
        (each.workload_key, each.target_fingerprint, each.threads, each.cache): each
        for each in storage.stale_knowledge()
        if not each.remeasured and (not keys or each.workload_key in keys)
    }
    for key in keys:
        if not any(place[0] == key for place in result):
            raise NotFound(f"workload {key!r} has nothing stale; shapewright db stale lists what has")
    devices = {device.target.fingerprint: device for device in storage.list_devices()}
    return [_submit(storage, each, devices.get(each.target_fingerprint), trials) for each in result.values()]


def _submit(storage: Storage, stale: StaleKnowledge, device: Device | None, trials: int | None) -> dict[str, Any]:
    place = {name: getattr(stale, name) for name in ("workload_key", "target_fingerprint", "threads", "cache")}
    if device is None:
        return {**place, "job_id": None, "note": "no device of this target has registered"}
    spec = _spec(storage, stale, device, trials)
    job, new = storage.create_job(spec, OWNER, _idempotency_key(stale, spec.source))
    return {**place, "job_id": job.id, "note": "submitted" if new else f"submitted before, {job.state}"}


def _spec(storage: Storage, stale: StaleKnowledge, device: Device, trials: int | None) -> JobSpec:
    row = _last_search(storage, stale)
    document = _from_records(storage, stale, device) if row is None else _from_search(storage, row)
    if trials is not None:
        document["budget"] = {"trials": trials}
    document["name"] = document["name"].removesuffix(SUFFIX)[: MAX_NAME - len(SUFFIX)] + SUFFIX
    return parse_job(document).on(device.target)


def _last_search(storage: Storage, stale: StaleKnowledge) -> SearchTaskRow | None:
    try:
        rows = storage.tasks_of_workload(stale.workload_key)
    except NotFound:
        return None
    place = (stale.target_fingerprint, stale.threads, stale.cache)
    return next((row for row in rows if (row.target_fingerprint, row.task.threads, row.task.cache) == place), None)


def _from_search(storage: Storage, row: SearchTaskRow) -> JsonObject:
    """A job of one search task, with its part of its job's budget."""
    job, parts = storage.get_job(row.job_id), len(storage.search_tasks(row.job_id))
    budget = dict(job.spec["budget"])
    if "trials" in budget:
        budget["trials"] = math.ceil(budget["trials"] / parts)
    if "seconds" in budget:
        budget["seconds"] = budget["seconds"] / parts
    return {
        **row.task.to_json(),
        "target": "native",
        "name": job.name,
        "device": job.device,
        "policy": job.spec.get("policy", DEFAULT_POLICY),
        "seed": job.spec.get("seed", 0),
        "budget": budget,
    }


def _from_records(storage: Storage, stale: StaleKnowledge, device: Device) -> JsonObject:
    """A job for the instances that were recorded, whose shape variables are the workload's symbols."""
    result = storage.export_records([stale.workload_key])
    shapes = list(dict.fromkeys(shared.record.result.instance.values for shared in result))[:MAX_VALUES]
    workload = storage.get_workload(stale.workload_key)
    return {
        "name": workload.label,
        "workload": workload.workload,
        "shape_vars": {name: {"values": sorted({dict(shape)[name] for shape in shapes})} for name, _ in shapes[0]},
        "instances": [dict(shape) for shape in shapes],
        "threads": stale.threads,
        "cache": stale.cache.value,
        "device": device.key,
        "budget": {"trials": DEFAULT_TRIALS},
    }


def _idempotency_key(stale: StaleKnowledge, document: JsonObject) -> str:
    """A key that stays the same until there is something new to measure again, or a new way to do it."""
    rules = [f"{rule.name} {rule.version}" for rule in RULES]
    told = (stale.target_fingerprint, stale.newest_at, PROTOCOL, rules, document)
    return "remeasure-" + hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]
