"""Programs: calls in the order of the text, outputs, and canonical names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from tests.tuner.program_strategies import PROGRAMS
from tuner.errors import InvalidInput
from tuner.program.language.program import MAX_TENSORS, Program

SOFTMAX = "top[m] = max(n) x[m, n]; e[m, n] = exp(x[m, n] - top[m]); z[m] = sum(n) e[m, n]; out[m, n] = e[m, n] / z[m]"
MOE = "out[t, n] = sum(k) x[t, k] * w[expert[t], n, k]"


def test_a_program_tells_its_parts_in_the_order_of_the_text() -> None:
    softmax = Program.parse(SOFTMAX)
    assert softmax.axes == ("m", "n")
    assert softmax.inputs == ("x",)
    assert softmax.outputs == ("out",)
    assert softmax.intermediates == ("top", "e", "z")
    assert softmax.tensors == ("top", "x", "e", "z", "out")
    moe = Program.parse(MOE)
    assert moe.inputs == ("x", "w", "expert")
    assert moe.index_tensors == {"expert"}
    assert (moe.rank("w"), moe.rank("out")) == (3, 2)
    assert Program.parse("out[m] = x[m] / extent(total)").sizes == ("total",)


def test_axes_and_tensors_have_namespaces_of_their_own() -> None:
    program = Program.parse("m[m, n] = n[m] * n[n] + m")
    assert program.tensors == ("m", "n")
    assert program.axes == ("m", "n")


def test_outputs_are_the_stages_that_nobody_reads_unless_they_are_given() -> None:
    text = "a[m] = x[m]; b[m] = a[m] + 1; c[m] = a[m] * 2"
    assert Program.parse(text).outputs == ("b", "c")
    assert Program.parse(text, ["c", "a", "b"]).outputs == ("a", "b", "c")
    assert Program.parse(text, ("b", "c")).intermediates == ("a",)


@pytest.mark.parametrize(
    ("outputs", "problem"),
    [
        ([], "[] is not a list of stages"),
        ("b", "'b' is not a list of stages"),
        (3, "3 is not a list of stages"),
        ({"b": 1}, "is not a list of stages"),
        ([1], "[1] is not a list of stages"),
        (["x"], "'x' is not a stage"),
        (["d" * 5000], "is not a stage"),
        (["b"], "c is neither read nor an output"),
    ],
)
def test_wrong_outputs_are_refused(outputs: Any, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Program.parse("a[m] = x[m]; b[m] = a[m] + 1; c[m] = a[m] * 2", outputs)
    assert caught.value.field == "outputs"
    assert problem in caught.value.problem
    assert len(str(caught.value)) < 200


@given(PROGRAMS)
def test_renaming_keeps_the_canonical_program(data: dict[str, Any]) -> None:
    program = Program.parse(data["program"])
    axes = {name: f"ax_{name}" for name in program.axes}
    tensors = {name: f"tensor_{99 - n}" for n, name in enumerate(program.tensors)}
    other = Program.parse(str(program.renamed(axes, tensors)))
    canonical = program.renamed(*program.canonical_names())
    assert other.renamed(*other.canonical_names()) == canonical
    assert canonical.renamed(*canonical.canonical_names()) == canonical
    assert Program.parse(str(canonical)) == canonical


def test_canonical_names_follow_the_first_use() -> None:
    program = Program.parse("y[b, q] = sum(i, j) u[b, i] * w[q, i + 0, j] * v[b, j] / extent(total)")
    assert str(program.renamed(*program.canonical_names())) == (
        "t0[m, n] = sum(k, a3) t1[m, k] * t2[n, k, a3] * t3[m, a3] / extent(a4)"
    )


def test_sizes_that_are_no_axis_keep_their_order() -> None:
    program = Program.parse("out[m] = x[m - extent(p) + extent(q)]")
    canonical = program.renamed(*program.canonical_names())
    assert canonical.renamed(*canonical.canonical_names()) == canonical


def test_tensors_are_counted() -> None:
    reads = " + ".join(f"x{n}[m]" for n in range(MAX_TENSORS - 1))
    assert len(Program.parse(f"out[m] = {reads}").tensors) == MAX_TENSORS
    with pytest.raises(InvalidInput, match=f"{MAX_TENSORS + 1} tensors"):
        Program.parse(f"out[m] = {reads} + more[m]")


def test_errors_of_a_renamed_program_point_into_its_own_text() -> None:
    program = Program.parse("out[m] = x[m]  +   y[m]").renamed({"m": "row"}, {})
    again = Program.of(program.stages)
    read = again.reads[1]
    with pytest.raises(InvalidInput, match="column 21"):
        again.refuse(read, "is wrong", "")
    assert again.text[read.at :] == "y[row]"
