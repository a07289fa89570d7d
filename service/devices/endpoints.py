"""The routes under /devices."""

from __future__ import annotations

from fastapi import APIRouter

from service.access.scopes import ADMIN, READ
from service.dependencies import CallerDep, DevicesDep
from service.devices.schemas import DeviceList, DeviceOut, QuarantineIn

router = APIRouter(prefix="/devices", tags=["devices"])


@router.get("", dependencies=[READ])
def list_devices(storage: DevicesDep) -> DeviceList:
    return DeviceList(items=[DeviceOut.of(device) for device in storage.list_devices()])


@router.post("/{device_id}/quarantine", dependencies=[ADMIN])
def quarantine_device(
    device_id: str, storage: DevicesDep, caller: CallerDep, quarantine: QuarantineIn | None = None
) -> DeviceOut:
    """Give a device no more work until it is released. Workers notice within seconds, and finish what is running."""
    reason = (quarantine.reason if quarantine else "") or f"quarantined by {caller.owner or caller.id}"
    return DeviceOut.of(storage.quarantine_device(device_id, reason, caller.id))


@router.post("/{device_id}/release", dependencies=[ADMIN])
def release_device(device_id: str, storage: DevicesDep, caller: CallerDep) -> DeviceOut:
    """End a device's quarantine, whoever began it, and forget its failures."""
    return DeviceOut.of(storage.release_device(device_id, caller.id))
