"""The race of policies on the synthetic device: its rows, its order, its figures, its picture's data."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import benchmarks.policies
from benchmarks.compare.searched import best_so_far
from benchmarks.harness.results import Row
from benchmarks.harness.suite import Benchmark
from benchmarks.policies import (
    AGAIN,
    ORACLE,
    UNTUNED,
    budgets_of,
    policies,
    race,
    reference_of,
    summary_of,
)
from shapewright.session import TuneResult
from tests.benchmarks.test_kernels import TINY
from tests.fakes import TASK, latency_s
from tests.searching import Bench, make_quick
from tuner.library.dispatcher import Dispatcher
from tuner.program.job.jobspec import Budget
from tuner.program.job.policies import POLICIES
from tuner.program.job.task import SearchTask
from tuner.records import ErrorKind, MeasureResult
from tuner.schedule import default_kernel

BENCHMARK = Benchmark("small", TASK, ({"T": 3}, {"T": 24}))
NAMES = ("roller", "evolutionary", "theory")


class Simulated:
    """Searches and times on the synthetic device, a tenth of a second a trial."""

    def __init__(self) -> None:
        self.order: list[tuple[str, int]] = []
        self._dispatchers: dict[Path, Dispatcher] = {}

    def search(self, task: SearchTask, seed: int, folder: Path, *, policy: str, **budget: Any) -> TuneResult:
        bench = Bench(run_s=0.1)
        tuned = bench.tune(budget.get("trials"), budget.get("seconds"), task, policy=policy, seed=seed)
        self.order.append((policy, seed))
        self._dispatchers[folder] = Dispatcher.from_json(tuned.dispatch)
        return TuneResult(task, tuned, bench.results)

    def objectives(self, benchmark: Benchmark, libraries: Mapping[str, Path]) -> dict[str, float]:
        assert AGAIN in libraries
        return {name: self._objective_s(self._dispatchers[folder]) for name, folder in libraries.items()}

    def take_place(self, patch: pytest.MonkeyPatch) -> None:
        make_quick(patch)
        patch.setattr(benchmarks.policies, "search", self.search)
        patch.setattr(benchmarks.policies, "objectives", self.objectives)

    def _objective_s(self, dispatcher: Dispatcher) -> float:
        return sum(
            instance.weight * latency_s(TASK, dispatcher.kernel_for(instance.shape), instance.shape)
            for instance in TASK.instances
        )


@pytest.fixture(scope="module")
def raced() -> tuple[list[Row], list[tuple[str, int]]]:
    simulated = Simulated()
    budgets = {"48 trials": Budget(48, None), "6 s": Budget(None, 6.0)}
    with pytest.MonkeyPatch.context() as patch:
        simulated.take_place(patch)
        rows = list(race(BENCHMARK, NAMES, (0, 1), budgets))
    return rows, simulated.order


@pytest.mark.soak
def test_there_is_a_row_for_each_budget_seed_and_policy(raced: tuple[list[Row], Any]) -> None:
    rows, _ = raced
    assert [(row["budget"], row["seed"], row["policy"]) for row in rows] == [
        (label, seed, name) for label in ("48 trials", "6 s") for seed in (0, 1) for name in NAMES
    ]
    for row in rows:
        assert row["workload"] == "small"
        if row["policy"] == "evolutionary":
            assert (row["vs_reference"], row["noise"]) == (1.0, 0.0)
    assert max(row["trials"] for row in rows[:6]) <= 48
    assert max(row["elapsed_s"] for row in rows[6:]) <= 6.0 + 2.0
    assert {row["ended_by"] for row in rows if row["policy"] == "theory"} == {"no candidate expected to help"}
    assert {row["ended_by"] for row in rows if row["policy"] == "evolutionary"} == {"trials", "seconds"}
    assert json.loads(json.dumps(rows)) == rows


def test_a_long_search_shows_what_is_left_to_gain() -> None:
    simulated, budgets = Simulated(), {"8 trials": Budget(8, None)}
    with pytest.MonkeyPatch.context() as patch:
        simulated.take_place(patch)
        rows = list(race(BENCHMARK, ["theory"], (0, 1), budgets, oracle=96))
    policies = ["theory", ORACLE, UNTUNED]
    assert [(row["seed"], row["policy"]) for row in rows] == [(seed, name) for seed in (0, 1) for name in policies]
    assert simulated.order == [("theory", seed) for seed in (0, 0, 0, 1)]
    assert [row["trials"] for row in rows[2::3]] == [0, 0]
    searched, oracle, untuned = ([row["objective_s"] for row in rows[place::3]] for place in range(3))
    summary = summary_of(rows)
    for figure, library in {"to_gain": untuned, "left_to_gain": searched}.items():
        ratios = [own / best for own, best in zip(library, oracle, strict=True)]
        assert summary[figure]["8 trials"]["small"] == pytest.approx(math.sqrt(math.prod(ratios)) - 1)


@pytest.mark.soak
def test_no_policy_always_has_the_first_search(raced: tuple[Any, list[tuple[str, int]]]) -> None:
    _, order = raced
    assert order[:6] == [
        ("roller", 0), ("evolutionary", 0), ("theory", 0), ("evolutionary", 1), ("theory", 1), ("roller", 1),
    ]  # fmt: skip


@pytest.mark.soak
def test_the_best_so_far_falls_to_what_the_library_takes(raced: tuple[list[Row], Any]) -> None:
    rows, _ = raced
    for row in rows:
        known = [time for time in row["curve"] if time is not None]
        assert len(row["curve"]) == row["trials"]
        assert known == sorted(known, reverse=True)
        # A kernel of the library may serve an instance that it was never timed at.
        assert row["objective_s"] == pytest.approx(known[-1], rel=0.05)


def test_until_every_instance_has_a_time_there_is_no_best() -> None:
    results = [MeasureResult(default_kernel(TASK), instance, 1e-6) for instance in TASK.instances]
    broken = MeasureResult(default_kernel(TASK), TASK.instances[0], error_kind=ErrorKind.MACHINE, error="no memory")
    assert best_so_far(TASK, [broken, *results]) == [None] * 5 + [pytest.approx(5e-6)]


def row(policy: str, budget: str, ratio: float, noise: float = 0.0, **more: Any) -> Row:
    return {
        "policy": policy,
        "budget": budget,
        "vs_reference": ratio,
        "noise": noise,
        "trials": 4,
        "elapsed_s": 2.0,
    } | more


def test_the_summary_has_means_the_worst_and_the_noise() -> None:
    rows = [
        row("droplet", "8 trials", 0.5, trials=2), row("droplet", "8 trials", 2.0, trials=5),
        row("random", "8 trials", 1.0), row("random", "8 trials", 1.0, noise=math.log(1.21)),
    ]  # fmt: skip
    rows[0]["noise"] = rows[1]["noise"] = math.log(1.1)
    summary = summary_of(rows)
    assert summary["reference"] == "droplet", "the first, where the default takes no part"
    figures = summary["by_budget"]["8 trials"]
    assert figures["droplet"] == {
        "geomean_vs_reference": 1.0,
        "worst_vs_reference": 2.0,
        "trials": 3.5,
        "elapsed_s": 2.0,
    }
    assert summary["noise"]["8 trials"] == pytest.approx(1.1 - 1)


def test_the_default_is_the_reference_where_it_takes_part() -> None:
    assert reference_of(["random", "evolutionary"]) == "evolutionary"
    assert reference_of(["random", "droplet"]) == "random"


def test_policies_are_names_that_jobs_may_give() -> None:
    assert policies(",".join(POLICIES)) == tuple(POLICIES)
    assert policies("droplet,droplet") == ("droplet",)
    with pytest.raises(argparse.ArgumentTypeError, match="'best' is not known"):
        policies("droplet,best")


def test_a_budget_of_nothing_is_left_out() -> None:
    def budgets(trials: int, seconds: float) -> dict[str, Budget]:
        return budgets_of(argparse.Namespace(trials=trials, seconds=seconds))

    assert budgets(8, 2.5) == {"8 trials": Budget(8, None), "2.5 s": Budget(None, 2.5)}
    assert budgets(0, 1.0) == {"1 s": Budget(None, 1.0)}
    assert budgets(0, 0.0) == {}


@pytest.mark.soak
def test_libraries_of_real_searches_are_timed_in_turns(tmp_path: Path) -> None:
    suite, out = tmp_path / "suite.yaml", tmp_path / "out.json"
    suite.write_text(TINY)
    command = [sys.executable, "-m", "benchmarks.policies", str(suite), "--policies", "theory,droplet", "--seeds", "0"]
    done = subprocess.run(
        [*command, "--trials", "12", "--seconds", "0", "--json", str(out)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    assert [each["policy"] for each in document["policies"]] == ["theory", "droplet"]
    assert all(each["objective_s"] > 0 and each["trials"] <= 12 for each in document["policies"])
    assert "12 trials" in done.stdout
