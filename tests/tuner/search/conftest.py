from __future__ import annotations

import pytest

from tests.searching import remembered_theory_set
from tuner.search.policy import theory_first


@pytest.fixture(autouse=True)
def _theory_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theory_first, "theory_set", remembered_theory_set)
