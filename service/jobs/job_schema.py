"""A job file as the OpenAPI document describes it. ``tuner.program.job.jobspec`` checks what it may hold in full."""

from __future__ import annotations

from typing import Any

from tuner.program.job.jobspec import MAX_NAME, MAX_TASKS
from tuner.program.job.policies import POLICIES
from tuner.program.job.webhook import MAX_PRIORITY, MAX_URL

_SHAPE_VAR = {
    "type": "object",
    "description": "{min, max}, {min, max, step}, {min, max, powers_of}, or {values: [...]}",
}
_TARGET = {"description": "`native`, or a mapping as in {kind: llvm, mcpu: sapphirerapids, num-cores: 2}"}
_WORKLOAD = {
    "type": "object",
    "description": "an operator of the catalogue (`op`, `args`) or a program (`program`, `extents`); `count`, `layers`",
}

JOB: dict[str, Any] = {
    "title": "Job",
    "type": "object",
    "required": ["budget"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": MAX_NAME},
        "workload": _WORKLOAD,
        "workloads": {"type": "array", "items": _WORKLOAD, "minItems": 1, "maxItems": MAX_TASKS},
        "shape_vars": {"type": "object", "additionalProperties": _SHAPE_VAR},
        "instances": {"type": "array", "items": {"type": "object"}},
        "target": _TARGET,
        "targets": {"type": "array", "items": _TARGET, "minItems": 1, "maxItems": MAX_TASKS},
        "threads": {"type": "integer", "minimum": 1},
        "device": {"type": "string", "minLength": 1, "description": "a key of the tracker"},
        "policy": {"type": "string", "enum": list(POLICIES)},
        "budget": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": False,
            "properties": {
                "trials": {"type": "integer", "minimum": 0},
                "seconds": {"type": "number", "exclusiveMinimum": 0},
            },
        },
        "max_kernels": {"type": "integer", "minimum": 1},
        "seed": {"type": "integer", "minimum": 0, "maximum": 2**32 - 1},
        "priority": {"type": "integer", "minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY},
        "webhook": {
            "type": "object",
            "required": ["url"],
            "additionalProperties": False,
            "properties": {"url": {"type": "string", "format": "uri", "maxLength": MAX_URL}},
        },
    },
}
EXAMPLE: dict[str, Any] = {
    "name": "my dense layer",
    "workload": {"op": "dense", "args": {"m": "16*T", "n": 1024, "k": 512}},
    "shape_vars": {"T": {"min": 1, "max": 64}},
    "budget": {"trials": 128, "seconds": 90},
}


def request_body(media_types: list[str]) -> dict[str, Any]:
    """The body of a submission, for a route's ``openapi_extra``."""
    content = {each: {"schema": JOB, "example": EXAMPLE} for each in media_types}
    return {"requestBody": {"required": True, "content": content}}
