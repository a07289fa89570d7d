"""Calls of libraries in a row become one: which do, that it computes the same, that its values do not overlap."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import shapewright as sw
from shapewright.torch import chain as chains
from shapewright.torch import chain_op
from shapewright.torch.backend import shapewright
from shapewright.torch.chain import Chain
from shapewright.torch.memory import MEMORY
from shapewright.torch.placing import planned
from shapewright.torch.steps import ChainPlan, Made, Step
from tests.shapewright.libraries import OnDemand
from tests.shapewright.torch.models import Encoder, call_at_once, close, words
from tests.shapewright.torch.replacing import Replacing, same
from tests.shares import chosen
from tuner.errors import InvalidInput, ShapewrightError

pytestmark = pytest.mark.usefixtures("made")
WIDTH = 16


def lengths(made: dict[str, Chain]) -> list[int]:
    return sorted(len(each.calls) for each in made.values())


class Rows(nn.Module):  # type: ignore[misc]
    """Products and norms with what ``between`` does to a value in between."""

    def __init__(self, between: Any = None) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm, self.between = nn.LayerNorm(WIDTH), between

    def forward(self, x: torch.Tensor) -> Any:
        y = self.norm(self.first(x))
        if self.between is not None:
            y = self.between(x, y)
        return self.third(self.norm(self.second(y)))


CASES: dict[str, tuple[Any, list[int]]] = {
    "all in a row": (None, [5]),
    # What stands between reads a value of the chain: what follows is another.
    "one between": (lambda x, y: torch.cumsum(y, 0), [2, 3]),
    # It reads nothing of the chain: it goes before.
    "one beside": (lambda x, y: y + torch.cumsum(x, 0)[:1], [5]),
    "turned": (lambda x, y: y.transpose(0, 1).reshape(-1, WIDTH), [2, 3]),
    "copied": (lambda x, y: y.clone(), [5]),
    "viewed": (lambda x, y: y.reshape(-1, 2, WIDTH // 2).reshape(-1, WIDTH), [5]),
    # A piece in a row is a view as any other, one with gaps is not.
    "the first row": (lambda x, y: y[0][None], [5]),
    "the last row": (lambda x, y: y[None][:, -1], [5]),
    "a column of rows": (lambda x, y: y.reshape(2, -1, WIDTH)[:, 0], [2, 3]),
    "a row of a row": (lambda x, y: y[1].reshape(2, -1)[1].repeat(1, 2), [2, 3]),
}


QUICK = [("all in a row", "eager"), ("one beside", "eager"), ("turned", "eager"), ("the first row", "inductor")]
"""What is in the chain, goes before it, cuts it in two, and is a view of its values."""


@pytest.mark.parametrize("which", chosen(QUICK, itertools.product(CASES, ["eager", "inductor"])), ids="-".join)
def test_what_is_in_a_row_is_one_call(which: tuple[str, str], replacing: Replacing, made: dict[str, Chain]) -> None:
    case, rest = which
    between, expected = CASES[case]
    model = Rows(between).eval()
    with torch.no_grad():
        fast = replacing.compiled(model, rest=rest)
        for rows in (6, 4, 6):
            x = torch.rand(rows, WIDTH)
            assert close(fast(x), model(x))
    # Where a size has led to another graph, that one has such chains, too.
    assert sorted(set(lengths(made))) == expected


def test_what_each_layer_computes_anew_is_computed_once(replacing: Replacing, made: dict[str, Chain]) -> None:
    class Layers(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            # It reads a value of the chain: the second time it would cut it in two.
            y, z = self.second(y + torch.cumsum(y, 0)), y
            return self.third(y + torch.cumsum(z, 0))

    model = Layers().eval()
    with torch.no_grad():
        fast = replacing.compiled(model)
        for rows in (6, 4):
            x = torch.rand(rows, WIDTH)
            assert close(fast(x), model(x))
    assert set(lengths(made)) == {2}


def test_equal_sizes_are_one_of_a_chains_sizes(replacing: Replacing, made: dict[str, Chain]) -> None:
    model = Rows().eval()
    with torch.no_grad():
        replacing.compiled(model)(torch.rand(6, WIDTH))
    (chain,) = made.values()
    assert {size for step in chain.plan.steps for size in step.sizes} == {-1, WIDTH}


def test_a_process_keeps_a_number_of_chains_whatever_it_compiles(
    replacing: Replacing, made: dict[str, Chain], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other, x = Rows(CASES["one between"][0]).eval(), Rows().eval(), torch.rand(6, WIDTH)
    with torch.no_grad():
        fast = replacing.compiled(model)
        assert close(fast(x), model(x))
        first, second = made
        monkeypatch.setattr(made[second], "plan", replace(made[second].plan, frozen=1))
        monkeypatch.setattr(chain_op, "MOST_CHAINS", 1)
        assert close(replacing.compiled(other)(x), other(x))
        assert (first in made, second in made, len(made)) == (False, True, 2)
        assert close(fast(x), model(x))
        assert (first in made, len(made)) == (True, 2)


def test_equal_chains_of_a_frozen_program_have_weights_of_their_own(built: OnDemand, made: dict[str, Chain]) -> None:
    def pair() -> nn.Sequential:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    class Pairs(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = pair(), pair()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.cumsum(self.first(x), 0))

    model, rows = Pairs().eval(), {0: torch.export.Dim("rows", min=1, max=8)}
    program = torch.export.export(model, (torch.rand(3, WIDTH),), dynamic_shapes=(rows,))
    folders = [built.folder(task.workload) for task in sw.extract(program)]
    fast = sw.torch.compile_exported(program, folders, strict=True, freeze=True)
    with torch.no_grad():
        for count in (3, 5, 3):
            x = torch.rand(count, WIDTH)
            assert close(fast(x), model(x))
    assert lengths(made) == [2, 2]


def test_random_numbers_are_drawn_in_their_order(replacing: Replacing) -> None:
    model, x = Rows().eval(), torch.rand(6, WIDTH)

    def function(x: torch.Tensor) -> Any:
        kept = torch.bernoulli(torch.sigmoid(model.second(model.first(x))))
        return kept, model.second(model.first(torch.rand_like(x)))

    fast, results = replacing.compiled(function), []
    with torch.no_grad():
        for each in (fast, function):
            torch.manual_seed(0)
            results.append(each(x))
    same(*results)
    assert len(replacing.report.replaced) == 4


def test_values_that_others_read_are_outputs(replacing: Replacing, made: dict[str, Chain]) -> None:
    model = Rows().eval()

    def function(x: torch.Tensor) -> Any:
        y = model.first(x)
        z = model.norm(y)
        return model.second(z), y.cumsum(0), z.view(-1, 2, WIDTH // 2)

    for rest in ("eager", "inductor"):
        replacing.check(function, torch.rand(6, WIDTH), rest=rest, replaced=3)
    assert lengths(made) == [3]
    assert [len(each.plan.outputs) for each in made.values()] == [3]


def test_a_view_that_nobody_reads_is_no_output(replacing: Replacing, made: dict[str, Chain]) -> None:
    model = Rows(lambda x, y: (y.transpose(0, 1), y)[1]).eval()
    with torch.no_grad():
        x = torch.rand(6, WIDTH)
        assert close(replacing.compiled(model)(x), model(x))
    assert [len(each.plan.outputs) for each in made.values()] == [1]


def test_a_model_is_called_as_one_chain_at_every_size_and_by_threads_at_once(
    encoder_libraries: Path, made: dict[str, Chain]
) -> None:
    model = Encoder().eval()
    fast = torch.compile(model, backend=shapewright, dynamic=True, options={"source": encoder_libraries})
    with torch.no_grad():
        for batch, length in ((2, 7), (3, 5), (2, 64), (4, 3), (2, 7)):
            ids = words(batch, length)
            assert close(fast(ids), model(ids))
        (chain,) = made.values()
        assert len(chain.calls) == len(sw.torch.report().replaced)
        # Weights that have changed are packed again.
        model.up.weight.mul_(1.5)
        assert close(fast(ids), model(ids))
    call_at_once(model, fast)


@pytest.mark.parametrize("dtype", chosen([torch.bfloat16], [torch.bfloat16, torch.float16]))
def test_chains_of_halves_compute_the_same(dtype: torch.dtype, replacing: Replacing, made: dict[str, Chain]) -> None:
    replacing.check(Rows().eval().to(dtype), torch.rand(6, WIDTH, dtype=dtype), replaced=3)
    assert lengths(made)[-1] >= 2


# -- the chain itself -----------------------------------------------------------------------------------------------
@pytest.fixture
def one(replacing: Replacing, made: dict[str, Chain]) -> tuple[Rows, Chain]:
    """A model, and its chain: x and parameters are its tensors, the rows are its size."""
    model = Rows().eval()
    with torch.no_grad():
        replacing.compiled(model)(torch.rand(6, WIDTH))
    (chain,) = made.values()
    return model, chain


def tensors_of(model: Rows, x: torch.Tensor) -> list[torch.Tensor]:
    pairs = [(each.weight, each.bias) for each in (model.first, model.norm, model.second, model.third)]
    return [x, *(tensor for pair in pairs for tensor in pair)]


def test_without_machine_code_calls_are_made_one_by_one(
    one: tuple[Rows, Chain], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, chain = one
    monkeypatch.setattr(chains, "native", lambda: None)
    alone = Chain(ChainPlan.read(chain.plan.text()))
    x = torch.rand(5, WIDTH)
    with torch.no_grad():
        (found,) = alone(tensors_of(model, x), [5])
        assert close(found, model(x))
    assert not alone._bound


def test_the_next_call_uses_the_memory_of_the_one_before(
    one: tuple[Rows, Chain], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, chain = one
    MEMORY.release()
    taken, take = list[torch.Tensor](), MEMORY.take

    def watched(size: int) -> torch.Tensor:
        taken.append(take(size))
        return taken[-1]

    monkeypatch.setattr(MEMORY, "take", watched)
    with torch.no_grad():
        for rows in (6, 3, 6):
            x = torch.rand(rows, WIDTH)
            (ours,) = chain(tensors_of(model, x), [rows])
            assert close(ours, model(x))
    assert len(taken) == 3
    assert all(piece is taken[0] for piece in taken)


def test_a_call_that_fails_says_why(one: tuple[Rows, Chain]) -> None:
    model, chain = one
    with pytest.raises(ShapewrightError, match="shape"):
        chain(tensors_of(model, torch.rand(5, WIDTH + 1)), [5])


def test_a_tensor_of_another_dtype_is_refused_whatever_came_before(one: tuple[Rows, Chain]) -> None:
    """What was written down for a size must not have it read as another dtype, past its end."""
    model, chain = one
    chain(tensors_of(model, torch.rand(5, WIDTH)), [5])
    with pytest.raises(ShapewrightError, match="dtype"):
        chain(tensors_of(model, torch.rand(5, WIDTH, dtype=torch.float16)), [5])


def test_values_are_on_the_cpu_whatever_the_default_device(one: tuple[Rows, Chain]) -> None:
    model, chain = one
    x = torch.rand(5, WIDTH)
    with torch.no_grad(), torch.device("meta"):
        (found,) = chain(tensors_of(model, x), [5])
    with torch.no_grad():
        assert found.device.type == "cpu"
        assert close(found, model(x))


def test_nothing_is_computed_of_no_rows(one: tuple[Rows, Chain]) -> None:
    model, chain = one
    (found,) = chain(tensors_of(model, torch.rand(0, WIDTH)), [0])
    assert found.shape == (0, WIDTH)


def test_sizes_are_kept_up_to_a_bound(one: tuple[Rows, Chain], monkeypatch: pytest.MonkeyPatch) -> None:
    model, chain = one
    monkeypatch.setattr(chains, "MOST_BOUND", 3)
    with torch.no_grad():
        for rows in (2, 3, 4, 5, 6, 2):
            x = torch.rand(rows, WIDTH)
            assert close(chain(tensors_of(model, x), [rows])[0], model(x))
    assert [key[0] for key in chain._bound] == [5, 6, 2]


def test_forms_are_kept_up_to_a_bound(one: tuple[Rows, Chain], monkeypatch: pytest.MonkeyPatch) -> None:
    """What was bound by one that was dropped is still described."""
    model, chain = one
    monkeypatch.setattr(chains, "MOST_FORMS", 1)
    wide = copy.deepcopy(model).double()
    with torch.no_grad():
        for rows in (3, 4, 3):
            x = torch.rand(rows, WIDTH)
            assert close(chain(tensors_of(model, x), [rows])[0], model(x))
            with pytest.raises(ShapewrightError):
                chain(tensors_of(wide, x.double()), [rows])
    assert len(chain._forms) == 1


def test_who_watches_hears_of_each_call(one: tuple[Rows, Chain]) -> None:
    model, chain = one
    heard: list[tuple[int, float]] = []
    chain.watch = lambda step, seconds: heard.append((step, seconds))
    with torch.no_grad():
        chain(tensors_of(model, torch.rand(5, WIDTH)), [5])
    assert [step for step, _ in heard] == [0, 1, 2, 3, 4]
    assert all(seconds > 0 for _, seconds in heard)


def test_a_plan_is_read_as_it_was_written() -> None:
    plan = ChainPlan(
        (Step("a", (0, 1), (-1, 4)), Step("b", (Made(0, (2, None)), 2, Made(0, (4,), -1)), (3,))), (1, 0), (1, 2)
    )
    assert ChainPlan.read(plan.text()) == plan
    for text in ("", "[]", '{"steps": [1], "outputs": []}'):
        with pytest.raises(InvalidInput, match="plan"):
            ChainPlan.read(text)


NEEDS = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 12), st.integers(0, 5)), max_size=12)


@given(NEEDS)
def test_values_that_are_needed_at_the_same_time_do_not_overlap(drawn: list[tuple[int, int, int]]) -> None:
    needs = [(size, first, first + more) for size, first, more in drawn]
    places, total = planned(needs)
    ends = [at + size for at, (size, _, _) in zip(places, needs, strict=True)]
    assert all(at % 64 == 0 for at in places)
    assert max(ends, default=0) <= total
    for i, (_, first, last) in enumerate(needs):
        for j, (_, since, until) in enumerate(needs[:i]):
            if first <= until and since <= last:
                assert places[i] >= ends[j] or places[j] >= ends[i]
