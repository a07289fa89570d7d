"""Requests and responses of the routes about libraries. Latencies in seconds, ranges of the workload's symbols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema

from service.schemas import FromAttributes, PageOut, fields_of
from tuner.library.choice import MAX_POINTS
from tuner.program.job.cache import Cache
from tuner.program.job.range_text import Ranges, format_ranges
from tuner.program.job.shape_fields import MAX_WEIGHT
from tuner.program.language.dims import MAX_DIM
from tuner.program.language.spans import MAX_LISTED, Span, ends, span_from_json
from tuner.storage import Alternative, LibraryRow, Served

MAX_THREADS = 1024
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Name = Annotated[str, Field(max_length=200)]
Size = Annotated[int, Field(ge=0, le=MAX_DIM)]


def _span(data: object) -> Span:
    """A range as a body gives it. Raises ValueError; whether its ends are in order is checked with its name."""
    listed = data.get("values") if isinstance(data, Mapping) and set(data) == {"values"} else None
    sizes = data if isinstance(data, list | tuple) and len(data) in (2, 3) else listed
    if not isinstance(sizes, list | tuple) or not 0 < len(sizes) <= MAX_LISTED:
        raise ValueError(f"[least, largest], [least, largest, step], or {{values: [...]}} with at most {MAX_LISTED}")
    if any(isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= MAX_DIM for size in sizes):
        raise ValueError(f"sizes are integers from 0 to {MAX_DIM}")
    if listed is None and len(sizes) == 3 and sizes[2] < 1:
        raise ValueError("a step is 1 or more")
    return span_from_json(data)


SpanIn = Annotated[
    Any,
    PlainValidator(_span),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 3},
                {
                    "type": "object",
                    "required": ["values"],
                    "properties": {"values": {"type": "array", "items": {"type": "integer", "minimum": 0}}},
                },
            ]
        }
    ),
]


def _ends(ranges: Ranges) -> dict[str, tuple[int, int]]:
    return {name: ends(span) for name, span in ranges.items()}


Ends = Annotated[dict[str, tuple[int, int]], BeforeValidator(_ends)]
MadeFor = Annotated[str, BeforeValidator(format_ranges)]


class ServedIn(BaseModel):
    """Which library is asked for. ``range`` and the shapes of ``instances`` are in the workload's symbols."""

    model_config = ConfigDict(extra="forbid")

    target: Name | None = Field(None, description="a target's fingerprint; the newest if left out")
    threads: int | None = Field(None, ge=1, le=MAX_THREADS, description="1, or the only number there is, if left out")
    cache: Cache | None = Field(None, description="warm, cold or streamed; warm, or the only one there is, if left out")
    range: dict[Name, SpanIn] | None = Field(
        None,
        max_length=16,
        description="what it must cover, the widest if left out: [least, largest], [least, largest, step] "
        "or {values: [...]}; without a step the two ends alone count",
        examples=[{"m": [16, 512, 16]}],
    )
    instances: list[InstanceIn] = Field(
        default_factory=list, max_length=MAX_POINTS, description="where it will be used; what was tuned if left out"
    )
    job: Name | None = Field(None, description="the library that this job built")
    digest: Digest | None = Field(None, description="the library of this digest")
    alias: Name | None = Field(None, description="the library of this name")


class InstanceIn(BaseModel):
    """Values of all of the workload's symbols, and how much they weigh."""

    model_config = ConfigDict(extra="forbid")

    shape: dict[Name, Size] = Field(max_length=16)
    weight: float = Field(1.0, ge=0, le=MAX_WEIGHT, allow_inf_nan=False)


class LibraryOut(FromAttributes):
    """A library. ``superseded_by`` is the digest of the one that is served in its place, null if it may be served.

    ``range``: the least and the largest size of each symbol; ``made_for``: those in between, as in ``m=16..512:16``.

    ``wrong_kernel``: a kernel of it that was found wrong or crashed since, null if none was; then it is withdrawn.
    ``comparison``: with the library that was served when it was built, timed in turns on the device: ``against``,
    ``ratio`` (above 1: this one is faster), ``noise``, ``verified``, and the ``verdict``, replaces or kept.
    """

    digest: str
    workload_key: str
    target_fingerprint: str
    threads: int
    cache: str
    job_id: str | None
    created_at: str
    range: Ends = Field(validation_alias="ranges")
    made_for: MadeFor = Field(validation_alias="ranges")
    protocol: str | None
    superseded_by: str | None
    wrong_kernel: str | None
    comparison: dict[str, Any] | None
    aliases: list[str]


class LibraryPage(PageOut[LibraryOut]):
    """A part of the list of libraries, newest first. ``cursor`` asks for the next part; null at the end."""


class JobLibraryOut(LibraryOut):
    """The library of one search task, by its ``position`` in the job."""

    position: int


class JobLibraries(BaseModel):
    """The libraries that a job has built so far, one for each search task that is done."""

    items: list[JobLibraryOut]

    @staticmethod
    def of(rows: tuple[tuple[int, LibraryRow], ...]) -> JobLibraries:
        return JobLibraries(items=[JobLibraryOut(position=position, **fields_of(row)) for position, row in rows])


class AlternativeOut(BaseModel):
    """Another library that covers the range. ``ratio`` is its time over that of the library served.

    Above 1 the served one is faster; null where they cannot be compared. ``timed_in_turns``: on the device, side by
    side; by recorded latencies otherwise.
    """

    digest: str
    job_id: str | None
    created_at: str
    range: Ends = Field(validation_alias="ranges")
    made_for: MadeFor = Field(validation_alias="ranges")
    superseded_by: str | None
    expected_s: float | None
    ratio: float | None
    timed_in_turns: bool

    @staticmethod
    def of(result: Alternative) -> AlternativeOut:
        return AlternativeOut(**fields_of(result.library), **fields_of(result))


class ServedOut(LibraryOut):
    """The library that is served, and how it compares with the ``alternatives``.

    ``asked`` is the range that it had to cover. ``expected_s`` is the weighted mean time of the ``points`` that
    libraries are compared at, null where it is not known; ``measured`` of these were measured, the others predicted.
    """

    asked: dict[str, tuple[int, int]]
    expected_s: float | None
    points: int
    measured: int
    alternatives: list[AlternativeOut]

    @staticmethod
    def found(served: Served) -> ServedOut:
        return ServedOut(
            **fields_of(served.library),
            asked=_ends(served.ranges),
            expected_s=served.expected_s,
            points=served.points,
            measured=served.measured,
            alternatives=[AlternativeOut.of(each) for each in served.alternatives],
        )


class PromotionIn(BaseModel):
    """The library that gets the name, and the rule by which it may move on.

    ``at_least_percent``: a later library that is verified and at least so much faster takes the name by itself.
    """

    model_config = ConfigDict(extra="forbid")

    digest: Digest
    reason: str = Field("", max_length=500)
    at_least_percent: float | None = Field(None, ge=0, le=10_000, allow_inf_nan=False)


class RollBackIn(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: str = Field("", max_length=500)


class AliasOut(FromAttributes):
    """A name, and the library that it stands for."""

    name: str
    library: LibraryOut
    promoted_at: str
    promoted_by: str
    reason: str
    at_least_percent: float | None


class AliasList(BaseModel):
    items: list[AliasOut]


class PromotionOut(FromAttributes):
    """How a name came to stand for a library: ``action`` is promoted, by_rule or rolled_back."""

    name: str
    target_fingerprint: str
    threads: int
    cache: str
    action: str
    digest: str | None
    previous: str | None
    at: str
    by: str
    reason: str


class PromotionPage(PageOut[PromotionOut]):
    """A part of the history of names, newest first. ``cursor`` asks for the next part; null at the end."""


ServedIn.model_rebuild()
