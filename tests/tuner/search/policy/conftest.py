from __future__ import annotations

import pytest

from tests.searching import few_trees, small_models


@pytest.fixture(autouse=True)
def _models_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies read predictions: how well models are trained, and rates fitted, is tested where they stand."""
    small_models(monkeypatch)
    few_trees(monkeypatch)
