"""A tracker with a device, for tests of whole workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.searching import quick_policies
from worker.device_server import start_device
from worker.tracker import start_tracker

Address = tuple[str, int]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_policies(monkeypatch)


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """That of ``storage``: what differs between kinds of databases is tested with these."""
    return sqlite_url


@pytest.fixture(scope="session")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """The address of a tracker with one device under the key ``local``."""
    directory = tmp_path_factory.mktemp("tracker")
    with start_tracker(data_dir=directory) as served:
        address = ("127.0.0.1", served.port)
        with start_device(address, "local", device_id="here:0", data_dir=directory):
            yield address
