"""What the rule for row reductions takes, and the passes that it finds."""

from __future__ import annotations

import pytest

from tests.tuner.schedule.rules.rows.programs import LOG_SOFTMAX, SOFTMAX, operator, task_of, workload
from tuner.program.language.workload import Workload
from tuner.schedule import NoMatch, rules_of
from tuner.schedule.rule import matched
from tuner.schedule.rules.rows.passes import RowProgram, match


def row_program_of(which: Workload) -> RowProgram:
    return matched(which, match(which))


def _passes(which: Workload) -> list[tuple[set[str], set[str]]]:
    """By pass what is reduced and what is written."""
    passes = row_program_of(which).passes
    return [({stage.tensor for stage in each.reductions}, {stage.tensor for stage in each.written}) for each in passes]


def test_softmax_takes_three_passes_and_keeps_exponentials_in_the_output() -> None:
    which = workload(SOFTMAX)
    assert _passes(which) == [({"top"}, set()), ({"z"}, {"e"}), (set(), {"out"})]
    assert row_program_of(which).homes == {"e": "out", "out": "out"}


def test_exponentials_of_another_dtype_than_the_output_are_kept_in_a_workspace() -> None:
    which = workload(SOFTMAX, dtype={"out": "float16"})
    assert row_program_of(which).homes["e"] is None
    rule = rules_of(task_of(which))[0]
    assert rule.workspace_bytes(task_of(which, threads=2)) == 2 * 8 * 64 * 4
    assert rule.workspace_bytes(task_of(workload(SOFTMAX))) == 0


def test_exponentials_that_one_pass_needs_are_not_kept() -> None:
    assert "e" not in row_program_of(workload(LOG_SOFTMAX)).homes


def test_an_output_that_is_read_later_is_read_and_not_computed_again() -> None:
    text = "h[m, n] = x[m, n] + r[m, n]\ns[m] = sum(n) h[m, n]\nout[m, n] = h[m, n] * s[m]"
    program = row_program_of(workload(text, outputs=["h", "out"]))
    assert [[stage.tensor for stage in each.evaluated] for each in program.passes] == [["h", "s"], ["out"]]


def test_independent_reductions_share_a_pass() -> None:
    which = workload("a[m] = max(n) x[m, n]\nb[m] = sum(n) x[m, n]\nout[m] = a[m] - b[m]", outputs=["a", "out"])
    assert _passes(which) == [({"a", "b"}, set())]


def test_layer_norm_takes_three_passes_and_keeps_nothing() -> None:
    which = operator("layer_norm", m="T", n=768)
    assert [len(reduced) for reduced, _ in _passes(which)] == [1, 1, 0]
    assert set(row_program_of(which).homes) == {"out"}


def test_divisions_by_what_is_the_same_along_a_row_are_made_once_for_the_row() -> None:
    text = workload(SOFTMAX)
    along = [stage for each in row_program_of(text).passes for stage in each.evaluated]
    assert not any("/" in str(stage.body) for stage in along)


@pytest.mark.parametrize(
    ("axes", "rows", "columns"),
    [
        ("x[b, h, n]", ("b.h",), ("n",)),
        ("x[h, b, n]", ("b", "h"), ("n",)),
        ("x[b, h, n] * s[b]", ("b", "h"), ("n",)),
        ("x[b, h, n] * s[b, h] * g[n]", ("b.h",), ("n",)),
        ("x[b, h, n] * h", ("b", "h"), ("n",)),
        ("x[b, ids[h], n]", ("b", "h"), ("n",)),
    ],
)
def test_axes_that_lie_behind_one_another_everywhere_are_walked_as_one(
    axes: str, rows: tuple[str, ...], columns: tuple[str, ...]
) -> None:
    extents = {"b": "T", "h": 3, "n": 5}
    which = workload(f"out[b, h] = sum(n) {axes}", extents=extents, shapes={"x": [9, 3, 5]} if "ids" in axes else {})
    frame = row_program_of(which).frame
    assert (frame.rows, frame.columns) == (rows, columns)


def test_several_columns_are_walked_as_one_where_all_tensors_have_them_whole() -> None:
    extents = {"m": "T", "h": 3, "w": 5}
    whole = row_program_of(workload("out[m] = sum(h, w) x[m, h, w]", extents=extents))
    assert whole.frame.columns == ("h.w",)
    partly = row_program_of(workload("out[m] = sum(h, w) x[m, h, w] * s[h]", extents=extents))
    assert partly.frame.columns == ("h", "w")
    larger = row_program_of(workload("out[m] = sum(h, w) x[m, h, w]", extents=extents, shapes={"x": ["T", 3, 7]}))
    assert larger.frame.columns == ("h", "w")


def test_stages_may_name_axes_differently() -> None:
    text = "top[a] = max(b) x[a, b]\nout[m, n] = x[m, n] - top[m]"
    which = workload(text, extents={"a": "T", "b": "S", "m": "T", "n": "S"})
    assert [stage.axes for stage in row_program_of(which).frame.stages] == [("a",), ("a", "b")]


def test_stages_that_prepare_an_input_are_put_into_their_readers() -> None:
    which = workload("g[n] = w[n] + 1\ns[m] = sum(n) x[m, n] * g[n]")
    assert [stage.tensor for stage in row_program_of(which).frame.stages] == ["s"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("out[m, n] = x[m, n] * 2", "no stage is a reduction"),
        ("out[n] = sum(m) x[m, n]", "does not lie along the rows"),
        ("out[m, k] = sum(n) x[m, n] * y[k, n]", "a contraction"),
        ("out[m] = sum(n) x[m, 2 * n]", "otherwise than element by element"),
        ("out[m] = sum(n) x[m + n]", "otherwise than element by element"),
        ("out[m] = sum(n) x[m, ids[n]]", "otherwise than element by element"),
        ("s[m] = sum(n) x[m, n]\nout[m, n] = x[m, n] * s[0]", "at another row"),
        ("s[m] = sum(n) x[m, n]\nout[k, m, n] = y[k, m, n] * s[m]", "neither over the rows"),
        ("s[m] = sum(n) x[m, n]\nout[n, m] = x[m, n] * s[m]", "other extents"),
        ("s[m] = sum(k) k\nout[m] = x[m] * s[m]", "no tensor that stage s reads"),
    ],
)
def test_others_are_refused_with_the_reason(text: str, reason: str) -> None:
    shapes = {"x": [9, 9]} if "2 *" in text else {"x": ["T", 9]} if "ids" in text else {}
    extents = {"m": "T", "n": 4 if "2 *" in text else "S", "k": 3}
    used = {name: size for name, size in extents.items() if name in text}
    answer = match(workload(text, extents=used, shapes=shapes))
    assert isinstance(answer, NoMatch)
    assert reason in answer.reason


@pytest.mark.parametrize("name", ["dense", "matmul", "batch_matmul_nt", "bilinear", "conv2d", "max_pool2d"])
def test_operators_that_use_elements_again_are_left_to_others(name: str) -> None:
    args = {
        "dense": {"m": "T", "n": 8, "k": 8}, "matmul": {"m": "T", "n": 8, "k": 8},
        "batch_matmul_nt": {"b": "T", "m": 8, "n": 8, "k": 8}, "bilinear": {"b": "T", "o": 4, "i": 5, "j": 6},
        "conv2d": {"b": "T", "c": 4, "h": 9, "w": 9, "o": 4, "r": 3, "s": 3},
        "max_pool2d": {"b": "T", "c": 4, "h": 9, "w": 9, "r": 3, "s": 3},
    }  # fmt: skip
    assert isinstance(match(operator(name, **args[name])), NoMatch)
