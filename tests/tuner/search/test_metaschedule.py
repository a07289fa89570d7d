"""Traces of MetaSchedule become kernels of ours that a search tries first, and nothing more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.earlier import DATA
from tests.searching import make_quick
from tuner.errors import InvalidInput
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar
from tuner.program.target import Target
from tuner.schedule import space_of
from tuner.search.cost_model import PairCostModel
from tuner.search.metaschedule import hints_of
from tuner.search.reuse import HINT, MAX_HINTS, Reuse, shared_knowledge

TRACES = DATA / "metaschedule" / "database_tuning_record.json"
T = ShapeVar("T", range(1, 17))
TARGET = Target.from_json({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1})


def dense(n: int = 96, k: int = 128, target: Target = TARGET) -> SearchTask:
    return SearchTask("dense", {"m": 16 * T, "n": n, "k": k}, (T,), instances=[1, 5, 16], target=target)


def changed(tmp_path: Path, tiles: dict[int, list[int]], seconds: float = 1e-4) -> Path:
    """The first record with other decisions, by the index of their instruction."""
    workload, ((instructions, decisions), _, *rest) = json.loads(TRACES.read_text().splitlines()[0])
    taken = [[index, tiles.get(index, decision)] for index, decision in decisions]
    file = tmp_path / TRACES.name
    with file.open("a") as out:
        out.write(json.dumps([workload, [[instructions, taken], [seconds], *rest]]) + "\n")
    return file


def test_tiles_of_a_trace_become_axes_of_a_kernel() -> None:
    """m is tiled [4, 4, 4, 1], n [1, 2, 2, 24] and k [8, 16]; a vector has 8 floats."""
    inner, outer = (each.record.result for each in hints_of(TRACES, [dense()]))

    assert [inner.kernel[axis] for axis in ("mr", "nv", "mb")] == [1, 3, 4]
    assert [outer.kernel[axis] for axis in ("mr", "mb")] == [4, 1]
    assert outer.kernel["nv"] <= 6 and outer.kernel["nv"] > 1
    assert {dict(each.instance.values)["m"] for each in (inner, outer)} == {64}
    for kernel in (inner.kernel, outer.kernel):
        assert space_of(dense()).space_of(kernel).legal(dict(kernel.values)) == kernel


def test_records_of_other_shapes_and_programs_hint_at_nothing() -> None:
    matmul = SearchTask("matmul", {"m": T, "n": 96, "k": 128}, (T,), target=TARGET)
    softmax = SearchTask("softmax", {"m": T, "n": 96}, (T,), target=TARGET)
    assert list(hints_of(TRACES, [dense(n=64), dense(k=96), matmul, softmax])) == []


def test_the_fastest_come_first_and_wide_tiles_are_cut_to_the_registers(tmp_path: Path) -> None:
    changed(tmp_path, {4: [1, 1, 1, 64], 6: [1, 1, 1, 96], 8: [1, 128]}, 2e-4)
    file = changed(tmp_path, {4: [8, 2, 1, 4], 6: [6, 1, 1, 16], 8: [1, 128]}, 1e-4)

    kernels = [each.record.result.kernel for each in hints_of(file, [dense()])]

    assert [kernels[0][axis] for axis in ("mr", "nv", "kc")] == [4, 2, 0]
    assert all(kernel["mr"] * kernel["nv"] < 16 or kernel["nv"] == 1 for kernel in kernels)


def test_a_search_tries_them_first_and_believes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_quick(monkeypatch)
    task = dense()
    for rows in (1, 2, 4, 8, 16):
        for columns in (8, 16, 32):
            file = changed(tmp_path, {4: [64 // rows, 1, 1, rows], 6: [96 // columns, 1, 1, columns]}, 1e-9)
    knowledge = shared_knowledge(hints_of(file, [task]), task)
    assert {each.protocol for each in knowledge.records} == {HINT}

    reuse = Reuse(task, space_of(task), knowledge)
    picks = reuse.picks(PairCostModel(task, 0, reuse.warm))

    assert (len(picks), reuse.warm, reuse.facts, reuse.timed) == (MAX_HINTS, (), None, frozenset())
    assert {tuple(indices) for _, indices in picks} == {(1,)}, "m = 64 is nearest to T = 5"


@pytest.mark.parametrize(
    "line", ["[]", "{}", "no JSON", "[0, [[[], [[0, 1]]], [1e-3], {}, []]]", "[0, [[], [], {}, 7]]"]
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / TRACES.name
    file.write_text(TRACES.read_text() + line + "\n")
    with pytest.raises(InvalidInput, match=r"database_tuning_record.json:4: is no record"):
        list(hints_of(file, [dense()]))
