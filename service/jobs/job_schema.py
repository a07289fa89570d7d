"""A job file as the OpenAPI document describes it."""

from __future__ import annotations

from typing import Any

from tuner.program.job.schema import definitions, job_object

PARTS = "#/components/schemas/"
JOB: dict[str, Any] = {"title": "Job", "description": "A job file."} | job_object(PARTS)
SCHEMAS: dict[str, dict[str, Any]] = {"Job": JOB, **definitions(PARTS)}
"""The schemas of the document that a job is made of."""
EXAMPLE: dict[str, Any] = {
    "name": "my dense layer",
    "workload": {"op": "dense", "args": {"m": "16*T", "n": 1024, "k": 512}},
    "shape_vars": {"T": {"min": 1, "max": 64}},
    "budget": {"trials": 128, "seconds": 90},
}


def request_body(media_types: list[str]) -> dict[str, Any]:
    """The body of a submission, for a route's ``openapi_extra``."""
    content = {each: {"schema": {"$ref": PARTS + "Job"}, "example": EXAMPLE} for each in media_types}
    return {"requestBody": {"required": True, "content": content}}
