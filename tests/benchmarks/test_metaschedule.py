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
from benchmarks.harness.calls import DoesNotApply
from benchmarks.rivals import metaschedule
from benchmarks.rivals.metaschedule_worker import LAYOUT_REWRITE, packing
from benchmarks.rivals.static_function import static_function
from tuner.program.job.build import make_workload
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Workload
from tuner.program.target import native

DENSE = make_workload("dense", {"m": "4*T", "n": 64, "k": 48})


def saved(workload: Workload, shape: dict[str, int], root: Path) -> Path:
    """As if MetaSchedule had found the schedule that changes nothing."""
    folder = root / f"T={shape['T']}"
    folder.mkdir(parents=True)
    executable = tvm.compile(static_function(workload, shape), target=tvm.target.Target({"kind": "llvm"}))
    executable.export_library(str(folder / metaschedule.MODULE))
    return folder


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


def test_what_is_kept_is_not_searched_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = sw.ShapeVar("T", range(1, 9))
    task = SearchTask(DENSE, shape_vars=(rows,), instances=[5], target=native())
    root = tmp_path / DENSE.key / f"{native().fingerprint}-1"
    folder = saved(DENSE, {"T": 5}, root)
    (folder / metaschedule.STATE).write_text(json.dumps({"elapsed_s": 3.0}))
    (folder / metaschedule.RECORDS).write_text(json.dumps([0, [[], [1e-6], {}, []]]) + "\n")
    before = (folder / metaschedule.MODULE).stat().st_mtime_ns
    assert metaschedule.tune_shapes(task, [{"T": 5}], 1, tmp_path) == root
    assert (folder / metaschedule.MODULE).stat().st_mtime_ns == before
    assert "1 trials, 3 s, 1.0 us" in capsys.readouterr().err
    once = {"trials": 1, "elapsed_s": 3.0}
    assert metaschedule.spent(root) == {**once, "shapes": {"T=5": once}}


def test_a_shape_that_no_schedule_was_found_for_says_so(tmp_path: Path) -> None:
    (tmp_path / "T=5").mkdir()
    with pytest.raises(DoesNotApply, match=r"found no schedule: see .*log\.txt"):
        metaschedule.prepare(DENSE, tmp_path)({"T": 5})


def test_what_failed_is_no_latency(tmp_path: Path) -> None:
    records = [[0, [[], [1e10], {}, []]], [0, [[], [3e-6, 2e-6, 4e-6], {}, []]]]
    (tmp_path / metaschedule.RECORDS).write_text("".join(json.dumps(record) + "\n" for record in records[:1]))
    assert metaschedule._best_s(tmp_path) is None
    (tmp_path / metaschedule.RECORDS).write_text("".join(json.dumps(record) + "\n" for record in records))
    assert metaschedule._best_s(tmp_path) == 3e-6
