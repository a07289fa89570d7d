"""Dispatch tables as lookups read them say what the dispatcher says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.earlier import RELEASE, library_of
from tuner.errors import ShapewrightError
from tuner.library.dispatch_table import ServedTable, is_current
from tuner.library.dispatcher import (
    EXTENTS_FORMAT,
    Dispatcher,
    Leaf,
    Node,
    TableRow,
    bounded,
    is_within,
    kernel_json,
)
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar
from tuner.schedule import default_kernel
from tuner.schedule.space import MicroKernel

T = ShapeVar("T", range(1, 129))
TASK = SearchTask(
    "batch_matmul_nt",
    {"b": "B", "m": 2 * T, "n": 2 * T, "k": 32},
    (T, ShapeVar("B", range(1, 9))),
    target={"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2},
)
SAFE = default_kernel(TASK)
OLD = MicroKernel(SAFE.rule, SAFE.rule_version + 1, SAFE.values)


def dispatcher(rows: bool = True) -> Dispatcher:
    inner = Node("((n+6)//7)*m", 40, Node("n%7", 2, Leaf(0), Leaf(1)), Leaf(1))
    tree = bounded(Node("n", 19, Leaf(1), inner), {"m": (1, 8), "n": (2, 256)}, 0)
    points = [(t, b) for t in (1, 9, 10, 128) for b in (1, 8)] if rows else []
    table = tuple(TableRow({"T": t, "B": b}, 1 if t <= 9 else 0, 1e-6 * t * b) for t, b in points)
    return Dispatcher(TASK, (SAFE, OLD), 0, tree, table)


WHOLE = dispatcher()
TABLE = ServedTable(json.loads(json.dumps(WHOLE.to_json())))


@given(st.fixed_dictionaries({"m": st.integers(0, 12), "n": st.integers(0, 300)}))
def test_a_table_says_what_its_dispatcher_does(dims: dict[str, int]) -> None:
    assert TABLE.covers(dims) == is_within(dims, WHOLE.bounds)
    assert TABLE.kernel_at(dims) == kernel_json(WHOLE.kernels[WHOLE.index_for(dims)])
    assert TABLE.predicted_latency_s(dims) == pytest.approx(WHOLE.predicted_latency_s(dims))


def test_without_rows_nothing_is_predicted() -> None:
    assert ServedTable(dispatcher(rows=False).to_json()).predicted_latency_s({"m": 1, "n": 2}) is None


def test_kernels_of_another_rule_version_are_told() -> None:
    assert is_current(kernel_json(SAFE))
    assert not is_current(kernel_json(OLD))


@pytest.mark.parametrize("op", ["dense", "batch_matmul_nt"])
def test_tables_of_the_earlier_release_are_read(op: str, tmp_path: Path) -> None:
    folder = library_of(RELEASE, op, tmp_path)
    data = json.loads((folder / "dispatch.json").read_bytes())
    table, whole = ServedTable(data), Dispatcher.from_json(data)
    for row in whole.table:
        dims = whole.task.workload.dims(row.shape)
        assert table.covers(dims)
        assert table.kernel_at(dims) == kernel_json(whole.kernels[whole.index_for(dims)])
        assert table.predicted_latency_s(dims) == whole.predicted_latency_s(dims)


@given(st.fixed_dictionaries({"m": st.integers(0, 12), "n": st.integers(0, 300)}))
def test_a_table_of_extents_alone_is_read_as_before(dims: dict[str, int]) -> None:
    tree = bounded(Node("n", 19, Leaf(1), Leaf(0)), {"m": (1, 8), "n": (2, 256)}, 0)
    whole = Dispatcher(TASK, (SAFE, OLD), 0, tree, ())
    table = ServedTable({**whole.to_json(), "format": EXTENTS_FORMAT})
    assert table.kernel_at(dims) == kernel_json(whole.kernels[whole.index_for(dims)])


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ShapewrightError, match="format 99"):
        ServedTable({**WHOLE.to_json(), "format": 99})
