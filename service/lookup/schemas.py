"""Queries and answers of lookups. Latencies in seconds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_QUERIES = 1000


class BestOut(BaseModel):
    """The best known micro-kernel for one shape, told by the values of the workload's symbols.

    ``match``: ``exact``, measured at this very shape (``latency_s`` is the median of ``readings`` readings at one
    speed); ``dispatched``, what the library runs for this shape of its range; ``nearest``, the best at
    ``measured_shape``, which is nearest, and expected to be no slower than the default; ``default``, right everywhere.
    ``distance`` is log((size + 1) / (measured size + 1)) along each symbol. ``job_id`` is the job that measured the
    kernel, or built the library that answers; ``digest`` is the library that was consulted, ``served_by`` the kernel
    that it runs for this shape, ``served_latency_s`` what was measured of that one here, and
    ``served_predicted_latency_s`` what the library expects. ``predicted_latency_s`` is of ``kernel``. ``asked_key`` is
    the static workload that was asked for, where this one, at ``shape``, computes the same.
    """

    workload_key: str
    target_fingerprint: str
    threads: int
    cache: str
    shape: dict[str, int]
    match: Literal["exact", "dispatched", "nearest", "default"]
    kernel: dict[str, Any]
    latency_s: float | None
    predicted_latency_s: float | None
    job_id: str | None
    digest: str | None
    served_by: dict[str, Any] | None
    served_latency_s: float | None
    served_predicted_latency_s: float | None
    readings: int
    measured_shape: dict[str, int] | None
    distance: dict[str, float] | None
    asked_key: str | None


class LookupIn(BaseModel):
    """Up to 1,000 queries.

    Each is ``{"workload" or "workload_key", "shape", "target", "threads", "cache", "job"}``: the workload as a job
    describes it (an operator or a program; its extents may all be numbers), or the key of one; the shape in its
    variables or its symbols, ``{"T": 37}``; the fingerprint of a target, or a target as in a job; threads, 1 if left
    out; the state of the caches, warm if left out; and a job, to be told only what that one measured and built.
    """

    model_config = ConfigDict(extra="forbid")

    queries: Annotated[list[dict[str, Any]], Field(max_length=MAX_QUERIES)]


class LookupAnswer(BaseModel):
    """The answer to one query: the best kernel, or a problem document that says why there is none."""

    best: BestOut | None
    problem: dict[str, Any] | None


class LookupOut(BaseModel):
    """An answer to each query, in their order."""

    answers: list[LookupAnswer]
