"""The target that a query about a workload names."""

from __future__ import annotations

from tuner.errors import InvalidInput


def fingerprint(target: str | None) -> str | None:
    """The ``target`` of a query, None if it is left out. ``native`` means nothing to a service: whose would it be?"""
    if target == "native":
        remedy = "a fingerprint, as GET /v1/devices lists them"
        raise InvalidInput("target", "native is another target on every machine", remedy)
    return target or None
