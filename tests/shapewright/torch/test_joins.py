"""Joins within chains: which become steps, that they copy what they should, and that lengths may grow."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import shapewright as sw
from shapewright.models.lifted import View
from shapewright.torch import chain as chains
from shapewright.torch.chain import Chain
from shapewright.torch.joins import JOIN, Join
from shapewright.torch.plan import DTYPES, Plan, Taken
from shapewright.torch.steps import ChainPlan, Step
from tests.shapewright.libraries import OnDemand
from tests.shapewright.torch.models import close
from tests.shapewright.torch.replacing import Replacing, same
from tests.shares import chosen, spread

pytestmark = pytest.mark.usefixtures("made")
WIDTH, HEADS = 16, 2
Between = Callable[[torch.Tensor], torch.Tensor]


class Word(nn.Module):  # type: ignore[misc]
    """Attention of new words to those before, whose keys and values go through ``between``."""

    def __init__(self, between: Between = lambda past: past) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.between = between

    def forward(
        self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v = (each(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        keys, values = torch.cat((self.between(keys), k), 2), torch.cat((self.between(values), v), 2)
        mixed = functional.scaled_dot_product_attention(q, keys, values)
        return self.o(mixed.transpose(1, 2).flatten(2)), k, v


def inputs(batch: int, past: int, new: int = 1) -> tuple[torch.Tensor, ...]:
    shape = (batch, HEADS, past, WIDTH // HEADS)
    return torch.rand(batch, new, WIDTH), torch.rand(shape), torch.rand(shape)


def joins(made: dict[str, Chain]) -> list[list[str]]:
    """Of each chain which of its calls are joins."""
    return [["join" if isinstance(each, Join) else "call" for each in chain.calls] for chain in made.values()]


CASES: dict[str, tuple[Between, int]] = {
    "at hand": (lambda past: past, 2),
    "a piece with gaps": (lambda past: past[:, :, ::2], 2),
    "one of two": (lambda past: torch.stack((past, past)).unbind()[0], 0),
    # It would be computed for the join alone, which Inductor does in one go.
    "computed": (lambda past: torch.cumsum(past, 2), 0),
}


QUICK = [("at hand", "inductor"), ("a piece with gaps", "eager"), ("computed", "inductor")]


@pytest.mark.parametrize(
    ("case", "rest"), spread(chosen(QUICK, itertools.product(CASES, ("eager", "inductor"))))
)  # fmt: skip
def test_what_is_at_hand_is_joined_within_a_chain(
    case: str, rest: str, replacing: Replacing, made: dict[str, Chain]
) -> None:
    between, number = CASES[case]
    model = Word(between).eval()
    fast = replacing.compiled(model, rest=rest)
    with torch.no_grad():
        for batch, past in ((3, 6), (2, 5), (3, 9)):
            given = inputs(batch, past)
            same(fast(*given), model(*given))
    assert max(each.count("join") for each in joins(made)) == number
    # A chain from the first product to the last one, else one before the attention and one from there on.
    assert max(map(len, joins(made))) == (7 if number else 3)


@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_what_the_caller_gets_is_joined_within_a_chain(rest: str, replacing: Replacing, made: dict[str, Chain]) -> None:
    class Words(Word):
        def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Any:
            y, k, v = super().forward(x, keys, values)
            z, *others = super().forward(y, keys, values)
            return z, torch.cat([torch.cat(each).view(2, *k.shape) for each in ((k, v), others)])

    model = Words().eval()
    fast = replacing.compiled(model, rest=rest)
    with torch.no_grad():
        for past in (6, 5):
            given = inputs(1, past)
            same(fast(*given), model(*given))
    # Two of keys, two of values, two of both and one of all.
    assert max(each.count("join") for each in joins(made)) == 7
    assert max(map(len, joins(made))) == 17


class Fire(nn.Module):  # type: ignore[misc]
    """As in SqueezeNet: two convolutions of one value, joined by channels, and the largest of windows of that."""

    def __init__(self) -> None:
        super().__init__()
        self.squeeze, self.one, self.three = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 8, 1), nn.Conv2d(16, 24, 3, padding=1)
        self.last = nn.Conv2d(32, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.squeeze(x))
        x = torch.cat((functional.relu(self.one(x)), functional.relu(self.three(x))), 1)
        return self.last(functional.max_pool2d(x, 3, 2, ceil_mode=True))


class Doubled(nn.Module):  # type: ignore[misc]
    """Rows of two layers one behind the other: the axis of which nobody knows the size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(torch.cat((self.first(x), self.second(x))))


@pytest.mark.parametrize("rest", ["eager", "inductor"])
@pytest.mark.parametrize(("layer", "shape"), [(Fire, (8, 12, 12)), (Doubled, (WIDTH,))])
def test_what_a_chain_has_made_is_joined_by_it(
    layer: type[nn.Module], shape: tuple[int, ...], rest: str, replacing: Replacing, made: dict[str, Chain]
) -> None:
    model = layer().eval()
    fast = replacing.compiled(model, rest=rest, dynamic=None)
    with torch.no_grad():
        for batch in (3, 5, 2):
            x = torch.rand(batch, *shape)
            torch._dynamo.mark_dynamic(x, 0)
            same(fast(x), model(x))
    (kinds,) = joins(made)
    assert kinds.count("join") == 1
    assert kinds.count("call") == len(replacing.report.replaced)


class Dense(nn.Module):  # type: ignore[misc]
    """As in DenseNet: each layer reads what all before it made."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(8 * count, 8, 1) for count in (1, 1, 2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = [functional.relu(self.layers[0](x))]
        made.append(functional.relu(self.layers[1](made[0])))
        made.append(functional.relu(self.layers[2](torch.cat(made, 1))))
        return self.layers[3](torch.cat(made, 1))


@pytest.mark.parametrize(("layer", "in_place"), [(Fire, [True]), (Dense, [False, True])])
def test_one_image_is_joined_without_a_copy_by_who_reads_it_last(
    layer: type[nn.Module], in_place: list[bool], built: OnDemand, made: dict[str, Chain]
) -> None:
    model = layer().eval()
    dims = {0: torch.export.Dim("batch", min=1, max=8)}
    program = torch.export.export(model, (torch.rand(2, 8, 12, 12),), dynamic_shapes=(dims,))
    folders = [str(built.folder(task.workload)) for task in sw.extract(program)]
    fast = sw.torch.compile_exported(program, folders, strict=True, freeze=True)
    with torch.no_grad():
        for batch in (1, 3, 2, 1):
            x = torch.rand(batch, 8, 12, 12)
            same(fast(x), model(x))
    (chain,), (kinds,) = made.values(), joins(made)
    (form,), steps = chain._forms.values(), [step for step, kind in enumerate(kinds) if kind == "join"]
    assert len(chain._bound) == 3
    for bound in chain._bound.values():
        found, numbers = list[bool](), bound.numbers
        for *parts, out in (form.placed[step] for step in steps):
            batch, behind = numbers[out.at], numbers[out.offset_at]
            sizes = [4 * numbers[each.at + 1] for each in parts]
            offsets = [numbers[each.offset_at] - behind for each in parts]
            found.append(offsets == list(itertools.accumulate(sizes[:-1], initial=0)))
        assert found == (in_place if batch == 1 else [False] * len(steps))


def test_several_new_words_stand_in_another_order(replacing: Replacing, made: dict[str, Chain]) -> None:
    model = Word().eval()
    fast = replacing.compiled(model)
    with torch.no_grad():
        for given in (inputs(2, 6, 3), inputs(3, 4, 5)):
            same(fast(*given), model(*given))
    assert not any("join" in each for each in joins(made))


def test_lengths_that_grow_are_no_new_forms(replacing: Replacing, made: dict[str, Chain]) -> None:
    model = Word().eval()
    fast = replacing.compiled(model)
    with torch.no_grad():
        for past in (*range(3, 12), 4):
            given = inputs(2, past)
            same(fast(*given), model(*given))
    (chain,) = made.values()
    assert len(chain._forms) == 1
    assert len(chain._bound) == 9


def test_without_machine_code_pytorch_joins(
    replacing: Replacing, made: dict[str, Chain], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls, run = Word().eval(), list[tuple[Any, ...]](), Chain.into

    def heard(chain: Chain, *given: Any) -> None:
        calls.append(given)
        run(chain, *given)

    monkeypatch.setattr(Chain, "into", heard)
    with torch.no_grad():
        replacing.compiled(model)(*inputs(2, 6))
    (chain,) = made.values()
    monkeypatch.setattr(chains, "native", lambda: None)
    alone, ((tensors, sizes, outs),) = Chain(ChainPlan.read(chain.plan.text())), calls
    with torch.no_grad():
        assert all(itertools.starmap(close, zip(alone(tensors, sizes), outs, strict=True)))


# -- the copy itself --------------------------------------------------------------------------------------------------
def joined(tensors: list[torch.Tensor], axis: int, threads: int = 1) -> torch.Tensor:
    rank, dtype = tensors[0].dim(), next(name for name, each in DTYPES.items() if each is tensors[0].dtype)
    view: View = (tuple(range(axis)), tuple(range(axis, rank)))
    plan = Plan(JOIN, tuple(Taken((number,), view) for number in range(len(tensors))), view, dtype)
    sizes = list(tensors[0].shape)
    sizes[axis] = sum(each.shape[axis] for each in tensors)
    step = Step(plan.text(), tuple(range(len(tensors))), tuple(-1 - at for at in range(rank)))
    chain = Chain(ChainPlan((step,), (0,)))
    chain._threads = threads
    (found,) = chain(tensors, sizes)
    return found


@given(st.data())
def test_joins_are_those_of_pytorch(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    axis, dtype = data.draw(st.integers(0, len(shape) - 1)), data.draw(st.sampled_from([*DTYPES.values()]))
    tensors = []
    for size in data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4)):
        own = (*shape[:axis], size, *shape[axis + 1 :])
        value = torch.randint(0, 99, own).to(dtype)
        tensors.append(value.mT.contiguous().mT if len(own) > 1 and data.draw(st.booleans()) else value)
    assert torch.equal(joined(tensors, axis), torch.cat(tensors, axis))


def test_threads_share_what_is_large() -> None:
    tensors, before = [torch.rand(7, 40_000), torch.rand(7, 11)], torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in range(8):
            assert torch.equal(joined(tensors, 1, threads=2), torch.cat(tensors, 1))
    finally:
        torch.set_num_threads(before)
