"""What is to be said of how fast devices are: against themselves, and against the others of their key."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from tuner.storage import Device, SpeedState

TOLERANCE = 0.1
"""Devices of a key whose usual speeds differ by less agree."""


def paces(devices: Sequence[Device]) -> Mapping[str, str]:
    """Remarks on each device's speed by id, empty where it is steady and agrees with those of its key and target."""
    usual: dict[tuple[str, str], dict[str, float]] = {}
    for device in devices:
        if device.speed is not None:
            usual.setdefault(_kind(device), {})[device.id] = device.speed.usual_s
    return {device.id: "; ".join(_said(device, usual.get(_kind(device), {}))) for device in devices}


def _kind(device: Device) -> tuple[str, str]:
    return device.key, device.target.fingerprint


def _said(device: Device, of_kind: Mapping[str, float]) -> list[str]:
    if device.speed is None:
        return []
    said = [] if device.speed.state is SpeedState.STEADY else [str(device.speed)]
    others = [usual_s for name, usual_s in of_kind.items() if name != device.id]
    ratio = device.speed.usual_s / statistics.median_low(others) if others else 1.0
    if ratio > 1 + TOLERANCE:
        said.append(f"usually {ratio:.2f} times as slow as the others of its key")
    elif ratio < 1 / (1 + TOLERANCE):
        said.append(f"usually {1 / ratio:.2f} times as fast as the others of its key")
    return said
