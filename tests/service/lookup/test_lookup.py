"""POST /v1/lookup: many questions in one call, with the key of a workload or without."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from tests.serving import JOB, assert_problem, lease, small_dispatcher, store_library
from tuner.program.job.jobspec import parse_job
from tuner.program.language.workload import WorkloadInstance
from tuner.program.target import native
from tuner.records import MeasureResult
from tuner.schedule import default_kernel, space_of
from tuner.storage import Lease
from tuner.storage.sql import Storage

DENSE = parse_job(JOB).tasks[0].on(native())
FAST = space_of(DENSE).mutate(default_kernel(DENSE), np.random.default_rng(3))
QKV = JOB["workload"]
PROGRAM = "out[i, o] = sum(c) act[i, c] * weight[o, c]"


@pytest.fixture
def held(api: TestClient, storage: Storage) -> Lease:
    assert api.post("/v1/jobs", json=JOB).status_code == 201
    return lease(storage)


@pytest.fixture
def measured(storage: Storage, held: Lease) -> Lease:
    """T=5 was measured, the rest is served by a library."""
    result = MeasureResult(FAST, WorkloadInstance.of({"T": 5}), latency_s=1e-3)
    storage.append_results(held, held.tasks[0].id, [result])
    store_library(storage, held)
    return held


def ask(api: TestClient, *queries: Any) -> list[dict[str, Any]]:
    # As Python writes it: also what is no Unicode.
    body = json.dumps({"queries": list(queries)})
    answer = api.post("/v1/lookup", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, answer.text
    document: list[dict[str, Any]] = answer.json()["answers"]
    assert all((each["best"] is None) != (each["problem"] is None) for each in document)
    return document


def best_of(api: TestClient, query: dict[str, Any]) -> dict[str, Any]:
    (answer,) = ask(api, query)
    assert answer["problem"] is None, answer
    best: dict[str, Any] = answer["best"]
    return best


# -- without the key --------------------------------------------------------------------------------------------------
def test_all_ways_to_name_a_workload_give_the_answer_of_the_key(api: TestClient, measured: Lease) -> None:
    key = measured.tasks[0].workload_key
    expected = api.get(f"/v1/workloads/{key}/best", params={"shape": "T=5"}).json()
    assert expected["match"] == "exact"
    spelled = {"program": PROGRAM, "extents": {"i": "L", "o": 2304, "c": 768}, "constant": ["weight"]}
    for query in (
        {"workload_key": key, "shape": {"m": 80}},
        {"workload_key": key, "shape": {"T": 5}},
        {"workload_key": key, "shape": "m=80"},
        {"workload": QKV, "shape": {"T": 5}},
        {"workload": QKV, "shape": {"m": 80}},
        {"workload": {"op": "dense", "args": {"m": "B*S", "n": 2304, "k": 768}}, "shape": {"B": 8, "S": 10}},
        {"workload": spelled, "shape": {"L": 80}},
        {"workload": QKV, "shape": {"T": 5}, "target": measured.tasks[0].target_fingerprint, "threads": 1},
        {"workload": QKV, "shape": {"T": 5}, "target": native().to_json(), "job": measured.job.id},
    ):
        assert best_of(api, query) == expected


def test_a_static_shape_is_answered_by_the_workload_that_it_is_an_instance_of(api: TestClient, measured: Lease) -> None:
    key = measured.tasks[0].workload_key
    for m, match in ((80, "exact"), (96, "dispatched"), (4096, "default")):
        static = {"op": "dense", "args": {"m": m, "n": 2304, "k": 768}}
        result = best_of(api, {"workload": static, "shape": {}})
        assert (result["workload_key"], result["shape"], result["match"]) == (key, {"m": m}, match)
        assert result["asked_key"] == parse_job({**JOB_OF_ONE, "workload": static}).tasks[0].workload.key


JOB_OF_ONE: dict[str, Any] = {"name": "one", "budget": {"trials": 1}}


def test_of_a_static_workload_and_those_it_is_an_instance_of_the_one_of_which_most_is_known_answers(
    api: TestClient, storage: Storage, measured: Lease
) -> None:
    static = {"op": "dense", "args": {"m": 96, "n": 2304, "k": 768}}
    api.post("/v1/jobs", json={**JOB_OF_ONE, "workload": static})
    assert best_of(api, {"workload": static})["match"] == "dispatched"
    own = lease(storage)

    storage.append_results(own, own.tasks[0].id, [MeasureResult(FAST, WorkloadInstance.of({}), latency_s=1e-3)])

    result = best_of(api, {"workload": static})
    assert (result["match"], result["workload_key"], result["asked_key"]) == ("exact", own.tasks[0].workload_key, None)


@pytest.mark.parametrize(
    "args", [{"m": 80, "n": 2305, "k": 768}, {"m": 80, "n": 2304, "k": 767}, {"m": "M", "n": 8, "k": 8}]
)
def test_a_workload_that_nobody_submitted_is_not_found(api: TestClient, measured: Lease, args: Any) -> None:
    shape = {"M": 80} if args["m"] == "M" else {}
    (answer,) = ask(api, {"workload": {"op": "dense", "args": args}, "shape": shape})
    assert answer["problem"]["status"] == 404
    assert "no job has been submitted" in answer["problem"]["detail"]


# -- a thousand in a call ---------------------------------------------------------------------------------------------
def test_a_thousand_questions_are_answered_in_their_order(api: TestClient, measured: Lease) -> None:
    key = measured.tasks[0].workload_key
    sizes = [16 * (1 + n % 130) for n in range(1000)]

    result = ask(api, *({"workload_key": key, "shape": {"m": m}} for m in sizes))

    assert [each["best"]["shape"]["m"] for each in result] == sizes
    dispatcher = small_dispatcher(measured.tasks[0].task)
    for m, each in zip(sizes, result, strict=True):
        expected = FAST if m == 80 else dispatcher.kernels[dispatcher.index_for({"m": m})]
        assert each["best"]["kernel"]["id"] == expected.id
        assert each["best"]["match"] == ("exact" if m == 80 else "dispatched" if m <= 2048 else "default")


def test_each_question_is_refused_on_its_own(api: TestClient, measured: Lease) -> None:
    key = measured.tasks[0].workload_key
    good = {"workload_key": key, "shape": {"m": 80}}
    bad: list[tuple[Any, str]] = [
        ({}, "workload"),
        ({"workload_key": key, "workload": QKV}, "workload"),
        ({"workload_key": 7, "shape": {"m": 80}}, "workload_key"),
        ({**good, "shape": {"m": -1}}, "shape.m"),
        ({**good, "shape": {"m": 2**31}}, "shape.m"),
        ({**good, "shape": {"m": 1.5}}, "shape.m"),
        ({**good, "shape": {"m": True}}, "shape.m"),
        ({**good, "shape": [80]}, "shape"),
        ({**good, "shape": {"S": 3}}, "shape"),
        ({**good, "shape": {f"s{n}": n for n in range(100)}}, "shape"),
        ({**good, "threads": 0}, "threads"),
        ({**good, "threads": 10**9}, "threads"),
        ({**good, "threads": "2"}, "threads"),
        ({**good, "target": "native"}, "target"),
        ({**good, "target": {"kind": "cuda"}}, "target.arch"),
        ({**good, "target": 5}, "target"),
        ({**good, "job": "x" * 1000}, "job"),
        ({**good, "colour": "red"}, "colour"),
        ({"workload": {"op": "dense"}, "shape": {}}, "workload.args"),
        ({"workload": {"program": "out[i] = "}, "shape": {}}, "workload.program"),
        ({"workload": QKV, "shape": {"T": 5, "S": 1}}, "shape"),
        ({"workload": "dense"}, "workload"),
        ({"\ud800": 1}, "?"),
    ]

    result = ask(api, *(query for query, _ in bad), good)

    assert [each["problem"]["field"] for each in result[:-1]] == [field for _, field in bad]
    assert all(each["problem"]["status"] == 422 and each["problem"]["remedy"] for each in result[:-1])
    assert result[-1]["best"]["match"] == "exact"


def test_places_are_never_crossed(api: TestClient, measured: Lease) -> None:
    good = {"workload": QKV, "shape": {"T": 5}}
    result = ask(api, {**good, "target": "llvm-other-0"}, {**good, "threads": 2}, {**good, "job": "job-0"}, good)
    assert [each["problem"] and each["problem"]["status"] for each in result] == [404, 404, 404, None]


def test_a_call_is_bounded(api: TestClient, measured: Lease) -> None:
    assert ask(api) == []
    query = {"workload_key": "wl-0", "shape": {"m": 1}}
    assert_problem(api.post("/v1/lookup", json={"queries": [query] * 1001}), 422)
    args = [{"b": 1, "h": n, "i": 64, "j": 64, "d": 64} for n in range(1, 1001)]
    described = [{"workload": {"op": "attention", "args": each}} for each in args]
    answer = api.post("/v1/lookup", json={"queries": described})
    assert_problem(answer, 422)
    assert "ask in several calls" in answer.text


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"queries": 5}', '{"queries": [5]}', '{"queries": [], "x": 1}', "{"])
def test_other_bodies_are_refused(api: TestClient, body: str) -> None:
    answer = api.post("/v1/lookup", content=body, headers={"Content-Type": "application/json"})
    assert_problem(answer, 422)


def test_answers_have_the_form_that_is_described(api: TestClient, measured: Lease) -> None:
    schema = json.loads(api.get("/v1/openapi.json").content)["components"]["schemas"]["BestOut"]
    result = best_of(api, {"workload": QKV, "shape": {"T": 5}})
    assert list(result) == list(schema["properties"])
    assert set(schema["required"]) == set(result)
