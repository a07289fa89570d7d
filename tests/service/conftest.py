from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from tests.serving import register_local
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
