from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from tests.serving import register_local
from tuner.storage import NewKey, Scope
from tuner.storage.sql import Storage, open_storage


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "tuning.db"


@pytest.fixture
def storage(database: Path, sqlite_template: Path) -> Iterator[Storage]:
    shutil.copy(sqlite_template, database)
    opened = open_storage(f"sqlite:///{database}")
    register_local(opened)
    yield opened
    opened.close()


@pytest.fixture
def key(storage: Storage) -> str:
    return storage.create_key("tests")[1]


@pytest.fixture
def api(storage: Storage, key: str) -> Iterator[TestClient]:
    headers = {"Authorization": f"Bearer {key}"}
    with TestClient(create_app(storage), headers=headers, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def keyed(storage: Storage) -> Iterator[Callable[[Scope], TestClient]]:
    """``keyed(scope)``: a client whose key has this scope alone."""
    app = create_app(storage)
    clients: list[TestClient] = []

    def client(scope: Scope) -> TestClient:
        secret = storage.create_key(scope.value, made=NewKey((scope,)))[1]
        clients.append(TestClient(app, headers={"Authorization": f"Bearer {secret}"}, raise_server_exceptions=False))
        return clients[-1].__enter__()

    yield client
    for each in clients:
        each.__exit__(None, None, None)
