from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from tuner.storage import NewKey, Scope
from tuner.storage.sql import Storage

Caller = Callable[..., TestClient]
SETTINGS = Settings(key_cache_s=0.0, attempt_rate="")


@pytest.fixture
def caller(storage: Storage) -> Iterator[Caller]:
    """Clients of one service, each with a key of its own: of these scopes, of this owner."""
    with TestClient(create_app(storage, settings=SETTINGS), raise_server_exceptions=False) as client:

        def make(*scopes: Scope, owner: str = "", **made: object) -> TestClient:
            _, secret = storage.create_key("tests", made=NewKey(scopes, owner, **made))  # type: ignore[arg-type]
            result = TestClient(client.app, raise_server_exceptions=False)
            result.headers["Authorization"] = f"Bearer {secret}"
            return result

        yield make
