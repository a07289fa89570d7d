from __future__ import annotations

from pathlib import Path

import pytest

from shapewright.sources import finder


@pytest.fixture(autouse=True)
def quiet_process(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data directory of the test's own, and no memory of sources."""
    monkeypatch.setattr(finder, "_away", {})
