"""`sw.extract`: tasks that can be tuned, the job that they make, and what is refused."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import shapewright as sw
from shapewright.models.model import Named
from shapewright.models.tasks import ModelTasks
from tests.shapewright.models.checking import TARGET, Formula
from tuner.errors import InvalidInput
from tuner.program.job.jobspec import parse_job
from tuner.program.job.layers import layers_of


class Two(nn.Module):  # type: ignore[misc]
    """Two equal layers and another one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        y = torch.cumsum(torch.relu(self.second(torch.relu(self.first(x)))), 1)
        return self.last(y[:, 0])


@cache
def program() -> Any:
    torch.manual_seed(0)
    dims = {0: Dim("batch", min=1, max=4), 1: Dim("length")}
    return torch.export.export(Two().eval(), (torch.randn(2, 5, 16),), dynamic_shapes=(dims,))


def tasks(**options: Any) -> ModelTasks:
    return sw.extract(program(), target=TARGET, **({"shape_vars": {"length": range(1, 65)}} | options))


def test_tasks_are_search_tasks_with_a_count_and_places() -> None:
    found = tasks()
    assert [(task.count, task.places) for task in found] == [(2, ("first", "second")), (1, ("last",))]
    assert all(isinstance(task, sw.SearchTask) for task in found)
    assert [str(task.workload) for task in found] == [
        "dense(m=batch*length, n=16, k=16) + bias + relu",
        "dense(m=batch, n=8, k=16) + bias",
    ]
    assert found[0].shape_vars == (sw.ShapeVar("batch", range(1, 5)), sw.ShapeVar("length", range(1, 65)))
    assert found[1].shape_vars == (sw.ShapeVar("batch", range(1, 5)),)
    own = sw.SearchTask(sw.ops.dense, {"m": sw.ShapeVar("m", [1]) * 1, "n": 8, "k": 16}, [sw.ShapeVar("m", [1])],
                        epilogue=["bias"])  # fmt: skip
    assert found[1].workload.key == own.workload.key, "one workload with a job file's"


def test_a_task_on_a_target_keeps_its_count() -> None:
    task = sw.extract(program(), shape_vars={"length": [8]})[0]
    assert task.target is None
    on = task.on(TARGET)
    assert (on.count, on.known_target) == (2, TARGET)


def test_what_was_left_is_told() -> None:
    found = tasks()
    assert [one.node for one in found.left] == ["cumsum"]
    assert "cumsum: the operator has no translation (cumsum)" in repr(found)
    html = found._repr_html_()
    assert "<td>2</td><td>dense(m=batch*length, n=16, k=16) + bias + relu</td><td>first, second</td>" in html
    assert "cumsum" in html


def test_a_job_has_every_workload_and_its_count() -> None:
    found = tasks()
    spec = parse_job(found.job({"trials": 8}, threads=2))
    assert spec.counts == (2, 1)
    assert layers_of(spec.source) == [("first", "second"), ("last",)]
    assert [task.workload.key for task in spec.tasks] == [task.workload.key for task in found]
    assert [task.instances for task in spec.tasks] == [task.instances for task in found]
    assert {task.threads for task in spec.tasks} == {2}


def test_weights_say_which_sizes_occur() -> None:
    found = tasks(weights={"length": {1: 0.2, 64: 0.8}, "batch": {2: 1.0}})
    assert [str(instance) for instance in found[0].instances] == ["batch=2,length=1", "batch=2,length=64"]
    assert [instance.weight for instance in found[0].instances] == [0.2, 0.8]
    assert [instance.weight for instance in found[1].instances] == [1.0]
    spec = parse_job(found.job({"trials": 8}))
    assert [task.instances for task in spec.tasks] == [task.instances for task in found]


def test_a_saved_program_is_bound_by_place(tmp_path: Path) -> None:
    path = tmp_path / "two.pt2"
    torch.export.save(program(), path)
    named = [Named(sw.ShapeVar("rows", range(1, 5)), ("x", 0)), Named(sw.ShapeVar("seq", range(1, 65)), ("x", 1))]
    found = sw.extract(str(path), shape_vars=named, target=TARGET)
    assert str(found[0].workload) == "dense(m=rows*seq, n=16, k=16) + bias + relu"
    assert [task.workload.key for task in found] == [task.workload.key for task in tasks()]
    assert found.name == "two"


def test_any_name_does_for_the_only_dim_and_a_module_is_exported() -> None:
    given = (nn.Linear(8, 4).eval(), torch.randn(3, 8), ({0: Dim("m")},))
    (task,) = sw.extract(*given, shape_vars=[sw.ShapeVar("rows", range(1, 9))], target=TARGET)
    assert str(task.workload) == "dense(m=rows, n=4, k=8) + bias"
    assert sw.extract(*given[:2], target=TARGET)[0].shape_vars == (), "nothing is dynamic unless somebody says so"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "shape_vars.length": ({"shape_vars": None}, "does not say how large it may be"),
    "shape_vars.width": ({"shape_vars": {"width": [1]}}, "is no dim of the model"),
    "weights.width": ({"weights": {"width": {1: 1.0}}}, "no workload has such a shape variable"),
    "shape_vars.row": ({"shape_vars": [Named(sw.ShapeVar("row", [1]), ("y", 0))]}, "is no dynamic dim of an input"),
    "shape_vars": ({"shape_vars": {"batch": [1], "b": [1]}}, "is no dim of the model"),
}


@pytest.mark.parametrize("field", REFUSED)
def test_sizes_that_do_not_fit_are_refused(field: str) -> None:
    options, problem = REFUSED[field]
    with pytest.raises(InvalidInput, match=problem) as refused:
        tasks(**options)
    assert refused.value.field.startswith(field)


MODELS: dict[str, tuple[Any, str]] = {
    "training": (nn.Linear(4, 4), "training mode"),
    "other": (object(), "a object is no model"),
    "missing": ("nowhere.onnx", "there is no file"),
}


@pytest.mark.parametrize("case", MODELS)
def test_what_is_no_model_is_refused(case: str) -> None:
    model, problem = MODELS[case]
    with pytest.raises(InvalidInput, match=problem):
        sw.extract(model, (torch.randn(2, 4),))


def test_a_model_of_which_nothing_is_tuned_makes_no_job() -> None:
    class Sum(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return torch.cumsum(x, 1)

    found = sw.extract(Sum().eval(), torch.randn(2, 4), target=TARGET)
    assert not len(found)
    with pytest.raises(InvalidInput, match="nothing of it can be tuned"):
        found.job({"trials": 1})


def test_what_is_empty_or_too_large_at_some_sizes_leaves_the_others() -> None:
    def parts(x: Any) -> Any:
        return torch.softmax(x[7:], -1), torch.softmax(x * 2.0, -1), torch.tanh(x[:, :0] * 2.0)

    dims = (({0: Dim("length", min=10, max=64)},),)
    found = sw.extract(Formula(parts).eval(), (torch.randn(12, 32),), dims, shape_vars={"length": range(1, 65)})
    assert [str(task.workload) for task in found] == ["mul + softmax(m=length, n=32)"]
    reasons = [one.reason for one in found.left]
    assert any("runs from -6 to 57" in reason for reason in reasons), reasons
    assert any("no elements" in reason for reason in reasons), reasons
