from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from shapewright.sources import finder


@pytest.fixture(autouse=True)
def quiet_process(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A data directory of the test's own, no memory of sources, and warnings of ours as errors."""
    monkeypatch.setattr(finder, "_away", {})
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "shapewright")
        yield
