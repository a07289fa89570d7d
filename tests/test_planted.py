"""Each fault of the list can still be planted, and its test is there: whether it fails, ``python -m tests.planted``
says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planted import FAULTS, Fault, places

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_has_its_line_and_its_test(fault: Fault) -> None:
    at, test = places(ROOT, fault)
    assert at != test
    assert f"| {fault.name} |" in (ROOT / "tests" / "README.md").read_text()
