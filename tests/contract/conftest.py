"""Parts that more than one contract suite runs on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from worker.building.cluster import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Ray cluster on this machine. It takes seconds to start, so there is one for all tests."""
    # More than the builders of one module take at once.
    result = Cluster(tmp_path_factory.mktemp("ray"), cores=4)
    yield result
    result.stop()
