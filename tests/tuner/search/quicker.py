"""Searches of which the loop alone is tested."""

from __future__ import annotations

import pytest

from tests.searching import make_quick
from tuner.search.cost_model import residual


def make_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``make_quick``, with cost models of still fewer trees."""
    make_quick(monkeypatch)
    monkeypatch.setattr(residual, "ROUNDS", 10)
