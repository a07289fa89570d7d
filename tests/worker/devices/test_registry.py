"""The list of devices in the database follows the tracker's."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tvm import rpc

from tests.contract.samples import results
from tests.measuring import TASK, request, wait_for
from tuner.device_speed import RECENT
from tuner.measure import DeviceLost
from tuner.measure.network.connecting import Connected, Tracker
from tuner.measure.rpc_names import device_key
from tuner.measure.runners.rpc import RpcRunner
from tuner.program.target import native
from tuner.storage import QUARANTINE_AFTER, SpeedState
from tuner.storage.sql import Storage
from worker.device_server import start_device
from worker.devices.registry import DeviceList
from worker.tracker import start_tracker

OWN_KEY = device_key("local", "here")


def test_devices_register_with_what_they_say_of_themselves(storage: Storage, tracker: tuple[str, int]) -> None:
    devices = DeviceList(storage, Tracker(*tracker), every_s=0.0)
    wait_for(lambda: devices.refresh() == {"local": 1})
    (device,) = storage.list_devices()
    assert (device.id, device.key, device.target) == ("here:0", "local", native())
    assert {"host", "cpu", "cores", "tvm"} <= set(device.description)
    devices.refresh()
    assert storage.list_devices()[0].seen_at >= device.seen_at


def test_keys_restrict_what_is_registered(storage: Storage, tracker: tuple[str, int]) -> None:
    assert DeviceList(storage, Tracker(*tracker), keys=("other",)).refresh() == {}
    assert storage.list_devices() == ()


def test_a_device_comes_and_goes_and_a_busy_one_stays(
    storage: Storage, tracker: tuple[str, int], tmp_path: Path
) -> None:
    client = Tracker(*tracker)
    devices = DeviceList(storage, client, every_s=0.0)
    with start_device(tracker, "guest", device_id="guest:0", data_dir=tmp_path):
        wait_for(lambda: devices.refresh() == {"guest": 1, "local": 1})
        session = client.request(device_key("guest", "guest:0"), 20.0, 10.0).rpc
        wait_for(lambda: devices.refresh() == {"guest": 1, "local": 1})
        session.get_function("CloseRPCConnection")()
    wait_for(lambda: devices.refresh() == {"local": 1})
    assert [device.id for device in storage.list_devices()] == ["guest:0", "here:0"]


@pytest.mark.soak
def test_devices_come_back_to_a_tracker_that_was_killed(tmp_path: Path) -> None:
    tracker = start_tracker(data_dir=tmp_path)
    address = ("127.0.0.1", tracker.port)
    client = Tracker(*address)
    with start_device(address, "local", device_id="here", data_dir=tmp_path):
        wait_for(lambda: client.free(OWN_KEY) == 1)
        os.kill(tracker.pid, signal.SIGKILL)
        tracker.stop()
        with start_tracker(address[1], data_dir=tmp_path):
            wait_for(lambda: client.free(OWN_KEY) == 1)
            client.request(OWN_KEY, 20.0, 5.0).rpc.get_function("CloseRPCConnection")()


def test_a_tracker_loads_no_compiler(tmp_path: Path) -> None:
    with start_tracker(data_dir=tmp_path) as tracker:
        loaded = Path(f"/proc/{tracker.pid}/maps").read_text()
    assert "libtvm_runtime" in loaded
    assert "libtvm_compiler" not in loaded


def test_a_throttled_device_should_rest_and_stays_in_the_count(
    storage: Storage, tracker: tuple[str, int], tmp_path: Path
) -> None:
    devices = DeviceList(storage, Tracker(*tracker), every_s=0.0)
    with start_device(tracker, "local", device_id="there", data_dir=tmp_path):
        wait_for(lambda: devices.refresh() == {"local": 2})
        for anchor_s in (1e-5, 1.4e-5):
            devices.speeds.observe([replace(each, device="there", anchor_s=anchor_s) for each in results(RECENT)])
        (speed,) = (device.speed for device in storage.list_devices() if device.id == "there")
        assert speed is not None and speed.state is SpeedState.THROTTLED
        rests = {known.id for address, known in devices.present("local").items() if devices.should_rest(address)}
        assert rests == {"there"}
        assert devices.refresh() == {"local": 2}
        # Those in quarantine come back, and have their cores.
        storage.quarantine_device("here:0", "", "somebody")
        devices.refresh(force=True)
        assert devices.here("local") == 2


# -- a server that is none of ours ------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """The address of a tracker whose one server is TVM's own, without the functions of a device."""
    with start_tracker(data_dir=tmp_path_factory.mktemp("stranger")) as tracker:
        address = ("127.0.0.1", tracker.port)
        server = rpc.Server("127.0.0.1", port=9600, port_end=9700, tracker_addr=address, key="local", silent=True)
        wait_for(lambda: Tracker(*address).free("local") == 1)
        yield address
        server.terminate()


def test_a_foreign_server_under_a_key_is_no_device(
    storage: Storage, stranger: tuple[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    devices = DeviceList(storage, Tracker(*stranger), every_s=0.0)
    for _ in range(2):
        assert devices.refresh() == {}
    assert storage.list_devices() == ()
    assert "is no device that this version knows" in caplog.text


def test_a_foreign_server_is_a_lost_device_to_a_search(stranger: tuple[str, int]) -> None:
    runner = RpcRunner(lambda life_s, interrupted: Tracker(*stranger).request("local", life_s, 10.0, interrupted))
    with pytest.raises(DeviceLost, match="cannot prepare for matmul"):
        runner.run(TASK, [request()])


@pytest.mark.parametrize("answer", ["", "[]", "{}", "null", '{"target": {}}', '{"target": 5, "id": 1}'])
def test_strange_answers_register_nothing(
    storage: Storage, answer: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("worker.devices.registry.within", lambda seconds, call: answer)
    devices = DeviceList(storage, OneDevice(), every_s=0.0)  # type: ignore[arg-type]
    assert devices.refresh() == {}
    assert "is no device that this version knows" in caplog.text


class OneDevice:
    """A tracker that lists one free device."""

    def servers(self) -> list[tuple[str, tuple[str, int]]]:
        return [("local", ("127.0.0.1", 9))]

    def free(self, key: str) -> int:
        return 1

    def request(self, key: str, session_timeout_s: float, wait_s: float) -> Connected:
        return Connected(None, ("127.0.0.1", 9))


def test_a_device_that_fails_again_and_again_gets_no_more_work(storage: Storage, tracker: tuple[str, int]) -> None:
    devices = DeviceList(storage, Tracker(*tracker), every_s=0.0)
    wait_for(lambda: devices.refresh() == {"local": 1})
    ((address, known),) = devices.present("local").items()
    assert (known.id, known.tracker_key) == ("here:0", "local@here%3A0")
    devices.report(address, None)
    for _ in range(QUARANTINE_AFTER):
        assert devices.counts() == {"local": 1}
        devices.report(address, "it does not answer")
    assert devices.counts() == {}
    assert not devices.present("local")
    assert devices.refresh() == {}
    storage.release_device("here:0", "key-1")
    assert devices.refresh() == {"local": 1}
    devices.report(address, "it does not answer")
    devices.report(address, None)
    assert storage.list_devices()[0].failures == 0
    devices.report(("nowhere", 1), "gone")


def test_a_device_that_is_registered_as_another_is_none(
    storage: Storage, tracker: tuple[str, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("worker.devices.registry.device_key", lambda key, device_id: f"{key}@another")
    devices = DeviceList(storage, Tracker(*tracker), every_s=0.0)
    said = "says that it is 'here:0' of key 'local', and is registered as 'local@here%3A0'"
    # It may not have registered at the tracker yet.
    wait_for(lambda: devices.refresh() == {} and said in caplog.text)
