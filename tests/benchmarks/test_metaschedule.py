"""MetaSchedule as a contender: what it is given computes the operator, what is kept is used again, what was not tuned
is not served. The search itself is TVM's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm.s_tir import Schedule

import shapewright as sw
from benchmarks import metaschedule
from benchmarks.contenders import inputs_of
from benchmarks.metaschedule_worker import LAYOUT_REWRITE, packing, static_function
from benchmarks.rivals import DoesNotApply
from tuner.program.build import make_workload
from tuner.program.reference import compute
from tuner.program.target import native
from tuner.program.task import SearchTask
from tuner.program.workload import Workload

DENSE = make_workload("dense", {"m": "4*T", "n": 64, "k": 48})
MATMUL = make_workload("matmul", {"m": "T", "n": 32, "k": "T"})


def saved(workload: Workload, shape: dict[str, int], root: Path) -> Path:
    """As if MetaSchedule had found the schedule that changes nothing."""
    folder = root / f"T={shape['T']}"
    folder.mkdir(parents=True)
    executable = tvm.compile(static_function(workload, shape), target=tvm.target.Target({"kind": "llvm"}))
    executable.export_library(str(folder / metaschedule.MODULE))
    return folder


@pytest.mark.parametrize("workload", [DENSE, MATMUL])
def test_the_static_function_computes_the_operator(workload: Workload) -> None:
    function, inputs = static_function(workload, {"T": 3}), inputs_of(workload, {"T": 3})
    (expected,) = compute(workload, inputs, workload.dims({"T": 3}))
    module = tvm.compile(function, target=tvm.target.Target({"kind": "llvm"}))
    operands = [tvm.runtime.tensor(array) for array in (*inputs, np.zeros(expected.shape, np.float32))]
    module["main"](*operands)
    np.testing.assert_allclose(operands[-1].numpy(), expected, rtol=1e-4, atol=1e-4)
    assert ("layout_free_buffers" in function.attrs) == bool(workload.constants)


def test_it_serves_the_shapes_it_was_tuned_for_and_no_other(tmp_path: Path) -> None:
    saved(DENSE, {"T": 5}, tmp_path)
    assert metaschedule.serves(tmp_path, {"T": 5})
    metaschedule.prepare(DENSE, tmp_path)({"T": 5})()
    assert not metaschedule.serves(tmp_path, {"T": 6})
    with pytest.raises(DoesNotApply, match="T=6"):
        metaschedule.prepare(DENSE, tmp_path)({"T": 6})


def test_the_weight_goes_where_the_schedule_wants_it(tmp_path: Path) -> None:
    schedule = Schedule(static_function(DENSE, {"T": 2}))
    copy = schedule.cache_read(schedule.get_sblock("out"), 1, "global")
    schedule.transform_layout(copy, ("write", 0), lambda n, k: (n // 16, k, n % 16))
    schedule.annotate(copy, LAYOUT_REWRITE, True)
    packed = packing(schedule)
    assert packed is not None
    shape, places = packed
    assert shape == [4, 48, 16]
    np.savez(tmp_path / "pack.npz", shape=shape, places=places)
    weight = np.arange(64 * 48, dtype=np.float32).reshape(64, 48)
    expected = weight.reshape(4, 16, 48).transpose(0, 2, 1)
    np.testing.assert_array_equal(metaschedule.packed(weight, tmp_path / "pack.npz"), expected)


def test_a_schedule_that_leaves_the_weight_alone_has_no_packing() -> None:
    assert packing(Schedule(static_function(DENSE, {"T": 2}))) is None


def test_what_is_kept_is_not_searched_again_and_an_interrupted_round_counts(tmp_path: Path) -> None:
    rows = sw.ShapeVar("T", range(1, 9))
    task = SearchTask(DENSE, shape_vars=(rows,), instances=[5], target=native())
    root = tmp_path / DENSE.key / f"{native().fingerprint}-1"
    folder = saved(DENSE, {"T": 5}, root)
    (folder / metaschedule.STATE).write_text(json.dumps({"trials": 8, "elapsed_s": 2.0, "search_s": 1e-6}))
    (folder / metaschedule.CURVE).write_text(json.dumps({"elapsed_s": 1.0, "latencies_s": [1e-6, 2e-6]}) + "\n")
    before = (folder / metaschedule.MODULE).stat().st_mtime_ns
    told: list[str] = []
    assert metaschedule.tune_shapes(task, [{"T": 5}], metaschedule.Budget(10), tmp_path, told.append) == root
    assert (folder / metaschedule.MODULE).stat().st_mtime_ns == before
    assert "10 trials, 3 s, 1.0 us" in told[0]


@pytest.mark.parametrize(
    ("op", "epilogue", "reason"), [("dense", ["relu"], "epilogue"), ("softmax", [], "first stage")]
)
def test_what_is_no_plain_product_is_refused(op: str, epilogue: list[str], reason: str, tmp_path: Path) -> None:
    rows = sw.ShapeVar("T", range(1, 9))
    sizes = {"m": rows, "n": 8} | ({"k": 8} if op == "dense" else {})
    task = SearchTask(op, sizes, (rows,), target=native(), epilogue=epilogue)
    with pytest.raises(DoesNotApply, match=reason):
        metaschedule.tune_shapes(task, [{"T": 5}], metaschedule.Budget(1), tmp_path, print)
