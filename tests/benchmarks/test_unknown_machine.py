"""Machines that nobody knows, made up by factors; and what theory alone is worth."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import theory, unknown_machine
from benchmarks.unknown_machine import AGAIN, disturbed, disturbed_constants, summary_of
from tests.benchmarks.test_kernels import TINY
from tuner.program.target.rates import NUMBERS, TYPICAL
from tuner.schedule.rules import stencil as windows
from tuner.schedule.rules.attention import estimate as attention

LIBRARIES = [theory.TYPICAL, theory.CALIBRATED, theory.SEARCHED]


def test_every_rate_is_disturbed_by_a_factor_of_its_own_and_the_same_for_the_same_draw() -> None:
    factors = {name: getattr(disturbed(TYPICAL, 1, 3.0), name) / getattr(TYPICAL, name) for name in NUMBERS}
    assert all(1 / 3 <= factor <= 3 for factor in factors.values())
    assert len(set(factors.values())) == len(factors)
    assert disturbed(TYPICAL, 1, 3.0) == disturbed(TYPICAL, 1, 3.0) != disturbed(TYPICAL, 2, 3.0)


def test_constants_of_rules_are_disturbed_while_it_lasts() -> None:
    before = attention.ROW_CYCLES, windows.TILE_CYCLES
    with pytest.raises(KeyError), disturbed_constants(3, 3.0) as count:
        inside = attention.ROW_CYCLES, windows.TILE_CYCLES
        raise KeyError
    assert count >= 20
    assert all(1 / 3 <= now / was <= 3 and now != was for now, was in zip(inside, before, strict=True))
    assert before == (attention.ROW_CYCLES, windows.TILE_CYCLES)


def test_the_summary_leaves_out_what_is_compared_with() -> None:
    rows = [
        {"seconds": 30.0, "draw": draw, "vs_undisturbed": ratio}
        for draw, ratio in (("undisturbed", 1.0), ("0", 1.02), ("1", 0.98), (AGAIN, 0.99))
    ]
    summary = summary_of(rows)["30 s"]
    assert summary["geomean_vs_undisturbed"] == pytest.approx((1.02 * 0.98) ** 0.5)
    assert (summary["worst_vs_undisturbed"], summary["draws"]) == (1.02, 2)
    assert summary["noise"] == pytest.approx(1 / 0.99 - 1)


def test_regret_of_theory_is_over_the_searchs_time() -> None:
    rows = [
        {"s": {theory.TYPICAL: 2.0, theory.SEARCHED: 1.0}, "libraries": LIBRARIES},
        {"s": {theory.TYPICAL: 1.0, theory.CALIBRATED: 1.0, theory.SEARCHED: 2.0}, "libraries": LIBRARIES},
    ]
    regret = theory.summary_of(rows)
    assert set(regret) == {theory.TYPICAL, theory.SEARCHED}, "not every shape has a calibrated one"
    assert regret[theory.TYPICAL] == {"regret": pytest.approx(0.0), "worst": pytest.approx(1.0)}


def test_theory_is_compared_with_the_fastest_rival_at_each_shape() -> None:
    libraries = [theory.TYPICAL, theory.SEARCHED]
    seconds = ({"typical": 2.0, "searched": 1.0, "mm": 4.0, "mkl": 8.0}, {"typical": 1.0, "searched": 1.0, "mm": 1.0})
    rows = [
        {"s": each, "samples_s": {name: [time] * 3 for name, time in each.items()}, "libraries": libraries}
        for each in seconds
    ]
    summary = theory.summary_of(rows)
    assert summary[theory.TYPICAL]["geomean_vs_best"] == pytest.approx(2**0.5)
    assert summary[theory.TYPICAL]["interval_vs_best"] == pytest.approx((2**0.5, 2**0.5))
    assert (summary[theory.TYPICAL]["worst_vs_best"], summary[theory.SEARCHED]["worst_vs_best"]) == (1.0, 1.0)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("module", "options", "members"),
    [
        (unknown_machine, ["--draws", "1", "--seconds", "0,6"], {"0 s", "6 s"}),
        (theory, ["--seconds", "6"], {theory.TYPICAL}),
    ],
)
def test_real_searches(tmp_path: Path, module: object, options: list[str], members: set[str]) -> None:
    suite, out = tmp_path / "suite.yaml", tmp_path / "out.json"
    suite.write_text(TINY)
    name = str(getattr(module, "__name__", ""))
    done = subprocess.run(
        [sys.executable, "-m", name, str(suite), *options, "--json", str(out)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    assert members <= set(document["summary"])
    assert document["rows"]
