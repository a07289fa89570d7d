"""Contractions of any form, drawn: several axes in a role, in any order, windows with padding, stages behind."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tuner.program.job.build import workload_from_json
from tuner.program.language.workload import Workload

SIZES = (1, 2, 3, 5, 7, 16, 17, 21)


@st.composite
def contractions(draw: st.DrawFn, dtypes: tuple[str, str] = ("float32", "float32")) -> Workload:
    """A workload over T at most: ``out[...] = sum(...) x[...] * y[...]``, each tensor in an order of its own; of these
    dtypes of x and y."""
    groups = {role: draw(_axes(role, least)) for role, least in (("b", 0), ("m", 1), ("n", 1), ("k", 1))}
    b, m, n, k = groups.values()
    extents: dict[str, Any] = {axis: draw(st.sampled_from(SIZES)) for group in groups.values() for axis in group}
    if draw(st.booleans()):
        extents[draw(st.sampled_from(sorted(extents)))] = "T"
    out = draw(st.permutations([*b, *m, *n]))
    window = (draw(st.sampled_from(m)), draw(st.sampled_from(k))) if draw(st.booleans()) else None
    left, shape, padded = _left(draw, [*b, *m, *k], window, extents)
    right = draw(st.permutations([*b, *n, *k]))
    text = f"z[{', '.join(out)}] = sum({', '.join(k)}) {_factors(draw, left, right)}"
    if draw(st.booleans()):
        bias = draw(st.lists(st.sampled_from(out), unique=True, min_size=1))
        text += f"\nout[{', '.join(out)}] = max(z[{', '.join(out)}] + bias[{', '.join(bias)}], 0)"
    constant = draw(st.lists(st.sampled_from(["y"]), max_size=1)) if "T" not in [extents[a] for a in right] else []
    document = {"program": text, "extents": extents, "constant": constant, "shapes": {"x": shape} if padded else {}}
    document["dtype"] = dict(zip("xy", dtypes, strict=True))
    if "int8" in dtypes[0]:
        padded = 7.0 if padded else 0.0
    return workload_from_json(document | ({"padded": {"x": padded}} if padded else {}))


def _axes(role: str, least: int) -> st.SearchStrategy[list[str]]:
    return st.integers(least, 2).map(lambda count: [f"{role}{number}" for number in range(count)])


def _factors(draw: st.DrawFn, left: str, right: list[str]) -> str:
    """The product of both operands, in either order."""
    factors = [left, f"y[{', '.join(right)}]"]
    return " * ".join(draw(st.permutations(factors)))


def _left(
    draw: st.DrawFn, axes: list[str], window: tuple[str, str] | None, extents: dict[str, Any]
) -> tuple[str, list[Any], float]:
    """The read of the left operand, its shape, and what it is padded with, if it is."""
    if window is None:
        order = draw(st.permutations(axes))
        return f"x[{', '.join(order)}]", [], 0.0
    (p, r), stride, dilation = window, draw(st.integers(1, 5)), draw(st.integers(1, 2))
    pad = draw(st.integers(0, 2))
    order = draw(st.permutations([axis for axis in axes if axis not in window] + ["window"]))
    index = f"{stride}*{p} + {dilation}*{r}" + (f" - {pad}" if pad else "")
    size = f"{stride}*{extents[p]} + {dilation}*{extents[r]} + 1"
    shape = [size if axis == "window" else extents[axis] for axis in order]
    return f"x[{', '.join(index if axis == 'window' else axis for axis in order)}]", shape, 0.5 if pad else 0.0
