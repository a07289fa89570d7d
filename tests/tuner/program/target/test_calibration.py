"""What is stored of a calibration, by this version and by later ones."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tuner.program.target import native
from tuner.program.target.calibration import VERSION, Calibration, Level, Levels
from tuner.program.target.rates import TYPICAL, Rates

LEVELS = Levels(1.3e11, (Level("L1", 24576, 2.3e11), Level("memory", 2**27, 1.8e10)))
FOUND = Calibration(
    VERSION, 2, native().fingerprint, Rates(clock_hz=3e9, l1_bytes=60.0), LEVELS, 260, 0.15, 0.05, 31.5,
    "2026-11-23T13:56:24+00:00",
)  # fmt: skip


def stored(calibration: Calibration = FOUND) -> dict[str, Any]:
    return dict(json.loads(json.dumps(calibration.to_json())))


@pytest.mark.parametrize("calibration", [FOUND, replace(FOUND, levels=None)])
def test_what_is_stored_is_read_again(calibration: Calibration) -> None:
    assert Calibration.from_json(stored(calibration)) == calibration


def test_what_later_versions_add_is_left_out_and_rates_that_they_drop_are_typical() -> None:
    data = stored() | {"governor": "performance"}
    data["rates"]["gathers"] = 0.25
    del data["rates"]["fork"]
    data["levels"]["levels"][0]["latency_s"] = 1e-9
    data["levels"]["flops_int8"] = 1e12
    assert Calibration.from_json(data) == FOUND
    assert FOUND.rates.fork == TYPICAL.fork


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_rates_that_theory_cannot_compute_with_are_refused(rate: float) -> None:
    data = stored()
    data["rates"]["loads"] = rate
    with pytest.raises(ValueError, match="positive and finite"):
        Calibration.from_json(data)


def test_it_serves_its_own_version_target_and_threads() -> None:
    target = native()
    other = replace(target, hardware=replace(target.hardware, cores=target.hardware.cores + 1))
    assert FOUND.serves(target, 2)
    assert not FOUND.serves(target, 1)
    assert not FOUND.serves(other, 2)
    assert not replace(FOUND, version=VERSION + 1).serves(target, 2)


@pytest.mark.parametrize("rates", [[], "fast", {"issue": 3}, {"issue": ["dpbf16ps"]}, {"issue": {"dpbf16ps": None}}])
def test_rates_of_another_form_are_refused_as_a_reader_expects(rates: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        Calibration.from_json({**stored(FOUND), "rates": rates})


@pytest.mark.parametrize("issued", [[], 3, {"dpbf16ps": 0.0}, {"dpbf16ps": "fast"}])
def test_issue_rates_of_another_form_are_refused_as_a_reader_expects(issued: object) -> None:
    levels = {"flops_per_s": 1e11, "levels": [], "issued_per_s": issued}
    with pytest.raises((TypeError, ValueError)):
        Calibration.from_json({**stored(FOUND), "levels": levels})


def test_issue_rates_and_the_clock_are_kept() -> None:
    levels = Levels(1e11, (), 2e9, {"dpbf16ps": 5e8})
    found = replace(FOUND, rates=replace(FOUND.rates, issue=(("dpbf16ps", 4.0),)), levels=levels)
    assert Calibration.from_json(stored(found)) == found
