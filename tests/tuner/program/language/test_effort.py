"""Jobs that were made to be costly: the work of refusing them is counted, and bounded on every machine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tuner.errors import InvalidInput
from tuner.program.job.jobspec import MAX_LISTED, MAX_STEPS, MAX_STORED, counts_of, parse_job
from tuner.program.job.task import SearchTask
from tuner.program.language.effort import Abandoned, limited, spend
from tuner.program.target import Target

BUDGET = {"budget": {"trials": 1}}
EIGHT = {f"v{number}": {"min": 1, "max": 3} for number in range(8)}
ALL_EIGHT = "+".join(EIGHT)


def dense(number: int, m: str = "T") -> dict[str, Any]:
    return {"op": "dense", "args": {"m": m, "n": 64 + number, "k": 64}}


def refused(job: dict[str, Any]) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        parse_job(job)
    assert len(str(caught.value)) < 500
    return caught.value


def balanced(terms: list[str]) -> str:
    """Their sum, no deeper than it must be."""
    while len(terms) > 1:
        terms = [f"({'+'.join(terms[at : at + 2])})" for at in range(0, len(terms), 2)]
    return terms[0]


def test_many_workloads_times_many_values_times_many_instances_are_refused_at_the_values() -> None:
    """868 kB: it was parsed for minutes; with one instance it was stored as 250 MB."""
    values = list(range(1, 122_001))
    job = {
        "workloads": [dense(number) for number in range(256)],
        "shape_vars": {"T": {"values": values}},
        "instances": [{"T": value} for value in values[-256:]],
        **BUDGET,
    }
    error = refused(job)
    assert error.field == "shape_vars.T"
    assert f"at most {MAX_LISTED}" in error.remedy


def test_what_a_job_makes_the_database_hold_is_bounded() -> None:
    values = list(range(1, MAX_LISTED + 1))
    workloads = [dense(number) for number in range(256)]
    job = {"workloads": workloads, "shape_vars": {"T": {"values": values}}, **BUDGET}
    error = refused(job)
    assert f"more than {MAX_STORED} characters" in error.problem
    assert error.field.startswith("workloads[")
    few = parse_job(job | {"workloads": workloads[:32]})
    assert sum(len(json.dumps(task.to_json())) for task in few.tasks) < 1.1 * MAX_STORED


def test_a_workload_counts_once_for_each_of_its_targets() -> None:
    targets = [{"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": cores} for cores in range(1, 129)]
    job = {
        "workload": dense(0), "shape_vars": {"T": {"values": list(range(1, MAX_LISTED + 1))}},
        "targets": targets, **BUDGET,
    }  # fmt: skip
    assert "characters" in refused(job).problem
    assert len(parse_job(job | {"shape_vars": {"T": {"min": 1, "max": 4096}}}).tasks) == 128


def test_the_largest_plain_job_is_read() -> None:
    args = {"b": "T", "h": 56, "w": 56, "o": 64, "r": 3, "s": 3, "pad": 1}
    workloads = [{"op": "conv2d", "args": {**args, "c": 3 + number}, "count": 2} for number in range(256)]
    job = {"workloads": workloads, "shape_vars": {"T": {"min": 1, "max": 128}}, **BUDGET}
    assert len(parse_job(job).tasks) == 256
    assert counts_of(job) == [2] * 256


SEVENTH = "+".join(f"({name}*7+{place})//3%{place + 2}" for place, name in enumerate(EIGHT))
READS = balanced([f"x[m+{number},n]*y[n,{number}+m]" for number in range(110)])
FAR = balanced([f"x[m+{number},n]" for number in range(100)])
COSTLY: dict[str, dict[str, Any]] = {
    "instances of intricate dims": {
        "workloads": [{"op": "dense", "args": {"m": SEVENTH, "n": ALL_EIGHT, "k": 64 + n}} for n in range(256)],
        "shape_vars": EIGHT,
        "instances": [{name: 1 + (n >> place) % 2 for place, name in enumerate(EIGHT)} for n in range(256)],
    },
    "long programs": {
        "workloads": [{"program": f"out[m, n] = {READS}", "extents": {"m": "T", "n": 64 + n}} for n in range(30)],
        "shape_vars": {"T": {"min": 1, "max": 128}},
    },
    "reads that only the range can prove": {
        "workloads": [
            {
                "program": f"out[m,n] = {FAR}",
                "extents": {"m": SEVENTH, "n": 64 + n},
                "shapes": {"x": [f"{SEVENTH}+v0%3+150", "n"]},
            }
            for n in range(20)
        ],
        "shape_vars": EIGHT,
    },
}


@pytest.mark.parametrize("name", COSTLY)
def test_a_job_that_takes_too_many_steps_is_refused(name: str) -> None:
    error = refused(COSTLY[name] | BUDGET)
    assert error.field == "job"
    assert "takes too long to check" in error.problem
    assert "split it into several jobs" in error.remedy


def test_steps_are_counted_inside_a_bound_alone() -> None:
    spend(10**12)
    with pytest.raises(InvalidInput) as caught, limited(5, "job", "less"):
        spend(3)
        with limited(10**9, "inner", "a bound inside another one changes nothing"):
            spend(3)
    assert (caught.value.field, caught.value.remedy) == ("job", "less")
    spend(10**12)


def test_checking_ends_when_nobody_waits() -> None:
    asked = iter([False] * 20 + [True] * MAX_STEPS)
    with pytest.raises(Abandoned):
        parse_job({"workload": dense(0, "16*T"), "shape_vars": {"T": {"min": 1, "max": 8}}, **BUDGET}, asked.__next__)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"budget": {"trials": 10**9}}, "budget.trials"),
        ({"budget": {"x" * 900_000: 1}}, "budget"),
        ({"x" * 900_000: 1}, "job"),
        ({"name": "x" * 900_000}, "name"),
        ({"device": "x" * 201}, "device"),
        ({"device": "two\nlines"}, "device"),
        ({"policy": "x" * 900_000}, "policy"),
        ({"threads": 10**6}, "threads"),
        ({"seed": "1" + ":0" * 400_000}, "seed"),
        ({"instances": [{"T": 1}] * 300}, "instances"),
        ({"instances": ["x" * 900_000]}, "instances[0]"),
        ({"instances": [{"x" * 900_000: 1}]}, "instances[0]"),
        ({"instances": [{f"v{n}": 1 for n in range(40_000)}]}, "instances[0]"),
        ({"instances": [{"T": "9" * 900_000}]}, "instances[0].T"),
        ({"shape_vars": {"x" * 900_000: {"min": 1, "max": 2}}}, "shape_vars"),
        ({"shape_vars": {f"v{n}": {"min": 1, "max": 2} for n in range(65)}}, "shape_vars"),
        ({"shape_vars": {"T": {"x" * 900_000: 1}}}, "shape_vars.T"),
        ({"shape_vars": {"T": ["x"] * 40_000}}, "shape_vars.T"),
        ({"target": "x" * 900_000}, "target"),
        ({"target": ["x"] * 40_000}, "target"),
        ({"target": {"kind": "llvm", "x" * 900_000: 1}}, "target"),
        ({"target": {"kind": "llvm", "mcpu": "x" * 900_000}}, "target.mcpu"),
        ({"target": {"kind": "llvm", "num-cores": 10**12}}, "target.num-cores"),
        ({"target": {"kind": "llvm", "hardware": {"x" * 900_000: 1}}}, "target.hardware"),
        ({"workload": {**dense(0), "count": 10**12}}, "workload.count"),
    ],
)
def test_every_number_and_text_has_a_bound_and_messages_stay_short(change: dict[str, Any], field: str) -> None:
    job = {"workload": dense(0), "shape_vars": {"T": {"min": 1, "max": 8}}, **BUDGET}
    assert refused(job | change).field == field


def test_a_task_is_moved_to_a_target_without_being_checked_again() -> None:
    spec = parse_job({"workload": dense(0), "shape_vars": {"T": {"min": 1, "max": 8}}, **BUDGET})
    target = Target.from_json({"kind": "llvm", "mcpu": "znver4", "num-cores": 2})
    (task,) = spec.on(target).tasks
    assert task == SearchTask(task.workload, None, task.shape_vars, task.instances, target=target)
    with limited(0, "job", ""):
        assert spec.tasks[0].on(target) == task
