"""The routes under /devices/tokens: what devices join by."""

from __future__ import annotations

from fastapi import APIRouter

from service.access.scopes import ADMIN
from service.dependencies import CallerDep, DevicesDep
from service.devices.token_schemas import DeviceTokenCreated, DeviceTokenIn, DeviceTokenList, DeviceTokenOut
from service.schemas import fields_of
from tuner.storage.device_tokens import checked_token

router = APIRouter(prefix="/devices/tokens", tags=["devices"], dependencies=[ADMIN])


@router.post("", status_code=201)
def create_device_token(wanted: DeviceTokenIn, storage: DevicesDep, caller: CallerDep) -> DeviceTokenCreated:
    """Make a token for devices of a key, shown this once. From then on devices of that key need one."""
    checked_token(wanted.key, wanted.expires_s, wanted.note)
    token, text = storage.create_device_token(wanted.key, wanted.expires_s, wanted.note, caller.id)
    return DeviceTokenCreated(**fields_of(token), token=text)


@router.get("")
def list_device_tokens(storage: DevicesDep) -> DeviceTokenList:
    return DeviceTokenList(items=[DeviceTokenOut.model_validate(token) for token in storage.list_device_tokens()])


@router.delete("/{token_id}")
def revoke_device_token(token_id: str, storage: DevicesDep, caller: CallerDep) -> DeviceTokenOut:
    """Revoke a token: devices that joined by it get no more work. It stays listed."""
    return DeviceTokenOut.model_validate(storage.revoke_device_token(token_id, caller.id))
