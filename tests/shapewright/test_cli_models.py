"""`tune-model` against a real service: one job for a model, whose file stays here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from tests.shapewright.cli_bed import Bed
from tests.shapewright.conftest import Shapewright

SIZES = ("--shape-var", "seq=1..16", "--trials", "4")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two equal dense layers over [batch, seq], and an operator that nothing is made of."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("MatMul", ["a", "v"], ["b"], name="second"),
        helper.make_node("CumSum", ["b", "axis"], ["c"], name="sums"),
    ]
    weights = [helper.make_tensor(name, TensorProto.FLOAT, [8, 8], [0.0] * 64) for name in "wv"]
    weights.append(helper.make_tensor("axis", TensorProto.INT64, [], [1]))
    inputs, outputs = [value("x", TensorProto.FLOAT, ["seq", 8])], [value("c", TensorProto.FLOAT, ["seq", 8])]
    path = tmp_path / "small.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "small", inputs, outputs, weights)), path)
    return path


def test_a_model_becomes_one_job_with_counts(shapewright: Shapewright, bed: Bed, model: Path) -> None:
    ran = shapewright("tune-model", model, *SIZES, "--weights", "seq=1:0.2,16:0.8", "--json")
    assert ran.code == 0
    assert set(ran.json) == {"job_id", "state", "workload_keys", "page", "left", "plan"}
    assert ran.json["plan"] == {"searches": 1, "affordable": 1, "recommended": {"trials": 64}}
    assert [(one["node"], one["op"]) for one in ran.json["left"]] == [("c", "unknown")]
    job = bed.storage.get_job(ran.json["job_id"])
    assert job.name == "small"
    (task,) = bed.storage.search_tasks(job.id)
    assert task.count == 2
    assert [instance.weight for instance in task.task.instances] == [0.2, 0.8]


def test_people_read_what_was_found_and_what_was_left(shapewright: Shapewright, bed: Bed, model: Path) -> None:
    ran = shapewright("tune-model", model, "--shape-var", "rows@x:0=1..16", "--seconds", "30")
    assert ran.code == 0
    assert "2x  dense(m=rows, n=8, k=8)  (first, second)" in ran.err
    assert "CumSum: the operator has no translation (c)" in ran.err
    assert ran.err.rstrip().endswith("budget: 1 workload in 30 s: all will be searched")
    assert ran.out.splitlines()[0].endswith("WAITING")


def test_seconds_may_be_what_is_recommended(shapewright: Shapewright, bed: Bed, model: Path) -> None:
    ran = shapewright("tune-model", model, *SIZES[:2], "--seconds", "auto", "--json")
    assert ran.code == 0
    assert bed.storage.get_job(ran.json["job_id"]).spec["budget"] == {"seconds": 30.0}


REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "budget": (("--shape-var", "seq=1..16"), "--seconds"),
    "seconds": (("--shape-var", "seq=1..16", "--seconds", "automatic"), "automatic"),
    "range": (("--shape-var", "seq=16..1", "--trials", "4"), "no range of sizes"),
    "form": (("--shape-var", "1..16", "--trials", "4"), "does not give one dim its sizes"),
    "place": (("--shape-var", "seq@y:0=1..16", "--trials", "4"), "no dynamic dim of an input"),
    "unknown size": (("--trials", "4"), "does not say how large it may be"),
    "weights": ((*SIZES, "--weights", "seq"), "does not weigh the sizes"),
    "other weights": ((*SIZES, "--weights", "width=1:1"), "no workload has such a shape variable"),
    "timeout": ((*SIZES, "--timeout", "3"), "--wait"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_usage_is_told(shapewright: Shapewright, data_dir: Path, model: Path, case: str) -> None:
    options, problem = REFUSED[case]
    ran = shapewright("tune-model", model, *options, "--json")
    assert ran.code == 2
    assert problem in ran.error["message"]


def test_a_file_of_another_kind_is_refused(shapewright: Shapewright, data_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.txt"
    path.write_text("no model")
    ran = shapewright("tune-model", path, *SIZES, "--json")
    assert ran.code == 2
    assert "ends neither in .onnx nor in .pt2" in ran.error["message"]


def test_a_static_model_has_no_dim_to_name(shapewright: Shapewright, data_dir: Path, model: Path) -> None:
    proto = onnx.load(model)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    onnx.save(proto, model)
    ran = shapewright("tune-model", model, *SIZES, "--json")
    assert ran.code == 2
    assert "the model has no dynamic dim" in ran.error["message"]


@pytest.mark.parametrize(("line", "cache"), [((), "streamed"), (("--cache", "warm"), "warm")])
def test_calls_of_a_model_are_timed_with_streamed_weights(
    shapewright: Shapewright, bed: Bed, model: Path, line: tuple[str, ...], cache: str
) -> None:
    ran = shapewright("tune-model", model, *SIZES, *line, "--json")
    (task,) = bed.storage.search_tasks(ran.json["job_id"])
    assert task.task.cache == cache
