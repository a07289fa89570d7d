"""The pages of devices: all of them by key, and each one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse

from service.access.scopes import READ
from service.dashboard.lanes import Bar, lane_of, legend_of, spoken
from service.dashboard.templating import TEMPLATES
from service.dependencies import CallerDep, DevicesDep, StorageDep
from service.devices.fleet import Fleet, FleetsDep, KeyGroup, Member, Status
from service.devices.service import DeviceHistory, history_of
from service.devices.spans import Span
from service.times import between_s, parse_time
from tuner.storage import Scope

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse, dependencies=[READ])

WINDOWS = {900: "15 min", 3600: "1 h"}
LONG_WINDOWS = {900: "15 min", 3600: "1 h", 6 * 3600: "6 h", 24 * 3600: "24 h"}
MAX_ROWS = 500
MAX_SPANS = 50
"""Spans that the page of a device lists; its lane shows all."""
FEW = 8
"""Devices up to which one figure shows how steady the speed of each is."""


class Order(StrEnum):
    """What the devices of a key are sorted by."""

    NAME = "name"
    UTILISATION = "utilisation"
    FAILURES = "failures"
    SEEN = "last seen"


ORDERS: Mapping[Order, Callable[[Member], Any]] = {
    Order.NAME: lambda member: (),
    Order.UTILISATION: lambda member: -member.utilisation,
    Order.FAILURES: lambda member: (-member.device.failures, -member.use.failed),
    # Whom nobody saw for longest comes first.
    Order.SEEN: lambda member: parse_time(member.device.seen_at),
}


@dataclass(frozen=True, slots=True)
class FleetQuery:
    """Which devices the page shows."""

    text: str
    key: str
    status: Status | None
    order: Order
    seconds: int

    def wants(self, member: Member) -> bool:
        device = member.device
        said = [device.id, device.reason, device.target.fingerprint, *map(str, device.description.values())]
        if member.job is not None:
            said += [member.job.name, member.job.id]
        return (
            (not self.key or device.key == self.key)
            and self.status in (None, member.status)
            and self.text.lower() in " ".join(said).lower()
        )


@dataclass(frozen=True, slots=True)
class Row:
    """A device as a line of the table."""

    member: Member
    lane: tuple[Bar, ...]
    spoken: str
    seen_age_s: float | None
    left_s: float | None
    """Seconds left of its quarantine; None where that ends by a release alone."""


@dataclass(frozen=True, slots=True)
class Group:
    """A key: all of its devices counted, and those that are shown."""

    all: KeyGroup
    rows: tuple[Row, ...]


def fleet_query(
    q: Annotated[str, Query(max_length=200)] = "",
    key: Annotated[str, Query(max_length=200)] = "",
    state: Annotated[Status | str, Query(max_length=20)] = "",
    order: Order = Order.NAME,
    seconds: Annotated[int, Query(ge=60, le=3600)] = 900,
) -> FleetQuery:
    """The query of the page. A status that does not exist shows no less than all."""
    known = Status(state) if state in set(Status) else None
    return FleetQuery(q.strip(), key, known, order, seconds)


QueryDep = Annotated[FleetQuery, Depends(fleet_query)]
DeviceWindow = Annotated[int, Query(ge=60, le=86400)]


@router.get("/devices")
def devices_page(request: Request, fleets: FleetsDep, tokens: DevicesDep, query: QueryDep) -> HTMLResponse:
    shown = _fleet(fleets.get(query.seconds), query) | {"refused": tokens.list_refused_devices()}
    return TEMPLATES.page(
        request, "devices.html", statuses=list(Status), orders=list(Order), windows=WINDOWS, few=FEW, **shown
    )


@router.get("/fragments/devices")
def devices_fragment(request: Request, fleets: FleetsDep, tokens: DevicesDep, query: QueryDep) -> HTMLResponse:
    """The part of the page that changes, for the script that keeps it up to date."""
    shown = _fleet(fleets.get(query.seconds), query) | {"refused": tokens.list_refused_devices()}
    return TEMPLATES.page(request, "_fleet.html", **shown)


# A path: ids are whatever a device calls itself.
@router.get("/devices/{device_id:path}")
def device_page(
    request: Request, device_id: str, storage: StorageDep, caller: CallerDep, seconds: DeviceWindow = 3600
) -> HTMLResponse:
    shown = _device(history_of(storage, device_id, seconds), seconds)
    may_audit = caller.allows(Scope.ADMIN)
    entries = storage.list_audit(subject=device_id, limit=20).items if may_audit else ()
    return TEMPLATES.page(request, "device.html", windows=LONG_WINDOWS, may_audit=may_audit, entries=entries, **shown)


@router.get("/fragments/devices/{device_id:path}")
def device_fragment(
    request: Request, device_id: str, storage: StorageDep, seconds: DeviceWindow = 3600
) -> HTMLResponse:
    return TEMPLATES.page(request, "_device.html", **_device(history_of(storage, device_id, seconds), seconds))


def _fleet(fleet: Fleet, query: FleetQuery) -> dict[str, Any]:
    left, groups = MAX_ROWS, []
    for group in fleet.groups:
        wanted = sorted(filter(query.wants, group.members), key=ORDERS[query.order])
        rows = tuple(_row(member, fleet) for member in wanted[:left])
        left -= len(rows)
        if rows or not (query.text or query.key or query.status):
            groups.append(Group(group, rows))
    members = [member for group in fleet.groups for member in group.members]
    matching = sum(map(query.wants, members))
    spans = [span for group in groups for row in group.rows for span in row.member.spans]
    whole = KeyGroup("", tuple(members), *(sum(getattr(each, name) for each in fleet.groups) for name in QUEUE))
    return {
        "query": query, "groups": groups, "whole": whole, "keys": [group.key for group in fleet.groups],
        "matching": matching, "left_out": matching - sum(len(group.rows) for group in groups),
        "jobs": legend_of(spans, fleet.jobs), "seconds": query.seconds, "complete_from_s": fleet.complete_from_s,
    }  # fmt: skip


QUEUE = ("waiting", "running")


def _row(member: Member, fleet: Fleet) -> Row:
    device = member.device
    until = parse_time(device.quarantined_until)
    return Row(
        member,
        lane_of(member.spans, fleet.jobs, fleet.seconds),
        spoken(member.spans, fleet.seconds),
        between_s(device.seen_at, None),
        max(0.0, (until - datetime.now(UTC)).total_seconds()) if until else None,
    )


def _device(history: DeviceHistory, seconds: int) -> dict[str, Any]:
    member, fleet = history.member, history.fleet
    spans = [_listed(span, history) for span in reversed(member.spans[-MAX_SPANS:])]
    return {
        "history": history, "member": member, "device": member.device, "row": _row(member, fleet), "seconds": seconds,
        "jobs": legend_of(member.spans, fleet.jobs), "spans": spans, "span_count": len(member.spans),
    }  # fmt: skip


def _listed(span: Span, history: DeviceHistory) -> dict[str, Any]:
    at = history.fleet.start_s
    return {
        "job": history.fleet.jobs[span.job_id],
        "start": datetime.fromtimestamp(at + span.start_s, UTC).isoformat(),
        "length_s": span.end_s - span.start_s,
        "trials": span.trials,
        "failed": span.failed,
        "busy": min(1.0, span.busy_s / max(1e-3, span.end_s - span.start_s)),
    }
