"""One device: what it does, what it did in a window of time, and its newest trials."""

from __future__ import annotations

from dataclasses import dataclass

from service.devices.fleet import FINEST_SLOTS, HOUR_S, Fleet, KeyGroup, Member, member_of, window_start_s
from service.devices.paces import paces
from service.devices.spans import newest, spans_of
from tuner.records import TuningRecord
from tuner.storage import DeviceUse, Slot
from tuner.storage.sql import DeviceStorage

MAX_LISTED = 20
MAX_COUNTED = 100_000
MAX_SPANS = 2000


@dataclass(frozen=True, slots=True)
class DeviceHistory:
    """A device in a fleet of its own. ``stored``: its trials of all time, counted up to MAX_COUNTED."""

    member: Member
    fleet: Fleet
    stored: int
    trials: tuple[TuningRecord, ...]
    failures: tuple[TuningRecord, ...]


def history_of(storage: DeviceStorage, device_id: str, seconds: int) -> DeviceHistory:
    """Raises NotFound."""
    device = storage.get_device(device_id)
    # At least the hour that utilisation is shown for.
    slot_s = seconds / FINEST_SLOTS
    activity = storage.device_activity(max(seconds, HOUR_S), slot_s, device_id)
    start_s = window_start_s(activity.now_s, seconds, slot_s)
    [spans], complete_from_s = newest([spans_of(activity.slots, start_s, slot_s)], MAX_SPANS)
    use = _use_of([slot for slot in activity.slots if slot.end_s > activity.now_s - HOUR_S])
    pace = paces(storage.list_devices())[device_id]
    member = member_of(device, activity, activity.slots, use, spans, pace)
    group = KeyGroup(device.key, (member,), 0, 0)
    return DeviceHistory(
        member,
        Fleet(start_s, seconds, (group,), activity.jobs, complete_from_s),
        storage.trials_on(device_id, MAX_COUNTED),
        storage.newest_trials(device_id, MAX_LISTED),
        storage.newest_trials(device_id, MAX_LISTED, failed=True),
    )


def _use_of(slots: list[Slot]) -> DeviceUse:
    return DeviceUse(
        sum(slot.busy_s for slot in slots), sum(slot.trials for slot in slots), sum(slot.failed for slot in slots)
    )
