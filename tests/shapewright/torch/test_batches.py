"""Batches in parts: which chains have independent rows, how many parts there are, that they compute the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from shapewright.torch import batches
from shapewright.torch.batches import number_of_parts
from shapewright.torch.chain import Chain
from tests.shapewright.torch.models import close
from tests.shapewright.torch.replacing import Replacing
from tests.shares import chosen

WIDTH, HEADS, WORDS = 16, 2, 3


# -- how many -------------------------------------------------------------------------------------------------------
@given(st.integers(0, 70), st.integers(1, 9), st.integers(0, 80), st.integers(0, 80))
def test_parts_are_even_and_not_smaller_than_is_worth_while(rows: int, threads: int, fit: int, least: int) -> None:
    count = number_of_parts(rows, threads, fit, least)
    if count > 1:
        assert count % threads == 0
        assert rows // count >= max(least, 1)
        assert -rows % threads <= batches.MOST_WAITING * rows
    elif threads == 1 and rows >= 2 * max(least, 1):
        assert fit >= rows


@pytest.mark.parametrize(
    ("rows", "threads", "fit", "least", "count"),
    [
        (8, 1, 100, 1, 1),  # caches hold everything
        (8, 1, 4, 1, 2),
        (7, 1, 4, 1, 2),  # 4 and 3
        (8, 1, 0, 1, 8),  # not even a row fits
        (8, 1, 1, 3, 2),  # weights are worth reading for three
        (8, 1, 1, 5, 1),
        (8, 2, 100, 1, 2),  # a part for each thread, whatever fits
        (8, 2, 2, 1, 4),
        (2, 2, 2, 1, 2),
        (1, 2, 2, 1, 1),
        (7, 2, 2, 1, 1),  # a thread would wait for the other one
        (33, 2, 100, 1, 2),
        (8, 2, 100, 5, 1),
        (0, 1, 1, 1, 1),
    ],
)
def test_a_batch_is_divided_as_caches_threads_and_weights_ask(
    rows: int, threads: int, fit: int, least: int, count: int
) -> None:
    assert number_of_parts(rows, threads, fit, least) == count


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


@pytest.fixture
def row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part has a row of its own wherever that is possible."""
    monkeypatch.setattr(batches, "LEVEL2_TIMES", 0)
    monkeypatch.setattr(batches, "LEAST_WRITTEN", 0)
    monkeypatch.setattr(batches, "MOST_WAITING", 1)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def are_taken(made: dict[str, Chain]) -> bool:
    """Whether no chain was refused by its libraries, and made again call by call."""
    return not any(chain._is_refused for chain in made.values())


def counts(made: dict[str, Chain]) -> set[int]:
    """How many parts there were of batches of five."""
    bound = [each for chain in made.values() for key, each in chain._bound.items() if 5 in key]
    return {each.parts.count if each.parts else 1 for each in bound}


@pytest.mark.usefixtures("row_by_row")
@pytest.mark.parametrize("case", chosen(["layers", "attention"], CASES))
def test_rows_of_a_batch_are_computed_one_by_one(
    case: str, threads: int, replacing: Replacing, made: dict[str, Chain]
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
    assert 5 // threads * threads <= max(counts(made)) <= 5


@pytest.mark.usefixtures("row_by_row")
@pytest.mark.parametrize("case", WHOLE)
def test_rows_that_depend_on_others_are_right(
    case: str, replacing: Replacing, made: dict[str, Chain]
) -> None:
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


@pytest.mark.usefixtures("row_by_row")
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


@pytest.mark.usefixtures("row_by_row")
def test_images_are_computed_one_by_one(threads: int, replacing: Replacing, made: dict[str, Chain]) -> None:
    block = [nn.Conv2d(4, 4, 3, padding=1), nn.Hardswish(), nn.Conv2d(4, 4, 1)]
    model = nn.Sequential(*block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)).eval()
    with torch.no_grad():
        fast = replacing.compiled(model, rest="inductor")
        fast(torch.rand(4, 4, 9, 7))
        for chain in made.values():
            chain._threads = threads
        for rows in (5, 3, 8, 5):
            x = torch.rand(rows, 4, 9, 7)
            assert close(fast(x), model(x))
    assert are_taken(made)
    assert max(counts(made)) > 1


@pytest.mark.usefixtures("row_by_row")
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


@pytest.mark.usefixtures("row_by_row")
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
