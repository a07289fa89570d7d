"""Responses about what devices do and did."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from service.devices.fleet import Fleet, Member, Status
from service.devices.schemas import DeviceOut
from service.devices.service import DeviceHistory
from service.jobs.schemas import TrialOut
from service.schemas import FromAttributes

Seconds = Annotated[float, AfterValidator(lambda seconds: round(seconds, 2))]
Share = Annotated[float, AfterValidator(lambda share: round(share, 4))]


class SpanOut(FromAttributes):
    """Trials of one job, one after another: from when to when, in seconds from ``start``. ``busy_s`` of it they ran."""

    job_id: str
    start_s: Seconds
    end_s: Seconds
    trials: int
    failed: int
    busy_s: Seconds


class ActiveJobOut(FromAttributes):
    """A job that spans are of. ``number`` counts jobs in the order of submission."""

    id: str
    number: int
    name: str
    state: str


class DeviceActivity(BaseModel):
    """What a device does and did."""

    id: str
    key: str
    status: Status = Field(
        description="`busy`: a job that is running had a trial on it within the last minute; `away`: no worker saw it "
        "for a minute, nor did it measure anything"
    )
    job_id: str | None = Field(description="the job that it works on")
    utilisation: Share = Field(description="the share of the last hour that its trials ran, 0 to 1")
    trials: int = Field(description="in the last hour, failed ones included")
    failed: int = Field(description="in the last hour")
    failures: int = Field(description="of the device itself, in a row")
    reason: str
    speed: str = Field(description="what is to be said of its speed, empty if it is steady and as its key's others")
    quarantined_until: str | None
    spans: list[SpanOut]

    @staticmethod
    def of(member: Member) -> DeviceActivity:
        device = member.device
        return DeviceActivity(
            id=device.id,
            key=device.key,
            status=member.status,
            job_id=member.job.id if member.job else None,
            utilisation=member.utilisation,
            trials=member.use.trials,
            failed=member.use.failed,
            failures=device.failures,
            reason=device.reason,
            speed=member.pace,
            quarantined_until=device.quarantined_until,
            spans=[SpanOut.model_validate(span) for span in member.spans],
        )


class KeyActivity(FromAttributes):
    """What a job's ``device`` names: its devices by status, and its queue."""

    key: str
    devices: Annotated[int, BeforeValidator(len)] = Field(validation_alias="members")
    statuses: dict[Status, int]
    waiting: int = Field(description="jobs")
    running: int = Field(description="jobs")
    utilisation: Share = Field(description="the mean of its devices'")


class FleetActivity(BaseModel):
    """All devices in a window of time that ends about now."""

    start: str
    seconds: int
    complete_from_s: Seconds = Field(description="above 0: older spans were left out, to bound the answer")
    keys: list[KeyActivity]
    devices: list[DeviceActivity]
    jobs: list[ActiveJobOut]

    @staticmethod
    def of(fleet: Fleet, key: str | None) -> FleetActivity:
        groups = [group for group in fleet.groups if key in (None, group.key)]
        members = [member for group in groups for member in group.members]
        return FleetActivity(
            start=_moment(fleet.start_s),
            seconds=int(fleet.seconds),
            complete_from_s=fleet.complete_from_s,
            keys=[KeyActivity.model_validate(group) for group in groups],
            devices=[DeviceActivity.of(member) for member in members],
            jobs=_jobs(fleet, members),
        )


class DeviceDetail(BaseModel):
    """One device: how it registered, what it does and did, and its newest trials."""

    device: DeviceOut
    activity: DeviceActivity
    start: str
    seconds: int
    complete_from_s: Seconds
    jobs: list[ActiveJobOut]
    stored_trials: int = Field(description="of all time, counted up to 100,000")
    latest_trials: list[TrialOut] = Field(description="newest first, at most 20")
    latest_failures: list[TrialOut] = Field(description="of its newest 2,000 trials, newest first, at most 20")

    @staticmethod
    def of(history: DeviceHistory) -> DeviceDetail:
        fleet = history.fleet
        return DeviceDetail(
            device=DeviceOut.model_validate(history.member.device),
            activity=DeviceActivity.of(history.member),
            start=_moment(fleet.start_s),
            seconds=int(fleet.seconds),
            complete_from_s=fleet.complete_from_s,
            jobs=_jobs(fleet, [history.member]),
            stored_trials=history.stored,
            latest_trials=[TrialOut.of(record) for record in history.trials],
            latest_failures=[TrialOut.of(record) for record in history.failures],
        )


def _jobs(fleet: Fleet, members: Iterable[Member]) -> list[ActiveJobOut]:
    """The jobs that the spans and the devices name, in the order of submission."""
    shown = {span.job_id for member in members for span in member.spans}
    shown |= {member.job.id for member in members if member.job}
    jobs = [ActiveJobOut.model_validate(job) for job in fleet.jobs.values() if job.id in shown]
    return sorted(jobs, key=lambda job: job.number)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
