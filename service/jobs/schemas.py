"""Responses of the job routes. Times are the database's, ISO 8601 in UTC; durations end in ``_s``, in seconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from service.jobs.outcome import outcome_of
from service.schemas import AsJson, FromAttributes, PageOut, fields_of
from tuner.records import TuningRecord
from tuner.storage import Job, JobState, SearchTaskRow
from tuner.storage.filters import MAX_NOTE, MAX_TAGS

MAX_ANSWERED = 250_000
"""Characters of the search tasks of one answer."""
MAX_SPEC = 50_000
"""Characters of a job file in the answer about a job."""
TASKS = 32
"""Search tasks in the answer about a job."""


class JobOut(FromAttributes):
    """A job in a list. ``trials`` counts those recorded so far, failed ones included.

    ``failed_attempts`` counts those in a row with nothing recorded; after four the job is FAILED. ``not_before`` is
    when a WAITING job is tried again.
    """

    id: str
    name: str
    state: str
    device: str
    owner: str
    worker: str | None
    trials: int
    priority: int
    error: str
    failed_attempts: int
    not_before: str | None
    created_at: str
    started_at: str | None
    ended_at: str | None
    tags: list[str]
    note: str

    @field_validator("not_before")
    @classmethod
    def _while_it_waits(cls, value: str | None, info: ValidationInfo) -> str | None:
        return value if info.data["state"] == JobState.WAITING else None


class JobChanges(BaseModel):
    """What may be changed of a job at any time; what is left out, or null, stays.

    A tag is 1 to 50 of ``A-Z a-z 0-9 . _ : / = + -``, the first a letter or a digit; 20 at most. A note is text.
    """

    model_config = ConfigDict(extra="forbid")

    tags: Annotated[list[Annotated[str, Field(max_length=50)]], Field(max_length=MAX_TAGS)] | None = None
    note: Annotated[str, Field(max_length=MAX_NOTE)] | None = None


class SavedFilterOut(FromAttributes):
    """A search of the list of jobs that the caller's owner saved."""

    name: str
    query: str
    created_at: str


class SavedFilterList(BaseModel):
    """By name."""

    items: list[SavedFilterOut]


class SavedFilterIn(BaseModel):
    """A search as ``q`` of ``GET /v1/jobs`` takes it."""

    query: Annotated[str, Field(min_length=1, max_length=200)]


class SpeedupOut(FromAttributes):
    """How many times as fast the library is as what it is ``over`` (``default``, ``numpy``), and between which values
    that lies at 95 %: ``low`` and ``high`` are null for single readings. ``verdict`` is ``faster``, ``equal`` (within
    noise) or ``slower``; ``figure``, ``rival`` and ``text`` say it in words.
    """

    over: str
    ratio: float
    low: float | None
    high: float | None
    verdict: str | None
    figure: str
    rival: str
    text: str


class OutcomeOut(FromAttributes):
    """What searches came to: ``label`` says of what ``objective_s``, the weighted time of all instances, is.

    ``ratios`` are those of the final comparison, or of single readings before; ``cautions`` say what makes them worth
    less: a device that was throttled or noisy, a BLAS that is hobbled.

    Of a job, the searches that have begun together, each counted as often as its workload occurs: ``known`` of them
    have a time. Null is not known.
    """

    label: str
    objective_s: float | None
    speedup_vs_default: float | None
    speedup_vs_numpy: float | None
    ratios: list[SpeedupOut]
    cautions: list[str]
    known: int
    searches: int


class SearchTaskOut(FromAttributes):
    """One search task of a job: a workload on a target. ``count`` says how often the model holds the workload.

    ``baselines`` are what its kernels are compared with: NumPy's ``points`` and the device's ``roof``, null before they
    are measured.
    """

    id: int
    position: int
    count: int
    workload_key: str
    workload: Annotated[str, BeforeValidator(str)] = Field(validation_alias=AliasPath("task", "workload"))
    target_fingerprint: str
    threads: int = Field(validation_alias=AliasPath("task", "threads"))
    cache: str = Field(validation_alias=AliasPath("task", "cache"))
    task: AsJson
    spent_s: float
    done: bool
    baselines: AsJson


class SearchTaskPage(BaseModel):
    """A part of a job's search tasks, in order. ``next`` is the position of the next part; null at the end."""

    items: list[SearchTaskOut]
    next: int | None

    @staticmethod
    def of(rows: Sequence[SearchTaskRow], count: int) -> SearchTaskPage:
        """A page of as many of ``rows`` as fit an answer, at least one; the job has ``count`` search tasks."""
        items: list[SearchTaskOut] = []
        size = 0
        for row in rows:
            item = SearchTaskOut.model_validate(row)
            size += len(item.model_dump_json())
            if items and size > MAX_ANSWERED:
                break
            items.append(item)
        after = items[-1].position + 1 if items else count
        return SearchTaskPage(items=items, next=after if after < count else None)


class JobDetail(JobOut):
    """A job: as submitted (``spec``), its search tasks, and the results so far (``summary``, ``outcome``).

    The answer is bounded. ``tasks`` are the first of ``task_count``; ``tasks_next`` is where ``GET .../tasks`` goes on,
    null if they are all. Where ``spec_complete`` is false ``spec`` lacks its largest fields; ``GET .../spec`` has all.
    """

    workload_keys: list[str]
    spec: dict[str, Any]
    spec_complete: bool
    summary: dict[str, Any]
    outcome: OutcomeOut
    tasks: list[SearchTaskOut]
    task_count: int
    tasks_next: int | None

    @staticmethod
    def complete(job: Job, keys: Sequence[str], rows: Sequence[SearchTaskRow]) -> JobDetail:
        """``keys``: of the workloads of all search tasks; ``rows``: the first of them."""
        page, spec = SearchTaskPage.of(rows, len(keys)), _shortened(job.spec)
        return JobDetail(
            **dict(JobOut.model_validate(job)),
            workload_keys=list(dict.fromkeys(keys)),
            spec=spec,
            spec_complete=len(spec) == len(job.spec),
            summary=job.summary,
            outcome=OutcomeOut.model_validate(outcome_of(job)),
            tasks=page.items,
            task_count=len(keys),
            tasks_next=page.next,
        )


class JobPage(PageOut[JobOut]):
    """A part of the list of jobs, newest first. ``cursor`` asks for the next part; null at the end."""


class TrialOut(BaseModel):
    """One micro-kernel built and measured on one instance: a latency, or the kind of its failure and a message."""

    seq: int
    job_id: str | None
    search_task_id: int | None
    workload_key: str
    target_fingerprint: str
    threads: int
    protocol: str
    provenance: str
    created_at: str
    kernel: dict[str, Any]
    kernel_id: str
    instance: dict[str, float]
    latency_s: float | None
    samples_s: list[float]
    error_kind: str | None
    error: str
    build_s: float
    run_s: float
    predicted_s: float | None
    round: int
    phase: str
    attempt: int
    anchor_s: float | None
    device: str | None

    @staticmethod
    def of(record: TuningRecord) -> TrialOut:
        return TrialOut(**fields_of(record), **record.result.to_json())


class TrialList(BaseModel):
    """Trials in the order they were stored. ``after`` asks for those that come later: the same as given if none did."""

    items: list[TrialOut]
    after: int


class LogLineOut(FromAttributes):
    """A line about a job: of the log of a part, or of the job itself where ``part`` is job."""

    time: str
    part: str
    level: str
    text: str


class LogPage(BaseModel):
    """Lines about a job in order of time. ``parts``: whose logs were looked through. ``elsewhere``: its worker and its
    devices that are not among these, and keep their logs where they run. ``next`` is the time to ask for further lines
    by, which may have more of that very time. ``ended``: whether the job has."""

    items: list[LogLineOut]
    parts: list[str]
    elsewhere: list[str]
    next: str | None
    ended: bool


def _shortened(spec: dict[str, Any]) -> dict[str, Any]:
    """A job file without its largest fields, as many as it takes for the rest to fit an answer."""
    sizes = {name: len(json.dumps(value)) for name, value in spec.items()}
    left_out: set[str] = set()
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        if sum(size for other, size in sizes.items() if other not in left_out) <= MAX_SPEC:
            break
        left_out.add(name)
    return {name: value for name, value in spec.items() if name not in left_out}
