from __future__ import annotations

import pytest

from tests.searching import small_models
from tuner.search.cost_model import residual


@pytest.fixture(autouse=True)
def _models_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies read predictions: how well models are trained, and rates fitted, is tested where they stand."""
    small_models(monkeypatch)
    monkeypatch.setattr(residual, "ROUNDS", 10)
