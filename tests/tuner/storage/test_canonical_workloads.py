"""The frozen canonical form of revision 0005 against today's: the same key, label and symbols."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from migrations.canonical_workloads import EPILOGUES, OPERATORS, OldWorkload, evaluated, parsed
from tuner.program.job.build import make_workload, workload_from_json
from tuner.program.language.dims import DimExpr
from tuner.program.language.workload import format_shape

EXTENTS = st.integers(1, 4096) | st.sampled_from(
    ["T", "16*T", "8*S", "T+S", "(T+1)//2", "S//2*3+1", "T%5", "200-T", "T*S"]
)


@st.composite
def stored(draw: st.DrawFn) -> dict[str, object]:
    """A workload as the release before stored it."""
    op = draw(st.sampled_from(sorted(OPERATORS)))
    args = {axis: draw(EXTENTS) for axis in OPERATORS[op][0]}
    dims = {axis: DimExpr.of(value) for axis, value in args.items()}
    normal = {axis: dim.constant if dim.constant is not None else str(dim) for axis, dim in dims.items()}
    epilogue = draw(st.lists(st.sampled_from(sorted(EPILOGUES)), max_size=4, unique=True))
    return {"op": op, "args": normal, "dtype": "float32", "epilogue": epilogue}


@given(stored(), st.integers(1, 128), st.integers(1, 128))
def test_the_frozen_form_is_todays(data: dict[str, object], t: int, s: int) -> None:
    old, now = OldWorkload.of(data), workload_from_json(data)

    assert (old.canonical, old.key, old.label) == (now.canonical, now.key, now.label)
    assert workload_from_json(old.canonical).key == now.key
    shape = {"T": t, "S": s}
    assert old.instance(shape) == format_shape(now.dims(shape))
    assert parsed(old.instance(shape)) == now.dims(shape)


def test_each_operator_and_epilogue_of_that_release_has_its_key() -> None:
    for op, (axes, _) in OPERATORS.items():
        args = {axis: "T" if axis == "m" else 8 for axis in axes}
        for epilogue in ([], *([name] for name in EPILOGUES), list(EPILOGUES)):
            data = {"op": op, "args": args, "dtype": "float32", "epilogue": epilogue}
            assert OldWorkload.of(data).key == make_workload(op, args, "float32", epilogue).key


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"op": "conv2d", "args": {}},
        {"op": "dense", "args": {"m": 1}},
        {"op": "dense", "args": {"m": 1, "n": 1, "k": 1}, "epilogue": ["swish"]},
    ],
)
def test_what_no_release_stored_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="is not a workload that a release"):
        OldWorkload.of(data)


@pytest.mark.parametrize("text", ["__import__('os')", "T**2", "-T", "T/2", "T if T else 1", "'a'"])
def test_an_extent_is_arithmetic_alone(text: str) -> None:
    with pytest.raises(ValueError, match="is not an extent"):
        evaluated(text, {"T": 3})
