"""Batches in parts: which chains have independent rows, and that they compute the same however they are cut."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest
import torch
from torch import nn

from shapewright.torch import batches
from shapewright.torch.chain import Chain
from shapewright.torch.segments import ALL, Segment, Traffic
from tests.shapewright.torch.models import close
from tests.shapewright.torch.replacing import Replacing
from tests.shares import chosen

WIDTH, HEADS, WORDS = 16, 2, 3
in_joins = batches.Batch._in_joins


# -- which ----------------------------------------------------------------------------------------------------------
class Layers(nn.Module):  # type: ignore[misc]
    """Of [batch, words, width], with what is done to it ``between`` two layers."""

    def __init__(self, between: Any = None) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm, self.between = nn.LayerNorm(WIDTH), between
        self.mask = nn.Parameter(torch.rand(WORDS, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(torch.relu(self.first(x)))
        if self.between is not None:
            y = self.between(self, x, y)
        return self.third(self.norm(self.second(y)))


def attention(_: Layers, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    q, k = (each.view(len(each), WORDS, HEADS, -1).transpose(1, 2) for each in (x, y))
    return nn.functional.scaled_dot_product_attention(q, k, k).transpose(1, 2).reshape(x.shape)


CASES: dict[str, Any] = {
    "layers": None,
    "attention": attention,
    "a residual": lambda _, x, y: x + y,
    "the same for all": lambda model, _, y: y * model.mask,
    "joined": lambda model, x, y: torch.cat([x, y], 1)[:, :WORDS],
}
WHOLE: dict[str, Any] = {
    "their number is another size": lambda _, x, y: (x @ y.transpose(1, 2)).mean(0) @ y,
    "the first row of all": lambda _, x, y: y[:1].expand(len(x), WORDS, WIDTH) + x,
    "of all rows": lambda _, x, y: torch.cumsum(y, 0),
}


def row_by_row(calls: Sequence[Traffic], rows: int, threads: int, cache: int) -> list[Segment]:
    return [Segment(0, len(calls), 1 if rows >= threads else ALL)]


def at_random(calls: Sequence[Traffic], rows: int, threads: int, cache: int) -> list[Segment]:
    random, each = Random(f"{len(calls)} {rows} {threads}"), rows // threads
    inside = sorted(random.sample(range(1, len(calls)), random.randint(0, len(calls) - 1)))
    bounds = pairwise([0, *inside, len(calls)])
    # The first one has parts, where there are rows for that.
    return [Segment(first, end, random.randint(0 if first else min(each, 1), each)) for first, end in bounds]


@pytest.fixture(params=[row_by_row, at_random])
def cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """How chains are cut, whatever is worth while."""
    monkeypatch.setattr(batches, "segments_of", request.param)
    return request.param


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def are_taken(made: dict[str, Chain]) -> bool:
    """Whether no chain was refused by its libraries, and made again call by call."""
    return not any(chain._is_refused for chain in made.values())


def parts_of(made: dict[str, Chain]) -> list[Any]:
    """Those of batches of five."""
    return [each.parts for chain in made.values() for key, each in chain._bound.items() if 5 in key and each.parts]


def counts(made: dict[str, Chain]) -> set[int]:
    """How many parts there were of batches of five."""
    return {parts.segments[at].count for parts in parts_of(made) for at in range(parts.count)}


@pytest.mark.parametrize("case", chosen(["layers", "attention"], CASES))
def test_rows_of_a_batch_are_computed_one_by_one(
    case: str, threads: int, cut: Any, replacing: Replacing, made: dict[str, Chain]
) -> None:
    model = Layers(CASES[case]).eval()
    with torch.no_grad():
        fast = replacing.compiled(model, rest="inductor")
        fast(torch.rand(4, WORDS, WIDTH))
        for chain in made.values():
            # Libraries are for one thread; each of several calls them with rows of its own.
            chain._threads = threads
        for rows in (4, 5, 5, 5, 9, 1, 5):
            x = torch.rand(rows, WORDS, WIDTH)
            assert close(fast(x), model(x))
    assert are_taken(made)
    assert parts_of(made)
    if cut is row_by_row:
        assert max(counts(made)) == 5 // threads * threads


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("case", WHOLE)
def test_rows_that_depend_on_others_are_right(case: str, replacing: Replacing, made: dict[str, Chain]) -> None:
    model = Layers(WHOLE[case]).eval()
    with torch.no_grad():
        fast = replacing.compiled(model, rest="inductor")
        for rows in (4, 5, 5):
            x = torch.rand(rows, WORDS, WIDTH)
            assert close(fast(x), model(x))
    assert are_taken(made)


GRAPH: dict[str, Any] = {
    "neighbours": lambda first, second, a, x: second(torch.relu(first(a @ x))),
    "attention by products": lambda first, second, a, x: second((torch.relu(first(x)) @ second(x).T) @ first(x)),
    "rows as many as columns": lambda first, second, a, x: second(first(a @ a @ x)) + a.mean(1, keepdim=True),
}


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("case", GRAPH)
def test_libraries_take_what_has_as_many_rows_as_something_else(
    case: str, threads: int, replacing: Replacing, made: dict[str, Chain]
) -> None:
    """Of n nodes with n neighbours: a part would have some of the rows of a matrix, and all of its columns."""
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def graph(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return GRAPH[case](first, second, a, x)

    with torch.no_grad():
        fast = replacing.compiled(graph, rest="inductor")
        fast(torch.rand(4, 4), torch.rand(4, WIDTH))
        for chain in made.values():
            chain._threads = threads
        for rows in (5, 6, 5):
            a, x = torch.rand(rows, rows), torch.rand(rows, WIDTH)
            assert close(fast(a, x), graph(a, x))
    assert are_taken(made)


class Images(nn.Module):  # type: ignore[misc]
    """Layers, two of which read the same and are joined, as in SqueezeNet."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.wide, self.narrow = (
            nn.Conv2d(4, 4, 3, padding=1),
            nn.Conv2d(4, 4, 3, padding=1),
            nn.Conv2d(4, 2, 1),
        )
        self.last, self.head = nn.Conv2d(6, 4, 1), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.hardswish(self.first(x))
        y = torch.cat([torch.relu(self.wide(y)), torch.relu(self.narrow(y))], 1)
        return self.head(torch.relu(self.last(y)).mean((2, 3)))


def test_images_are_computed_one_by_one(threads: int, cut: Any, replacing: Replacing, made: dict[str, Chain]) -> None:
    model = Images().eval()
    with torch.no_grad():
        fast = replacing.compiled(model, rest="inductor")
        fast(torch.rand(4, 4, 9, 7))
        for chain in made.values():
            chain._threads = threads
        for rows in (5, 3, 8, 5):
            x = torch.rand(rows, 4, 9, 7)
            assert close(fast(x), model(x))
    assert are_taken(made)
    if cut is row_by_row:
        assert max(counts(made)) > 1


def test_an_image_of_a_part_is_joined_in_place(
    replacing: Replacing, made: dict[str, Chain], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "segments_of", row_by_row)
    found = list[dict[int, tuple[int, int]]]()

    def seen(*given: Any) -> dict[int, tuple[int, int]]:
        found.append(in_joins(*given))
        return found[-1]

    monkeypatch.setattr(batches.Batch, "_in_joins", seen)
    model = Images().eval()
    with torch.no_grad():
        fast = replacing.compiled(model, rest="inductor")
        for rows in (3, 5):
            x = torch.rand(rows, 4, 9, 7)
            assert close(fast(x), model(x))
    assert are_taken(made)
    assert [len(each) for each in found] == [2, 2]


@pytest.mark.usefixtures("cut")
def test_parts_of_several_callers_have_memory_of_their_own(replacing: Replacing, made: dict[str, Chain]) -> None:
    model, wrong = Layers(attention).eval(), list[str]()
    with torch.no_grad():
        fast = replacing.compiled(model, rest="inductor")
        fast(torch.rand(4, WORDS, WIDTH))
        for chain in made.values():
            chain._threads = 2

    def call(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _ in range(20):
                x = torch.rand(6, WORDS, WIDTH, generator=generator)
                if not close(fast(x), model(x)):
                    wrong.append("a value")

    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert are_taken(made)
    assert not wrong


@pytest.mark.usefixtures("cut")
def test_who_watches_hears_once_of_each_call_of_all_parts(
    threads: int, replacing: Replacing, made: dict[str, Chain]
) -> None:
    with torch.no_grad():
        fast = replacing.compiled(Layers().eval(), rest="inductor")
        fast(torch.rand(4, WORDS, WIDTH))
        (chain,) = made.values()
        chain._threads = threads
        heard: list[tuple[int, float]] = []
        chain.watch = lambda step, seconds: heard.append((step, seconds))
        fast(torch.rand(5, WORDS, WIDTH))
    assert [step for step, _ in heard] == list(range(len(chain.calls)))
    assert all(seconds > 0 for _, seconds in heard)
