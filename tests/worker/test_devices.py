"""The list of devices in the database follows the tracker's."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.measuring import wait_for
from tuner.measure.connecting import Tracker
from tuner.program.target import native
from tuner.storage.sql import SqlStorage, open_storage
from worker.device_server import start_device
from worker.devices import DeviceList
from worker.tracker import start_tracker


@pytest.fixture
def storage(sqlite_url: str) -> Iterator[SqlStorage]:
    opened = open_storage(sqlite_url)
    yield opened
    opened.close()


def test_devices_register_with_what_they_say_of_themselves(storage: SqlStorage, tracker: tuple[str, int]) -> None:
    devices = DeviceList(storage, Tracker(*tracker), every_s=0.0)
    wait_for(lambda: devices.refresh() == ("local",))
    (device,) = storage.list_devices()
    assert (device.id, device.key, device.target) == ("here:0", "local", native())
    assert {"host", "cpu", "cores", "tvm"} <= set(device.description)
    devices.refresh()
    assert storage.list_devices()[0].seen_at >= device.seen_at


def test_keys_restrict_what_is_registered(storage: SqlStorage, tracker: tuple[str, int]) -> None:
    assert DeviceList(storage, Tracker(*tracker), keys=("other",)).refresh() == ()
    assert storage.list_devices() == ()


def test_a_device_comes_and_goes_and_a_busy_one_stays(
    storage: SqlStorage, tracker: tuple[str, int], tmp_path: Path
) -> None:
    client = Tracker(*tracker)
    devices = DeviceList(storage, client, every_s=0.0)
    with start_device(tracker, "guest", device_id="guest:0", data_dir=tmp_path):
        wait_for(lambda: devices.refresh() == ("guest", "local"))
        session = client.request("guest", 20.0, 10.0)
        wait_for(lambda: devices.refresh() == ("guest", "local"))
        session.get_function("CloseRPCConnection")()
    wait_for(lambda: devices.refresh() == ("local",))
    assert [device.id for device in storage.list_devices()] == ["guest:0", "here:0"]


def test_devices_come_back_to_a_tracker_that_was_killed(tmp_path: Path) -> None:
    tracker = start_tracker(data_dir=tmp_path)
    address = ("127.0.0.1", tracker.port)
    client = Tracker(*address)
    with start_device(address, "local", data_dir=tmp_path):
        wait_for(lambda: client.free("local") == 1)
        os.kill(tracker.pid, signal.SIGKILL)
        tracker.stop()
        with start_tracker(address[1], data_dir=tmp_path):
            wait_for(lambda: client.free("local") == 1)
            client.request("local", 20.0, 5.0).get_function("CloseRPCConnection")()
