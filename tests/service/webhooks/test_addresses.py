"""Where nothing may be sent to."""

from __future__ import annotations

from typing import Any

import pytest

from service.webhooks.addresses import Forbidden, address_of, is_public, resolve


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "127.9.9.9",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
        ),
        *("224.0.0.1", "255.255.255.255", "240.0.0.1", "198.18.0.1", "192.0.2.1"),
        *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1", "2001:db8::1"),
        *("fec0::1", "feff::1", "::7f00:1", "::808:808", "100::1", "5f00::1"),
        *("3fff::1", "2001:10::1", "4000::1"),
        *("2001:0:4136:e378:8000:63bf:3fff:fdd2", "2002:808:808::1", "192.88.99.1", "192.0.0.9"),
        *("::ffff:0:8.8.8.8", "fec0::1%eth0"),
        *("64:ff9b:1::808:808", "::ffff:169.254.169.254", "::ffff:100.64.0.1", "64:ff9b::6440:1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::", "2002:a00:1::", "64:ff9b::a00:1", "64:ff9b::7f00:1"),
    ],
)
def test_addresses_inside_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::808:808"]
)
def test_addresses_of_the_internet_are(address: str) -> None:
    assert is_public(address)


def answers(*addresses: str) -> Any:
    return lambda host, port: [(2, 1, 6, "", (address, port)) for address in addresses]


def test_the_first_address_is_the_one_to_connect_to() -> None:
    assert address_of("ci.example", 443, look_up=answers("8.8.8.8", "8.8.4.4")) == "8.8.8.8"


def test_one_address_inside_is_enough_to_refuse() -> None:
    with pytest.raises(Forbidden, match=r"ci.example is at 10\.0\.0\.1"):
        address_of("ci.example", 443, look_up=answers("8.8.8.8", "10.0.0.1"))


def test_a_host_without_an_address_is_refused() -> None:
    with pytest.raises(Forbidden):
        address_of("ci.example", 443, look_up=answers())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "2130706433", "0x7f000001", "127.1"])
def test_loopback_is_refused_however_it_is_written(host: str) -> None:
    with pytest.raises((Forbidden, OSError)):
        address_of(host, 80, look_up=resolve)


def test_private_addresses_may_be_allowed() -> None:
    assert address_of("127.0.0.1", 80, private=True) == "127.0.0.1"
