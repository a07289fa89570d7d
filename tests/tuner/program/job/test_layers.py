"""Names of layers in a job file: kept with the job, checked, and no part of any workload."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.errors import InvalidInput
from tuner.program.job.jobspec import parse_job
from tuner.program.job.layers import MAX_LAYER_NAME, MAX_LAYERS, layer_name, layers_of

DENSE: dict[str, Any] = {"op": "dense", "args": {"m": "T", "n": 64, "k": 32}, "count": 2}


def job(**item: Any) -> dict[str, Any]:
    others = {"op": "softmax", "args": {"m": "T", "n": 64}}
    shared = {"shape_vars": {"T": {"min": 1, "max": 8}}, "budget": {"trials": 8}}
    return {"workloads": [DENSE | item, others], **shared}


def test_layers_belong_to_search_tasks_and_not_to_workloads() -> None:
    named = job(layers=["encoder.0", "encoder.1"])
    spec = parse_job(named)
    assert layers_of(spec.source) == [("encoder.0", "encoder.1"), ()]
    assert [task.workload.key for task in spec.tasks] == [task.workload.key for task in parse_job(job()).tasks]
    assert layers_of(named | {"targets": ["native", "native"]}) == [("encoder.0", "encoder.1")] * 2 + [()] * 2
    assert layers_of({"workload": DENSE}) == [()]


@pytest.mark.parametrize(
    ("layers", "field"),
    [
        ("encoder", "workloads[0].layers"),
        (["x"] * (MAX_LAYERS + 1), "workloads[0].layers"),
        (["x", ""], "workloads[0].layers[1]"),
        (["a\nb"], "workloads[0].layers[0]"),
        (["x" * (MAX_LAYER_NAME + 1)], "workloads[0].layers[0]"),
        ([3], "workloads[0].layers[0]"),
    ],
)
def test_what_is_no_list_of_names_is_refused(layers: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_job(job(layers=layers))
    assert refused.value.field == field


def test_any_text_becomes_a_name() -> None:
    for text in ("", "a\tb", "x" * 999):
        parse_job(job(layers=[layer_name(text)]))
