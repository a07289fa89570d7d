"""The routes under /devices."""

from __future__ import annotations

from fastapi import APIRouter

from service.access.scopes import READ
from service.dependencies import DevicesDep
from service.devices.schemas import DeviceList, DeviceOut

router = APIRouter(prefix="/devices", tags=["devices"])


@router.get("", dependencies=[READ])
def list_devices(storage: DevicesDep) -> DeviceList:
    return DeviceList(items=[DeviceOut.of(device) for device in storage.list_devices()])
