"""Where a device listens, and what workers are told."""

from __future__ import annotations

import socket

import pytest

from tuner.errors import InvalidInput
from tuner.measure.device.options import DeviceOptions, placed
from tuner.measure.network.addresses import address_text, is_loopback, local_address, parse_address

TRACKER = ("127.0.0.2", 9190)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (DeviceOptions(), ("127.0.0.1", None)),
        (DeviceOptions(tracker=TRACKER), ("127.0.0.1", "127.0.0.1")),
        (DeviceOptions(tracker=TRACKER, host="127.0.0.3"), ("127.0.0.3", "127.0.0.3")),
        (DeviceOptions(tracker=TRACKER, host="0.0.0.0"), ("0.0.0.0", "127.0.0.1")),
        (DeviceOptions(tracker=TRACKER, host="0.0.0.0", address="board-7"), ("0.0.0.0", "board-7")),
        (DeviceOptions(tracker=TRACKER, address="10.1.2.3"), ("127.0.0.1", "10.1.2.3")),
    ],
)
def test_a_device_is_registered_where_it_listens(options: DeviceOptions, where: tuple[str, str | None]) -> None:
    found = placed(options)
    assert (found.host, found.address) == where


def test_a_tracker_of_an_unknown_name_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"--tracker: no network leads to tracker\.invalid:9190"):
        placed(DeviceOptions(tracker=("tracker.invalid", 9190)))


def test_loopback_is_told_from_what_others_reach() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "127.8.8.8", "localhost", "::1")] == [True] * 4
    assert [is_loopback(host) for host in ("", "0.0.0.0", "198.18.7.1", "nowhere.invalid")] == [False] * 4
    assert local_address(("127.0.0.1", 1)) == "127.0.0.1"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9190", ("127.0.0.1", 9190)),
        ("tracker:1", ("tracker", 1)),
        ("[::1]:9410", ("::1", 9410)),
        ("[fe80::1%eth0]:65535", ("fe80::1%eth0", 65535)),
    ],
)
def test_an_address_is_read_as_it_is_written(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address
    assert address_text(address) == text


@pytest.mark.parametrize("text", ["::1:9410", "::1", "[::1]", "[::1]9410", "[a]:1", ":1", "a:0", "a:65536", "a:٣"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"\[::1\]:9190"):
        parse_address(text, "--tracker")


def test_a_tracker_of_ipv6_is_reached() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listening:
        found = placed(DeviceOptions(tracker=("::1", listening.getsockname()[1])))
    assert (found.host, found.address) == ("::1", "::1")
