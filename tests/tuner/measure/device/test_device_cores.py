"""The cores that a device is told to measure on."""

from __future__ import annotations

import os

import pytest

from tuner.measure.device.options import parse_cores

HERE = sorted(os.sched_getaffinity(0))


def test_cores_are_numbers_and_ranges() -> None:
    assert parse_cores("") == ()
    assert parse_cores(f"{HERE[0]}") == parse_cores(f"{HERE[0]}-{HERE[0]},{HERE[0]}") == (HERE[0],)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0-x", "'0-x' is neither a core nor a range"),
        ("1-0", "'1-0' is neither a core nor a range"),
        ("-1", "'-1' is neither a core nor a range"),
        ("4000", "there is no core 4000"),
        ("0-99999999999", "there is no core 99999999999"),
    ],
)
def test_what_names_no_core_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_cores(text)
