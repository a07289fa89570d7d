"""Small graphs of random operations: every program that is lifted of them computes what PyTorch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shapewright.models.fx import lift
from shapewright.models.lifted import Lifting
from tests.shapewright.models.checking import TARGET, Formula, compare, exported

SIZES = (1, 2, 3, 16, 32)
"""Few, so that shapes meet; sizes of 1 are broadcast, and the larger ones have rules of their own."""
UNARY: dict[str, Callable[[Any], Any]] = {
    "relu": torch.relu, "tanh": torch.tanh, "exp": lambda x: torch.exp(-x.abs()), "sigmoid": torch.sigmoid,
    "neg": torch.neg, "abs": torch.abs, "square": torch.square, "double": lambda x: x * 2.0, "less": lambda x: 1.5 - x,
    "half": lambda x: x / 2, "silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
}  # fmt: skip
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "maximum": torch.maximum, "minimum": torch.minimum,
    "div": lambda x, y: x / (y.abs() + 1.0),
}  # fmt: skip
REDUCTIONS: dict[str, Callable[..., Any]] = {"sum": torch.sum, "mean": torch.mean, "amax": torch.amax}
Step = tuple[Any, ...]


class Drawn:
    """A graph while it is drawn: what each step reads, by number, and the shapes that come of it."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.shapes: list[tuple[int, ...]] = []
        self.steps: list[Step] = []

    def some(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def value(self) -> int:
        """A value, the later ones first, as chains have it."""
        return len(self.shapes) - 1 - min(self.draw(st.integers(0, 3)), len(self.shapes) - 1)

    def put(self, step: Step) -> None:
        with torch.no_grad():
            zeros = [torch.zeros(shape) for shape in self.shapes]
            try:
                shape = tuple(run_step(step, zeros).shape)
            except (RuntimeError, IndexError):
                return
        if torch.Size(shape).numel() <= 1 << 14:
            self.steps.append(step)
            self.shapes.append(shape)

    def step(self) -> None:
        kind, at = self.some(("unary", "unary", "binary", "binary", "reduce", "view", "rows", "product")), self.value()
        shape = self.shapes[at]
        rank = len(shape)
        if kind == "unary":
            self.put(("unary", self.some(UNARY), at))
        elif kind == "binary":
            self.put(("binary", self.some(BINARY), *self.some(((at, self.value()), (self.value(), at)))))
        elif kind == "reduce":
            axes = self.draw(st.sets(st.integers(0, rank - 1), min_size=1)) if rank else ()
            self.put(("reduce", self.some(REDUCTIONS), at, tuple(sorted(axes)), self.draw(st.booleans())))
        elif kind == "view":
            self.view(at, shape)
        elif kind == "rows" and rank:
            self.put((self.some(("softmax", "layer_norm", "rms_norm")), at))
        elif kind == "product":
            self.put(("matmul", at, self.value()))

    def view(self, at: int, shape: tuple[int, ...]) -> None:
        rank = len(shape)
        kind = self.some(("permute", "flatten", "unsqueeze", "squeeze", "expand", "split"))
        if kind == "permute":
            self.put((kind, at, tuple(self.draw(st.permutations(range(rank))))))
        elif kind == "flatten" and rank > 1:
            first = self.draw(st.integers(0, rank - 2))
            self.put((kind, at, first, self.draw(st.integers(first + 1, rank - 1))))
        elif kind in ("unsqueeze", "squeeze"):
            self.put((kind, at, self.draw(st.integers(0, rank))))
        elif kind == "expand":
            self.put((kind, at, tuple(self.some((size, 2, 16)) if size == 1 else size for size in shape)))
        elif kind == "split" and rank and shape[-1] % 2 == 0:
            self.put(("reshape", at, (*shape[:-1], 2, shape[-1] // 2)))


def run_step(step: Step, values: list[Any]) -> Any:
    kind, *args = step
    match kind:
        case "unary":
            return UNARY[args[0]](values[args[1]])
        case "binary":
            return BINARY[args[0]](values[args[1]], values[args[2]])
        case "reduce":
            return REDUCTIONS[args[0]](values[args[1]], args[2], keepdim=args[3])
        case "softmax":
            return torch.softmax(values[args[0]], -1)
        case "layer_norm" | "rms_norm":
            x = values[args[0]]
            return getattr(torch.nn.functional, kind)(x, x.shape[-1:], eps=1e-2)
        case "matmul":
            return values[args[0]] @ values[args[1]] * 0.1
        case _:
            return getattr(values[args[0]], kind)(*args[1:])


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], list[Step], list[int]]:
    """Shapes of inputs, steps, and the values that are returned beside the last one."""
    drawn = Drawn(draw)
    whole = tuple(draw(st.lists(st.sampled_from(SIZES), min_size=draw(st.sampled_from((0, 1, 2, 3))), max_size=4)))
    drawn.shapes = [whole]
    for _ in range(draw(st.integers(0, 2))):
        kept = tuple(size if draw(st.booleans()) else 1 for size in whole)
        drawn.shapes.append(draw(st.sampled_from((whole, kept, kept[draw(st.integers(0, len(kept))) :]))))
    inputs = list(drawn.shapes)
    for _ in range(draw(st.integers(1, 8))):
        drawn.step()
    count = len(drawn.shapes)
    return inputs, drawn.steps, draw(st.lists(st.integers(0, count - 1), max_size=1))


def lifting_of(inputs: list[tuple[int, ...]], steps: list[Step], kept: list[int]) -> Lifting:
    """The lifting of a graph, every program of it compared with PyTorch."""

    def run(*tensors: Any) -> Any:
        values = list(tensors)
        for step in steps:
            values.append(run_step(step, values))
        return values[-1], *(values[at] for at in kept)

    generator = torch.Generator().manual_seed(5)
    tensors = [torch.rand(shape, generator=generator) * 2 - 1 for shape in inputs]
    module = exported(Formula(run), tensors, None).graph_module
    # All but the first are weights, which stay.
    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    lifting = lift(module, names[1:], target=TARGET)
    compare(module, lifting, tensors)
    return lifting


def check(graph: tuple[list[tuple[int, ...]], list[Step], list[int]]) -> None:
    lifting = lifting_of(*graph)
    defects = [one for one in lifting.left if "defect" in one.reason]
    assert not defects, defects


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(graph=graphs())
def test_random_graphs_are_lifted_right(graph: tuple[list[tuple[int, ...]], list[Step], list[int]]) -> None:
    check(graph)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(4))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(graph=graphs())
def test_many_random_graphs_are_lifted_right(
    part: int, graph: tuple[list[tuple[int, ...]], list[Step], list[int]]
) -> None:
    """In parts, for the processes of a run to share. Each run draws others, and each part."""
    check(graph)
