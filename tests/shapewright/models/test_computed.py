"""Weights that are computed from constants: where an element stands before it is reshaped, and what is not followed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapewright.models.computed import _reshaped, computed
from shapewright.models.graph import CannotLift, Graph, Node
from tuner.program.language.dims import DimExpr

N, K = DimExpr.var("n"), DimExpr.var("k")
SIZES = st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3)


def dims(*sizes: int) -> tuple[DimExpr, ...]:
    return tuple(map(DimExpr.of, sizes))


@given(SIZES, SIZES, st.data())
def test_an_element_is_found_before_it_was_reshaped(rows: list[int], columns: list[int], data: Any) -> None:
    """Through any parting of rows and columns, and back."""
    inner = [*data.draw(st.permutations(rows)), *data.draw(st.permutations(columns))]
    whole, inner_shape = (math.prod(rows), math.prod(columns)), dims(*inner)
    at: Any = {"n": np.arange(whole[0])[:, None], "k": np.arange(whole[1])[None]}
    there = _reshaped((N, K), dims(*whole), inner_shape)
    found = [np.broadcast_to(each.evaluate(at), whole) for each in there]
    assert (np.ravel_multi_index(found, inner) == np.arange(math.prod(whole)).reshape(whole)).all()
    back = _reshaped(there, inner_shape, dims(*whole))
    assert [
        (np.broadcast_to(each.evaluate(at), whole) == at[name]).all() for each, name in zip(back, "nk", strict=True)
    ]


def test_parts_of_an_index_are_put_together_again() -> None:
    parted = _reshaped((N, K), dims(6, 64), dims(6, 4, 16))
    assert list(map(str, parted)) == ["n", "k//16", "k%16"]
    assert _reshaped(parted, dims(6, 4, 16), dims(6, 64)) == (N, K)
    assert list(map(str, _reshaped(parted, dims(6, 4, 16), dims(6, 32, 2)))) == ["n", "k//2", "k%2"]


def graph_of(*nodes: Node) -> Graph:
    return Graph({node.name: node for node in nodes}, ())


PACKED = Node("w", "constant", (), {}, dims(8, 16), "uint8")


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (Node("y", "relu", ("w",), {}, dims(8, 16), "uint8"), "computed by relu"),
        (Node("y", "shift_right", ("w", 9), {}, dims(8, 16), "uint8"), "shift_right of 9"),
        (Node("y", "bits_and", ("w", -1), {}, dims(8, 16), "uint8"), "bits_and of -1"),
        (Node("y", "cast", ("w",), {}, dims(8, 16), "complex64"), "complex64"),
        (Node("y", "reshape", ("w",), {}, (DimExpr.var("t"), DimExpr.of(16)), "uint8"), "dynamic"),
    ],
)
def test_what_is_not_followed_is_told(node: Node, reason: str) -> None:
    with pytest.raises(CannotLift, match=reason):
        computed(graph_of(PACKED, node), node, (N, K), "z")


def test_a_weight_of_floats_alone_is_none() -> None:
    floats = Node("w", "constant", (), {}, dims(8, 16), "float32")
    doubled = Node("y", "mul", ("w", 2.0), {}, dims(8, 16), "float32")
    with pytest.raises(CannotLift, match="not unpacked of integers"):
        computed(graph_of(floats, doubled), doubled, (N, K), "z")


def test_nodes_that_others_read_stay() -> None:
    half = Node("half", "bits_and", ("w", 15), {}, dims(8, 16), "uint8")
    real = Node("real", "cast", ("half",), {}, dims(8, 16), "float32")
    other = Node("other", "cast", ("half",), {}, dims(8, 16), "float32")
    product = Node("z", "linear", ("x", "real"), {}, dims(3, 8), "float32")
    found = computed(graph_of(PACKED, half, real, product), real, (N, K), "z")
    assert found.text == "cast(((c0[n, k] >> (0)) & 15), float32)"
    assert found.dtypes == {"c0": "uint8"}
    assert list(found.inner()) == ["half", "real"]
    for reader, left in ((other, ["real"]), (replace(product, name="second"), [])):
        graph = graph_of(PACKED, half, real, product, reader)
        assert list(computed(graph, real, (N, K), "z").inner()) == left


def test_a_weight_that_reads_itself_over_and_over_is_left() -> None:
    nodes = [Node("a0", "cast", ("w",), {}, dims(8, 16), "float32")]
    nodes += [Node(f"a{at}", "add", (f"a{at - 1}",) * 2, {}, dims(8, 16), "float32") for at in range(1, 60)]
    with pytest.raises(CannotLift, match="more than 256 operations"):
        computed(graph_of(PACKED, *nodes), nodes[-1], (N, K), "z")
