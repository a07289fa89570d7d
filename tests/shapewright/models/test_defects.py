"""A defect of our own at one node leaves that node; all others are lifted as if it were not there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from shapewright.models import defects, fusing, lifting, patterns
from tests.shapewright.models.checking import labels, lifted
from tuner.schedule import registry


def _fail(*_: Any, **__: Any) -> Any:
    raise KeyError("rows")


PLACES: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], list[str]]] = {
    "making a program": (lambda patch: patch.setattr(lifting, "OPERATORS", {**lifting.OPERATORS, "softmax": _fail}),
                         ["dense + bias + relu"]),
    "fusing": (lambda patch: patch.setattr(fusing, "_appended", _fail), ["relu + softmax"]),
    "putting together": (lambda patch: patch.setattr(patterns, "_matches", _fail), ["dense + bias + relu", "softmax"]),
}  # fmt: skip


pytestmark = pytest.mark.causes_defects


@pytest.mark.parametrize("place", PLACES)
def test_a_defect_leaves_one_group(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken, expected = PLACES[place]
    broken(monkeypatch)
    monkeypatch.setattr(defects, "_told", set())
    with caplog.at_level(logging.WARNING):
        found = lifted(lambda layer, x: torch.softmax(torch.relu(layer(x)), -1), torch.randn(3, 8),
                       layers=(nn.Linear(8, 8),))  # fmt: skip
    assert labels(found) == expected
    told = [record for record in caplog.records if record.name == defects.logger.name]
    assert len(told) == 1
    assert told[0].exc_info
    if len(expected) < 2:
        assert "a defect of Shapewright: KeyError: 'rows'" in [one.reason for one in found.left]


def test_a_rule_that_fails_leaves_what_it_was_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = next(rule for rule in registry.RULES if rule.name == "row_reduction")
    monkeypatch.setattr(type(rule), "match", _fail)
    found = lifted(lambda x: torch.softmax(x, -1), torch.randn(3, 8))
    assert not found.ops
    assert found.left[0].reason.startswith("a defect of Shapewright")
