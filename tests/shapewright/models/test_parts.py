"""Where elements of a part lie in what it is taken of, as NumPy has it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shapewright.models.graph import Graph, Node
from shapewright.models.parts import Index, part, places
from tuner.program.language.dims import DimExpr

SIZES = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)


def graph_of(shape: tuple[int, ...], steps: list[tuple[str, Any]]) -> tuple[Graph, list[np.ndarray[Any, Any]]]:
    """A chain of views of a range, each node called by its place, and their values."""
    values = [np.arange(math.prod(shape)).reshape(shape)]
    nodes = [Node("0", "input", (), {}, tuple(map(DimExpr.of, shape)))]
    for op, given_ in steps:
        value, attrs = values[-1], dict[str, Any]()
        if op == "reshape":
            value = value.reshape(given_)
        elif op == "permute":
            value, attrs = value.transpose(given_), {"order": tuple(given_)}
        elif op == "part":
            axis, start, size = given_
            keep = size > 0
            value = value.take(range(start, start + size), axis) if keep else value.take(start, axis)
            attrs = dict(part(axis, start, keep))
        values.append(value)
        nodes.append(Node(str(len(nodes)), op, (nodes[-1].name,), attrs, tuple(map(DimExpr.of, value.shape))))
    return Graph({node.name: node for node in nodes}, (nodes[-1].name,)), values


def read_at(value: np.ndarray[Any, Any], indices: tuple[Index, ...], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The elements of ``value`` at ``indices``, for each element of a value of ``shape``."""
    grids, found = np.indices(shape), []
    for index in indices:
        found.append(np.full(shape, index.constant))
        for axis, factor in index.factors.items():
            found[-1] += factor * grids[axis]
    taken: np.ndarray[Any, Any] = value[tuple(found)]
    return taken


@st.composite
def chains(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[str, Any]]]:
    """A shape, and views of it one after the other."""
    first = tuple(draw(SIZES))
    shape, steps = list(first), list[tuple[str, Any]]()
    for op in draw(st.lists(st.sampled_from(["reshape", "permute", "part", "identity"]), max_size=6)):
        if op == "reshape":
            total, shape = math.prod(shape), []
            while total > 1 and len(shape) < 3:
                shape.append(draw(st.sampled_from([each for each in range(1, total + 1) if total % each == 0])))
                total //= shape[-1]
            shape.append(total)
            steps.append((op, tuple(shape)))
        elif op == "permute":
            order = draw(st.permutations(range(len(shape))))
            shape = [shape[axis] for axis in order]
            steps.append((op, tuple(order)))
        elif op == "part" and shape:
            axis = draw(st.integers(0, len(shape) - 1))
            start = draw(st.integers(0, shape[axis] - 1))
            size = draw(st.integers(0, shape[axis] - start))
            steps.append((op, (axis, start, size)))
            shape[axis : axis + 1] = [size] if size else []
        elif op == "identity":
            steps.append((op, None))
    return first, steps


@given(chains())
def test_elements_are_where_numpy_has_them(case: tuple[tuple[int, ...], list[tuple[str, Any]]]) -> None:
    graph, values = graph_of(*case)
    last = str(len(values) - 1)
    for place in places(graph, graph[last]):
        found = read_at(values[int(place.node.name)], place.indices, values[-1].shape)
        np.testing.assert_array_equal(found, values[-1])


def test_what_is_no_part_has_no_place() -> None:
    graph, _ = graph_of((2, 3, 8), [("reshape", (2, 3, 2, 4)), ("permute", (0, 2, 1, 3))])
    assert places(graph, graph["2"]) == []


def test_heads_of_one_product_are_found_in_it() -> None:
    steps = [("part", (2, 8, 8)), ("reshape", (2, 3, 2, 4)), ("permute", (0, 2, 1, 3))]
    graph, _ = graph_of((2, 3, 24), steps)
    (place,) = places(graph, graph["3"])
    assert place.node.name == "0"
    assert place.indices == (Index({0: 1}), Index({2: 1}), Index({1: 4, 3: 1}, 8))


def test_the_first_of_several_values_is_in_front() -> None:
    steps = [("reshape", (2, 3, 3, 8)), ("permute", (2, 0, 1, 3)), ("part", (0, 1, 0)), ("identity", None)]
    graph, _ = graph_of((2, 3, 24), steps)
    assert [place.node.name for place in places(graph, graph["4"])] == ["0", "1", "2"]


def test_a_part_of_unknown_size_or_place_is_left_where_it_is() -> None:
    b, length = DimExpr.var("b"), DimExpr.var("length")
    for whole, taken, attrs in (
        (DimExpr.of(64), length, part(1, 0)),
        (length, DimExpr.of(4), part(1, 0)),
        (DimExpr.of(64), DimExpr.of(4), {}),
    ):
        nodes = [Node("cache", "input", (), {}, (b, whole)), Node("seen", "part", ("cache",), attrs, (b, taken))]
        graph = Graph({node.name: node for node in nodes}, ("seen",))
        assert places(graph, graph["seen"]) == []


def test_sizes_may_be_symbols_where_they_stay_whole() -> None:
    b, s = DimExpr.var("b"), DimExpr.var("s")
    of = DimExpr.of
    nodes = [
        Node("rows", "input", (), {}, (b * s, of(24))),
        Node("whole", "reshape", ("rows",), {}, (b, s, of(24))),
        Node("keys", "part", ("whole",), part(2, 8), (b, s, of(8))),
        Node("joined", "reshape", ("keys",), {}, (b, s * 2, of(4))),
    ]
    graph = Graph({node.name: node for node in nodes}, ("joined",))
    assert [place.node.name for place in places(graph, graph["keys"])] == ["whole"]
    assert places(graph, graph["joined"]) == [], "an index by halves of s * 2 is no sum"
