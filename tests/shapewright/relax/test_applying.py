"""Relax modules with calls of tuned libraries: built by TVM, run by its virtual machine, exported and loaded again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

import shapewright as sw
from shapewright.relax import applying, linking
from shapewright.snapshot.writing import chosen, offers_of, write_snapshot
from shapewright.sources import libraries as libraries_by_digest
from tests.shapewright.libraries import altered, save
from tests.shapewright.models.relax_modules import alike, branches, joined_heads
from tests.shapewright.torch.models import HEADS, INNER, WIDTH
from tests.shares import every
from tuner.errors import InvalidInput, ShapewrightError
from tuner.program.job.task import SearchTask
from tuner.program.target import native

LENGTHS = ((1, 1), (2, 3), (3, 17), (5, 40))
"""Batch and length; most were never tuned on."""
REPLACED = ["dense", "dense", "layer_norm", "softmax"]


def _random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


SHAPES = {
    "up": (INNER, WIDTH), "up_bias": (INNER,), "down": (WIDTH, INNER), "down_bias": (WIDTH,),
    "gamma": (WIDTH,), "beta": (WIDTH,),
}  # fmt: skip
WEIGHTS = {name: _random(*shape) for name, shape in SHAPES.items()}


def feed_forward(name: str = "main") -> Any:
    """Two dense layers, a norm and a softmax over symbolic batch and length, and a step that no library is for. The
    weights are parameters."""
    batch, length = tirx.Var("batch", "int64"), tirx.Var("length", "int64")
    x = relax.Var("x", relax.TensorType((batch, length, WIDTH), "float32"))
    params = {key: relax.Var(key, relax.TensorType(value.shape, "float32")) for key, value in WEIGHTS.items()}
    builder = relax.BlockBuilder()
    with builder.function(name, [x, *params.values()], attrs={"num_input": 1}):
        with builder.dataflow():
            up = builder.emit(relax.op.matmul(x, relax.op.permute_dims(params["up"])))
            up = builder.emit(relax.op.nn.gelu(relax.op.add(up, params["up_bias"])))
            down = builder.emit(relax.op.matmul(up, relax.op.permute_dims(params["down"])))
            down = builder.emit(relax.op.add(down, params["down_bias"]))
            norm = builder.emit(relax.op.nn.layer_norm(down, params["gamma"], params["beta"], axes=[-1]))
            soft = builder.emit(relax.op.nn.softmax(norm))
            out = builder.emit_output(relax.op.concat([soft, norm], -1))
        builder.emit_func_output(out)
    return builder.finalize()


def bound_module() -> Any:
    """The same with its weights as constants."""
    values = {key: tvm.runtime.tensor(value) for key, value in WEIGHTS.items()}
    return relax.transform.BindParams("main", values)(feed_forward())


def built(module: Any) -> Any:
    return tvm.compile(module, "llvm", relax_pipeline=relax.get_default_pipeline(tvm.target.Target("llvm")))


def outputs(executable: Any, *weights: Any) -> list[np.ndarray[Any, Any]]:
    machine = relax.VirtualMachine(executable, tvm.cpu())
    given = [tvm.runtime.tensor(each) for each in weights]
    return [machine["main"](tvm.runtime.tensor(_random(*size, WIDTH)), *given).numpy() for size in LENGTHS]


@pytest.fixture(scope="module")
def untuned() -> list[np.ndarray[Any, Any]]:
    """What TVM computes by itself."""
    return outputs(built(bound_module()))


def close(one: list[np.ndarray[Any, Any]], other: list[np.ndarray[Any, Any]]) -> bool:
    return all(a.shape == b.shape and np.allclose(a, b, 1e-4, 1e-4) for a, b in zip(one, other, strict=True))


def test_a_build_with_libraries_computes_the_same_at_every_size_and_in_a_new_process(
    libraries: Path, untuned: list[np.ndarray[Any, Any]], tmp_path: Path
) -> None:
    module = sw.relax.ApplyTuned(libraries)(bound_module())
    report = sw.relax.report()
    assert [each.workload.split("(")[0] for each in report.replaced] == REPLACED
    assert {each.how for each in report.replaced} == {"exact", "covers"}
    assert [left.where for left in report.kept] == ["gv"]
    assert json.loads(json.dumps(report.to_json()))["replaced"][0]["match"] == "exact"
    assert "left to TVM" in str(report)
    text = module["main"].script()
    assert text.count("call_dps_packed") == len(REPLACED)
    assert "batch" in text
    assert "relax.nn" not in text
    executable = built(module)
    assert close(outputs(executable), untuned)

    # No library, nor any part of Shapewright, is needed where the build runs.
    executable.export_library(str(tmp_path / "model.so"))
    np.save(tmp_path / "x.npy", _random(*LENGTHS[2], WIDTH))
    np.save(tmp_path / "expected.npy", untuned[2])
    subprocess.run([sys.executable, "-c", RUN_EXPORTED], cwd=tmp_path, check=True, timeout=120)


RUN_EXPORTED = """
import sys
sys.modules["torch"] = None  # What TVM would import if it were there takes a second.
import numpy, tvm
from tvm import relax
machine = relax.VirtualMachine(tvm.runtime.load_module("model.so"), tvm.cpu())
found = machine["main"](tvm.runtime.tensor(numpy.load("x.npy"))).numpy()
assert numpy.allclose(found, numpy.load("expected.npy"), 1e-4, 1e-4)
assert not any(name.partition(".")[0] == "shapewright" for name in sys.modules)
"""


def test_weights_that_are_parameters_are_left_where_they_must_be_packed(
    libraries: Path, untuned: list[np.ndarray[Any, Any]]
) -> None:
    module = sw.relax.ApplyTuned(libraries)(feed_forward())
    report = sw.relax.report()
    assert [each.workload.split("(")[0] for each in report.replaced] == REPLACED[2:]
    assert [left.reason for left in report.kept if "BindParams" in left.reason] == [
        f"its weight {name} is a parameter: bind its value first, by relax.transform.BindParams"
        for name in ("up", "down")
    ]
    assert close(outputs(built(module), *WEIGHTS.values()), untuned)


@pytest.mark.parametrize("is_split", every(2, [False, True]))
def test_heads_of_one_product_are_read_where_they_lie(is_split: bool, tmp_path: Path) -> None:
    module, ranges = joined_heads(is_split, WIDTH, HEADS), {"batch": range(1, 9), "length": range(1, 65)}
    for task in sw.extract(module, shape_vars=ranges):
        save(tmp_path / task.workload.key, SearchTask(task.workload, None, task.shape_vars, target=native()))
    changed = sw.relax.ApplyTuned(tmp_path, strict=True)(module)
    assert [each.workload.split("(")[0] for each in sw.relax.report().replaced] == ["dense", "attention"]
    assert "split" not in changed["main"].script()
    assert "strided_slice" not in changed["main"].script()
    assert close(outputs(built(changed)), outputs(built(module)))


def test_a_function_of_another_name_is_changed_and_others_are_not(libraries: Path) -> None:
    module = feed_forward("encode")
    module.update(relax.transform.LegalizeOps()(feed_forward()))
    changed = sw.relax.ApplyTuned(libraries)(module)
    assert {each.where.partition(": ")[0] for each in sw.relax.report().replaced} == {"encode"}
    assert tvm_ffi.structural_equal(changed["main"], module["main"])
    assert not tvm_ffi.structural_equal(changed["encode"], module["encode"])


def test_a_module_with_nothing_to_replace_comes_back_as_it_was(libraries: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    module = bound_module()
    assert sw.relax.ApplyTuned(tmp_path / "empty")(module).same_as(module)
    assert {left.reason for left in sw.relax.report().kept} >= {"no library for this workload"}
    lowered = relax.transform.LegalizeOps()(module)
    assert sw.relax.ApplyTuned(libraries)(lowered).same_as(lowered)
    assert "extract before operators are lowered" in str(sw.relax.report())


def test_a_source_that_is_away_or_damaged_leaves_the_build_to_tvm(tmp_path: Path, free_port: int) -> None:
    (tmp_path / "some.snapshot").write_bytes(b"PK damaged")
    for source in (f"http://127.0.0.1:{free_port}", tmp_path / "some.snapshot", tmp_path / "missing"):
        module, report = bound_module(), sw.relax.Report()
        with pytest.warns(UserWarning, match="what has none is not tuned"):
            assert sw.relax.ApplyTuned(source, report=report)(module).same_as(module)
        assert not report.replaced
        assert str(source) in report.notes[0]
        with pytest.raises(ShapewrightError):
            sw.relax.ApplyTuned(source, strict=True)(module)


def test_libraries_of_another_target_or_toolchain_are_not_taken(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Libraries are known by their digests, which both of these keep.
    monkeypatch.setattr(libraries_by_digest, "_loaded", {})
    monkeypatch.setattr(linking, "_linkables", {})
    manifest = json.loads((libraries / "layer-norm" / "manifest.json").read_text())
    hardware = {**manifest["target"]["hardware"], "features": ["avx1024"]}
    altered(libraries / "layer-norm", tmp_path / "target", target={**manifest["target"], "hardware": hardware})
    altered(libraries / "layer-norm", tmp_path / "tvm", toolchain={"tvm": "0.1"})
    module = bound_module()
    for name, reason in (("target", "it is for a CPU with avx1024"), ("tvm", "the library was built by tvm 0.1")):
        assert sw.relax.ApplyTuned(tmp_path / name)(module).same_as(module)
        assert any(reason in left.reason for left in sw.relax.report().kept)
    with pytest.raises(ShapewrightError, match="no library for this workload"):
        sw.relax.ApplyTuned(tmp_path / "target", strict=True)(module)


def test_a_snapshot_serves(libraries: Path, tmp_path: Path) -> None:
    shutil.copytree(libraries / "layer-norm", tmp_path / "one")
    write_snapshot(tmp_path / "one.snapshot", chosen(offers_of(tmp_path / "one")))
    sw.relax.ApplyTuned(tmp_path / "one.snapshot")(bound_module())
    assert [each.source for each in sw.relax.report().replaced] == [str(tmp_path / "one.snapshot")]


def test_what_is_no_source_or_number_of_threads_is_refused() -> None:
    with pytest.raises(InvalidInput, match="source"):
        sw.relax.ApplyTuned(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="threads"):
        sw.relax.ApplyTuned("libraries", threads=0)
    with pytest.raises(InvalidInput, match="target"):
        sw.relax.ApplyTuned("libraries", "cuda")


def test_variables_that_are_called_alike_get_the_values_of_their_own(libraries: Path) -> None:
    module = sw.relax.ApplyTuned(libraries)(alike())
    assert [each.workload.split("(")[0] for each in sw.relax.report().replaced] == ["dense", "dense"]
    given = [_random(size, WIDTH) for size in (3, 5)]
    for found, right in zip(_run(module, *given), _run(alike(), *given), strict=True):
        assert np.allclose(found, right, 1e-4, 1e-4)


def test_what_stands_before_and_behind_branches_tuples_and_casts_is_replaced(libraries: Path) -> None:
    module = sw.relax.ApplyTuned(libraries)(branches())
    assert {each.workload.split("(")[0] for each in sw.relax.report().replaced} == {"softmax"}
    pair = [_random(4, WIDTH), _random(4, WIDTH)]
    for flag in (True, False):
        given = (pair, _random(4, WIDTH) * 2, np.array(flag))
        for found, right in zip(_run(module, *given), _run(branches(), *given), strict=True):
            assert np.allclose(found, right, 1e-4, 1e-4)


@pytest.mark.causes_defects
def test_a_defect_of_our_own_leaves_the_function_as_it_was(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise IndexError("of ours")

    monkeypatch.setattr(applying, "lift_graph", fail)
    module = bound_module()
    assert sw.relax.ApplyTuned(libraries)(module).same_as(module)
    assert [each.reason for each in sw.relax.report().kept] == ["a defect of Shapewright: IndexError: of ours"]


def _run(module: Any, *given: Any) -> list[np.ndarray[Any, Any]]:
    def tensors(value: Any) -> Any:
        return list(map(tensors, value)) if isinstance(value, list) else tvm.runtime.tensor(value)

    machine = relax.VirtualMachine(built(module), tvm.cpu())
    return [each.numpy() for each in machine["main"](*map(tensors, given))]
