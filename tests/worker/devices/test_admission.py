"""Devices join by tokens: real trackers, device servers and sessions, on SQLite."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import update

from tests.measuring import TASK, request, wait_for
from tuner.device_auth import credential_of, new_nonce, stored_key_of
from tuner.measure import DeviceLost
from tuner.measure.child import Child, ChildFailed
from tuner.measure.device.signer import TOKEN
from tuner.measure.network.connecting import Connected, Tracker
from tuner.measure.rpc_names import DESCRIBE, JOIN, OPEN, device_key
from tuner.measure.runners.rpc import RpcRunner
from tuner.storage import RefusedDevice
from tuner.storage.sql import Storage
from tuner.storage.sql.columns import later
from tuner.storage.sql.schema import device_tokens
from worker.device_server import start_device
from worker.devices.admission import TokenRule
from worker.devices.registry import DeviceList
from worker.tracker import start_tracker

HOUR_S = 3600.0
NONCE = new_nonce()
OVERHEARD = "swd_0123456789ab_" + 43 * "x"
BOARD, BARE = {"rack": 1}, {"yard": 1}
BOTH = BOARD | BARE
Address = tuple[str, int]
Serve = Callable[..., AbstractContextManager[Child]]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """A tracker without devices: those of each test end with it."""
    with start_tracker(data_dir=tmp_path_factory.mktemp("tracker")) as served:
        yield ("127.0.0.1", served.port)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Address, Child]]:
    """A tracker with two devices that stay, and the first: ``board`` of key ``rack``, which brings the token OVERHEARD
    whether a database knows it or not, and ``bare`` of key ``yard``, which brings none."""
    folder = tmp_path_factory.mktemp("standing")
    with start_tracker(data_dir=folder) as served:
        address = ("127.0.0.1", served.port)
        with (
            start_device(address, "rack", device_id="board", data_dir=folder, token=OVERHEARD) as board,
            start_device(address, "yard", device_id="bare", data_dir=folder),
        ):
            (signer,) = psutil.Process(board.pid).children()
            yield address, board
    wait_for(lambda: not signer.is_running() or signer.status() == psutil.STATUS_ZOMBIE)


@pytest.fixture(scope="module")
def standing(served: tuple[Address, Child]) -> Address:
    return served[0]


@pytest.fixture
def serve(empty: Address, tmp_path: Path) -> Serve:
    def start(device_id: str = "board", token: str | None = None, key: str = "rack") -> Child:
        return start_device(empty, key, device_id=device_id, data_dir=tmp_path, token=token)

    return start


def listed(storage: Storage, tracker: Address, tokens: TokenRule = TokenRule.AUTO) -> DeviceList:
    return DeviceList(storage, Tracker(*tracker), tokens=tokens, every_s=0.0, refused_s=0.0)


def expire(storage: Storage) -> None:
    with storage._database.write() as connection:
        connection.execute(update(device_tokens).values(expires_at=later(-1.0)))


def keep(storage: Storage, text: str, key: str = "rack") -> str:
    """Make a token that is known already. Returns its id."""
    token, _ = storage.create_device_token(key, HOUR_S)
    changed = {"id": credential_of(text).token_id, "stored_key": stored_key_of(text)}
    with storage._database.write() as connection:
        connection.execute(update(device_tokens).where(device_tokens.c.id == token.id).values(**changed))
    return credential_of(text).token_id


def refused(storage: Storage, devices: DeviceList, others: dict[str, int] | None = None) -> RefusedDevice:
    """The one device that the list refuses, once it does and has the ``others``."""
    wait_for(lambda: devices.refresh() == (others or {}) and bool(storage.list_refused_devices()))
    (found,) = storage.list_refused_devices()
    return found


def measure(devices: DeviceList) -> Any:
    ((address, known),) = devices.present("rack").items()
    runner = RpcRunner(lambda life_s, interrupted: devices.session(known, address, life_s, interrupted))
    try:
        (result,) = runner.run(TASK, [request()])
    finally:
        runner.close()
    return result


def test_a_device_with_the_right_token_joins_and_measures(storage: Storage, standing: Address) -> None:
    token_id = keep(storage, OVERHEARD)
    devices = listed(storage, standing)
    wait_for(lambda: devices.refresh() == BOTH)
    result = measure(devices)
    assert (result.ok, result.device) == (True, "board")
    joined = {device.id: device.joined for device in storage.list_devices()}
    assert set(joined) == {"board", "bare"}
    assert joined["board"] is not None and joined["board"].token_id == token_id
    assert storage.list_device_tokens()[0].last_used_at is not None
    assert storage.list_refused_devices() == ()


def test_a_device_without_a_token_is_refused_and_holds_up_nobody(
    storage: Storage, standing: Address, caplog: pytest.LogCaptureFixture
) -> None:
    keep(storage, OVERHEARD)
    storage.create_device_token("yard", HOUR_S)
    devices = listed(storage, standing)
    found = refused(storage, devices, BOARD)
    assert (found.id, found.key) == ("bare", "yard")
    assert found.reason.startswith("it brings no token; make one by `shapewright device-tokens create")
    for _ in range(3):
        devices.refresh()
    assert caplog.text.count("device bare at 127.0.0.1:") == 1
    assert devices.refresh() == BOARD
    assert measure(devices).ok
    assert {device.id for device in storage.list_devices()} == {"board"}


@pytest.mark.parametrize("case", ["expired", "revoked", "other key", "unknown", "forged"])
def test_a_wrong_token_is_refused_with_the_reason(storage: Storage, standing: Address, case: str) -> None:
    storage.create_device_token("rack", HOUR_S)
    if case != "unknown":
        keep(
            storage,
            OVERHEARD if case != "forged" else OVERHEARD.replace("x", "y"),
            "rack" if case != "other key" else "edge",
        )
    if case == "expired":
        expire(storage)
    token_id = credential_of(OVERHEARD).token_id
    if case == "revoked":
        storage.revoke_device_token(token_id)
    says = {
        "expired": f"its token {token_id} has expired at ",
        "revoked": f"its token {token_id} was revoked at ",
        "other key": f"its token {token_id} is for devices of key 'edge'",
        "unknown": f"its token {token_id} is not known to this database",
        "forged": f"it cannot prove that it has the token {token_id}",
    }[case]
    assert refused(storage, listed(storage, standing), BARE).reason.startswith(says)
    assert {device.id for device in storage.list_devices()} == {"bare"}


def test_which_devices_need_a_token_is_a_setting(storage: Storage, standing: Address) -> None:
    keep(storage, OVERHEARD)
    free = listed(storage, standing)
    wait_for(lambda: free.refresh() == BOTH)
    strict = listed(storage, standing, TokenRule.REQUIRED)
    assert refused(storage, strict, BOARD).id == "bare"
    assert free.refresh() == BOTH
    storage.create_device_token("other", HOUR_S)
    storage.create_device_token("yard", HOUR_S, required=False)
    assert free.refresh() == BOTH
    # From the next look on, for those that are there as well.
    token, _ = storage.create_device_token("yard", HOUR_S)
    wait_for(lambda: free.refresh() == BOARD)
    # A token that was revoked opens nothing.
    storage.revoke_device_token(token.id)
    assert free.refresh() == BOARD
    off = listed(storage, standing, TokenRule.OFF)
    wait_for(lambda: off.refresh() == BOTH)


def test_an_expired_token_ends_no_device_that_has_joined(storage: Storage, standing: Address) -> None:
    keep(storage, OVERHEARD)
    devices = listed(storage, standing)
    wait_for(lambda: devices.refresh() == BOTH)
    expire(storage)
    assert devices.refresh() == BOTH
    assert measure(devices).ok
    # Another worker, or this one after a restart.
    again = listed(storage, standing)
    wait_for(lambda: again.refresh() == BOTH)
    assert measure(again).ok


@pytest.mark.soak
def test_a_device_that_had_joined_comes_not_back_with_an_expired_token(
    storage: Storage, empty: Address, serve: Serve
) -> None:
    _, text = storage.create_device_token("rack", HOUR_S)
    devices = listed(storage, empty)
    with serve(token=text):
        wait_for(lambda: devices.refresh() == {"rack": 1})
        expire(storage)
    wait_for(lambda: devices.refresh() == {})
    with serve(token=text):
        assert "has expired at" in refused(storage, devices).reason


def test_a_revoked_token_ends_the_devices_that_joined_by_it(storage: Storage, standing: Address) -> None:
    token_id = keep(storage, OVERHEARD)
    devices = listed(storage, standing)
    wait_for(lambda: devices.refresh() == BOTH)
    ((address, known),) = devices.present("rack").items()
    storage.revoke_device_token(token_id)
    assert "was revoked at" in refused(storage, devices, BARE).reason
    with pytest.raises(DeviceLost, match=r"device board was refused: its token dt-\w+ was revoked"):
        devices.session(known, address, 20.0, lambda: False)


@pytest.mark.soak
def test_a_fresh_token_takes_the_place_of_one_that_was_revoked(storage: Storage, empty: Address, serve: Serve) -> None:
    token, text = storage.create_device_token("rack", HOUR_S)
    devices = listed(storage, empty)
    with serve(token=text):
        wait_for(lambda: devices.refresh() == {"rack": 1})
        storage.revoke_device_token(token.id)
        assert "was revoked at" in refused(storage, devices).reason
        _, text = storage.create_device_token("rack", HOUR_S)
    with serve(token=text):
        wait_for(lambda: devices.refresh() == {"rack": 1})


def started_again(tracker: Address, directory: Path, port: int) -> Child:
    """At the port of a device that has just ended, which may be taken for a while."""
    deadline = time.monotonic() + 30.0
    while True:
        try:
            return start_device(tracker, "rack", device_id="board", data_dir=directory, port=port)
        except ChildFailed:
            assert time.monotonic() < deadline, f"port {port} stayed taken"


@pytest.mark.soak
def test_a_device_that_is_restarted_without_its_token_gets_no_session(
    storage: Storage, empty: Address, tmp_path: Path
) -> None:
    _, text = storage.create_device_token("rack", HOUR_S)
    devices = listed(storage, empty)
    with start_device(empty, "rack", device_id="board", data_dir=tmp_path, token=text) as first:
        wait_for(lambda: devices.refresh() == {"rack": 1})
        port = first.port
    with started_again(empty, tmp_path, port):
        # At the same place, before the list has looked again.
        with pytest.raises(DeviceLost, match="device board was refused: it brings no token"):
            measure(devices)
        assert devices.counts() == {}
    assert storage.list_devices()[0].failures == 0, "whoever claims an id does not quarantine the device that has it"


def test_another_server_under_a_devices_key_gets_none_of_its_work(
    storage: Storage, standing: Address, tmp_path: Path
) -> None:
    keep(storage, OVERHEARD)
    devices = listed(storage, standing)
    wait_for(lambda: devices.refresh() == BOTH)
    with start_device(standing, "rack", device_id="board", data_dir=tmp_path):
        wait_for(lambda: Tracker(*standing).free(device_key("rack", "board")) == 2)
        assert measure(devices).ok
        assert measure(devices).ok
        wait_for(lambda: devices.refresh() == BOTH and bool(storage.list_refused_devices()))
    assert devices.counts() == BOTH
    wait_for(lambda: Tracker(*standing).free(device_key("rack", "board")) == 1)


# -- what goes over the wire ------------------------------------------------------------------------------------------
class Relay:
    """A session whose device answers with what another answered, or with what it is told to."""

    def __init__(self, answers: dict[str, str]) -> None:
        self.answers = dict(answers)
        self.address = ("10.0.0.66", 9091)
        self.hung_up = False

    def call(self, function: str, *args: Any) -> Any:
        if function not in self.answers:
            # As TVM has it.
            raise AttributeError(f"Cannot find function {function}")
        return self.answers[function]

    def hang_up(self) -> None:
        self.hung_up = True


class Relayed(Tracker):
    """A tracker whose one device is a relay."""

    def __init__(self, relay: Relay) -> None:
        super().__init__("127.0.0.1", 9)
        self.relay = relay

    def servers(self) -> list[tuple[str, Address]]:
        return [(device_key("rack", "board"), self.relay.address)]

    def free(self, key: str) -> int:
        return 1

    def request(self, *args: Any, **more: Any) -> Connected:
        return self.relay  # type: ignore[return-value]


@pytest.fixture(scope="module")
def answers(standing: Address) -> dict[str, str]:
    """What a device with the token OVERHEARD told a worker."""
    return overheard(standing, device_key("rack", "board"))


def overheard(tracker: Address, key: str) -> dict[str, str]:
    """What a device tells a worker."""
    client = Tracker(*tracker)
    wait_for(lambda: client.free(key) == 1)
    connected = client.request(key, 20.0, 10.0)
    answers = {DESCRIBE: connected.call(DESCRIBE), JOIN: connected.call(JOIN, NONCE)}
    connected.hang_up()
    return answers


def relayed(storage: Storage, answers: dict[str, str]) -> tuple[Relay, RefusedDevice]:
    relay = Relay(answers)
    return relay, refused(storage, DeviceList(storage, Relayed(relay), every_s=0.0))


def test_an_answer_that_was_overheard_is_refused(storage: Storage, answers: dict[str, str]) -> None:
    keep(storage, OVERHEARD)
    relay, found = relayed(storage, answers)
    assert found.reason.startswith("it cannot prove that it has the token dt-0123456789ab")
    assert found.address == "10.0.0.66:9091"
    assert relay.hung_up


def test_an_answer_to_the_nonce_of_now_is_not(
    storage: Storage, answers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is the nonce, and nothing else, that the test above fails by."""
    keep(storage, OVERHEARD)
    monkeypatch.setattr("worker.devices.admission.new_nonce", lambda: NONCE)
    devices = DeviceList(storage, Relayed(Relay(answers)), every_s=0.0)
    assert devices.refresh() == {"rack": 1}


def test_a_proof_is_of_the_device_that_made_it(storage: Storage, answers: dict[str, str]) -> None:
    keep(storage, OVERHEARD)
    told = json.loads(answers[JOIN])
    told["claim"]["id"] = "another"
    _, found = relayed(storage, {**answers, JOIN: json.dumps(told)})
    assert found.reason.startswith("it claims to be 'another' of key 'rack'")


@pytest.mark.parametrize("answer", ["", "[]", "{}", "null", '{"claim": {}}', '{"claim": {"x": 1}, "token": 1}', "7"])
def test_strange_answers_are_refusals(storage: Storage, answers: dict[str, str], answer: str) -> None:
    keep(storage, OVERHEARD)
    _, found = relayed(storage, {**answers, JOIN: answer})
    assert found.reason.startswith(("its answer about its token cannot be read", "it does not answer for its token"))


def test_a_device_of_before_there_were_tokens_is_told_to_be_brought_up_to_date(
    storage: Storage, answers: dict[str, str]
) -> None:
    keep(storage, OVERHEARD)
    relay = Relay(answers)
    del relay.answers[JOIN]
    found = refused(storage, DeviceList(storage, Relayed(relay), every_s=0.0))
    assert found.reason == "it knows no join tokens: bring it to the worker's version"


# -- what a candidate finds -------------------------------------------------------------------------------------------
def test_the_token_is_in_no_process_that_candidates_are_forked_from(served: tuple[Address, Child]) -> None:
    server = psutil.Process(served[1].pid)
    assert OVERHEARD not in " ".join(server.cmdline()) + str(server.environ())
    assert TOKEN not in server.environ()
    assert OVERHEARD.encode() not in memory_of(server.pid)
    # A session that has just ended may still be there.
    wait_for(lambda: len(server.children()) == 1)
    (signer,) = server.children()
    # Root sees it, the user of the device does not: it belongs to root now, whoever runs it.
    assert Path(f"/proc/{signer.pid}/mem").stat().st_uid == 0


def memory_of(pid: int) -> bytes:
    """What a process has written to its own memory."""
    found = bytearray()
    with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, access = line.split()[:2]
            start, end = (int(each, 16) for each in place.split("-"))
            if access.startswith("rw") and "[v" not in line and end - start < 2**30:
                memory.seek(start)
                found += memory.read(end - start)
    return bytes(found)


def test_a_session_that_is_prepared_for_candidates_proves_nothing(standing: Address) -> None:
    key = device_key("rack", "board")
    client = Tracker(*standing)
    wait_for(lambda: client.free(key) == 1)
    connected = client.request(key, 20.0, 10.0)
    assert "proof" in json.loads(connected.call(JOIN, new_nonce()))
    connected.call(OPEN, json.dumps(TASK.to_json()))
    assert set(json.loads(connected.call(JOIN, new_nonce()))) == {"claim"}
    connected.hang_up()
    # The next session does again.
    again = client.request(key, 20.0, 10.0)
    assert "proof" in json.loads(again.call(JOIN, new_nonce()))
    again.hang_up()


def test_a_device_without_a_token_says_what_it_is_and_no_more(standing: Address) -> None:
    assert set(json.loads(overheard(standing, device_key("yard", "bare"))[JOIN])) == {"claim"}
