"""The routes under /devices."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from service.access.scopes import ADMIN, READ
from service.dependencies import BLANK, CallerDep, DevicesDep, StorageDep
from service.devices import service
from service.devices.activity_schemas import DeviceDetail, FleetActivity
from service.devices.fleet import FleetsDep
from service.devices.schemas import DeviceList, DeviceOut, QuarantineIn
from service.devices.token_schemas import RefusedOut

router = APIRouter(prefix="/devices", tags=["devices"])


@router.get("", dependencies=[READ])
def list_devices(storage: DevicesDep, tokens: DevicesDep) -> DeviceList:
    return DeviceList(
        items=[DeviceOut.model_validate(device) for device in storage.list_devices()],
        refused=[RefusedOut.model_validate(each) for each in tokens.list_refused_devices()],
    )


# Before the route of one device, whose id it would be.
@router.get("/activity", dependencies=[READ])
def list_activity(
    fleets: FleetsDep,
    seconds: Annotated[int, Query(ge=60, le=3600, description="of the past")] = 900,
    key: Annotated[str | None, Query(max_length=200, description="of this key alone"), BLANK] = None,
) -> FleetActivity:
    """What every device does, and the spans of time in which it measured: trials of a job without a pause are one."""
    return FleetActivity.of(fleets.get(seconds), key)


@router.post("/{device_id:path}/quarantine", dependencies=[ADMIN])
def quarantine_device(
    device_id: str, storage: DevicesDep, caller: CallerDep, quarantine: QuarantineIn | None = None
) -> DeviceOut:
    """Give a device no more work until it is released. Workers notice within seconds, and finish what is running."""
    reason = (quarantine.reason if quarantine else "") or f"quarantined by {caller.owner or caller.id}"
    return DeviceOut.model_validate(storage.quarantine_device(device_id, reason, caller.id))


@router.post("/{device_id:path}/release", dependencies=[ADMIN])
def release_device(device_id: str, storage: DevicesDep, caller: CallerDep) -> DeviceOut:
    """End a device's quarantine, whoever began it, and forget its failures."""
    return DeviceOut.model_validate(storage.release_device(device_id, caller.id))


# Last: an id may have slashes.
@router.get("/{device_id:path}", dependencies=[READ])
def get_device(
    device_id: str,
    storage: StorageDep,
    seconds: Annotated[int, Query(ge=60, le=86400, description="of the past, that spans are told of")] = 3600,
) -> DeviceDetail:
    """One device, with the spans of time in which it measured and its newest trials."""
    return DeviceDetail.of(service.history_of(storage, device_id, seconds))
