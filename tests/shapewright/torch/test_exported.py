"""Programs of torch.export with tuned libraries: what they compute, at which sizes, and what they refuse."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import shapewright as sw
from shapewright.torch import frozen
from shapewright.torch.chain_op import chains_so_far as chains
from shapewright.torch.frozen import Direct
from tests.shapewright.libraries import OnDemand
from tests.shapewright.torch.models import INNER, WIDTH, WORDS, Encoder, call_at_once, close, words
from tests.shapewright.torch.replacing import Replacing, same
from tuner.errors import InvalidInput

MOST = 64
RESTS = ("inductor", "eager")
SIZES = ((2, 7), (3, 5), (1, 1), (4, 64), (1, 3), (2, 7))


class Sums(nn.Module):  # type: ignore[misc]
    """Structures in and out, a constant, and a size."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(WIDTH, INNER), nn.LayerNorm(INNER)

    def forward(self, rows: dict[str, torch.Tensor], scale: float = 2.0, *, other: torch.Tensor) -> Any:
        x = self.norm(self.up(rows["x"])) * scale
        return {"sum": x + other, "rows": rows["x"].shape[0], "scale": scale}


def exported(model: nn.Module, *inputs: Any, dims: Any, **kwargs: Any) -> Any:
    return export(model, inputs, kwargs or None, dynamic_shapes=dims)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    model = Encoder()
    model.eval()
    return model


@pytest.fixture(scope="module")
def program(encoder: Encoder) -> Any:
    dims = ({0: Dim("batch", max=5), 1: Dim("length", max=MOST)},)
    return exported(encoder, words(2, 9), dims=dims)


@pytest.fixture(scope="module", params=RESTS)
def compiled(request: pytest.FixtureRequest, program: Any, encoder_libraries: Path) -> Any:
    return sw.torch.compile_exported(program, encoder_libraries, strict=True, options={"rest": request.param})


def test_a_program_computes_what_the_model_does_at_every_size(compiled: Any, encoder: Encoder) -> None:
    for batch, length in SIZES:
        ids = words(batch, length)
        assert close(compiled(ids), encoder(ids))
    found = sw.torch.report(compiled)
    assert len(found.replaced) >= 7
    assert found.share == 1.0


def test_weights_that_change_in_place_are_packed_again(program: Any, encoder: Encoder, encoder_libraries: Path) -> None:
    fast, ids = sw.torch.compile_exported(program, encoder_libraries), words(2, 5)
    fast(ids)
    with torch.no_grad():
        encoder.up.weight.mul_(1.5)
        assert close(fast(ids), encoder(ids))


def test_frozen_weights_are_read_again_after_forget(encoder_libraries: Path) -> None:
    model, x = _layers(), torch.rand(5, WIDTH)
    fast = sw.torch.compile_exported(_of_rows(model), encoder_libraries, freeze=True)
    assert close(fast(x), before := model(x))
    with torch.no_grad():
        # Memory that libraries read goes from the model, but not from under them.
        for each in model.parameters():
            if each.dim() == 1:
                each.data = each.data * 3 + 1
        gc.collect()
        assert close(fast(x), before)
        model[0].weight.mul_(1.5)
        sw.torch.forget()
        assert close(fast(x), model(x))


def test_frozen_programs_of_one_architecture_have_weights_of_their_own(encoder_libraries: Path) -> None:
    one, other, x = _layers(), _layers(), torch.rand(5, WIDTH)
    fast = [sw.torch.compile_exported(_of_rows(each), encoder_libraries, freeze=True) for each in (one, other)]
    for _ in range(2):
        assert close(fast[0](x), one(x))
        assert close(fast[1](x), other(x))


def test_a_frozen_program_that_is_dropped_leaves_nothing(encoder_libraries: Path) -> None:
    fast, before = sw.torch.compile_exported(_of_rows(_layers()), encoder_libraries, freeze=True), len(chains())
    fast(torch.rand(5, WIDTH))
    assert len(chains()) == before + 1
    kept = len(frozen._constants)
    del fast
    gc.collect()
    assert len(chains()) == before
    assert len(frozen._constants) == kept - 1


@pytest.mark.parametrize("rest", RESTS)
def test_a_frozen_program_is_given_its_inputs_alone(rest: str, encoder_libraries: Path) -> None:
    model, x = _layers(), torch.rand(5, WIDTH)
    fast = sw.torch.compile_exported(_of_rows(model), encoder_libraries, freeze=True, options={"rest": rest})
    assert close(fast(x), model(x))
    (chain,) = [each for each in chains() if each.plan.frozen and each.plan.frozen in frozen._constants]
    assert (chain.inputs, len(chain.plan.constants), len(chain.plan.names)) == (1, 4, 4)
    assert isinstance(fast._call, Direct) is (rest == "inductor")


@pytest.mark.parametrize("rest", RESTS)
def test_a_frozen_program_gives_what_shares_memory_with_its_inputs(rest: str, encoder_libraries: Path) -> None:
    class Same(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = _layers()

        def forward(self, x: torch.Tensor) -> Any:
            y = self.layers(x)
            return x, y, y.view(-1), self.layers[0].weight

    model, x = Same(), torch.rand(5, WIDTH)
    program = exported(model, torch.rand(3, WIDTH), dims=({0: Dim("rows", max=MOST)},))
    fast = sw.torch.compile_exported(program, encoder_libraries, freeze=True, options={"rest": rest})
    for _ in range(2):
        own, y, flat, weight = fast(x)
        assert own is x or own.data_ptr() == x.data_ptr()
        assert close(y, model.layers(x))
        assert flat.data_ptr() == y.data_ptr()
        assert torch.equal(weight, model.layers[0].weight)


def test_a_frozen_program_records_no_gradient_whatever_becomes_of_a_call(
    encoder_libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = _layers(), torch.rand(5, WIDTH, requires_grad=True)
    fast = sw.torch.compile_exported(_of_rows(model), encoder_libraries, freeze=True)
    assert not fast(x).requires_grad
    assert torch.is_grad_enabled()
    monkeypatch.setattr(fast._call, "_compiled", lambda args: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        fast(x)
    assert torch.is_grad_enabled()


def test_constants_of_a_program_that_was_not_compiled_are_not_kept(
    encoder_libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frozen, "_constants", {})
    monkeypatch.setattr("shapewright.torch.exported.compile_graph", lambda *_, **__: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        sw.torch.compile_exported(_of_rows(_layers()), encoder_libraries, freeze=True)
    assert frozen._constants == {}


def _layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, INNER), nn.GELU()).eval()


def _of_rows(model: nn.Module) -> Any:
    return exported(model, torch.rand(3, WIDTH), dims=({0: Dim("rows", max=MOST)},))


def test_results_record_no_gradient_and_modes_make_no_difference(compiled: Any, encoder: Encoder) -> None:
    ids = words(2, 5)
    expected = encoder(ids).detach()
    assert not compiled(ids).requires_grad
    with torch.no_grad():
        assert close(compiled(ids), expected)
    with torch.inference_mode():
        assert close(compiled(ids), expected)


def test_inputs_in_another_order_or_with_gaps_are_copied(encoder_libraries: Path) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, INNER), nn.GELU()).eval()
    fast = sw.torch.compile_exported(
        exported(model, torch.rand(3, WIDTH), dims=({0: Dim("rows", max=MOST)},)), encoder_libraries
    )
    for x in (
        torch.rand(WIDTH, 5).T,
        torch.rand(5, 2 * WIDTH)[:, ::2],
        torch.rand(10, WIDTH)[::2],
        torch.rand(5, WIDTH),
    ):
        assert close(fast(x), model(x))


@pytest.mark.parametrize("rest", RESTS)
def test_structures_constants_and_sizes_go_in_and_out(rest: str, encoder_libraries: Path) -> None:
    model, rows = Sums().eval(), Dim("rows", max=MOST)
    fast = sw.torch.compile_exported(
        exported(
            model, {"x": torch.rand(3, WIDTH)}, 2.0, other=torch.rand(3, INNER),
            dims={"rows": {"x": {0: rows}}, "scale": None, "other": {0: rows}},
        ),
        encoder_libraries, options={"rest": rest},
    )  # fmt: skip
    for number in (5, 1, 9):
        x, other = torch.rand(number, WIDTH), torch.rand(number, INNER)
        with torch.no_grad():
            same(fast({"x": x}, 2.0, other=other), model({"x": x}, 2.0, other=other))
    with pytest.raises(InvalidInput, match=r"scale: is 3\.0.*2\.0, as exported"):
        fast({"x": x}, 3.0, other=other)
    with pytest.raises(InvalidInput, match=r"other\.shape\[0\]: is 4"):
        fast({"x": x}, 2.0, other=other[:4])
    for wrong in (({"y": x}, 2.0), ({"x": x},), ({"x": x}, 2.0, 1)):
        with pytest.raises(InvalidInput, match="inputs"):
            fast(*wrong, other=other)


def test_a_size_that_is_made_of_another_is_checked_too(encoder_libraries: Path) -> None:
    rows = Dim("rows", max=MOST)

    class Halves(nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.reshape(-1, 2).sum(1) + y

    fast = sw.torch.compile_exported(
        exported(Halves(), torch.rand(6), torch.rand(3), dims=({0: 2 * rows}, {0: rows})), encoder_libraries
    )
    x, y = torch.rand(10), torch.rand(5)
    assert close(fast(x, y), Halves()(x, y))
    for wrong in ((torch.rand(9), y), (x, torch.rand(4)), (torch.rand(2 * MOST + 2), torch.rand(MOST + 1))):
        with pytest.raises(InvalidInput, match=r"[xy]\.shape\[0\]"):
            fast(*wrong)


def test_a_size_of_one_is_taken_where_it_is_no_special_case(encoder_libraries: Path) -> None:
    class Squeezed(nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.squeeze() * 2

    class Repeated(nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.unsqueeze(0).expand(3, -1, -1).sum(1)

    for model, is_special in ((Squeezed(), True), (Repeated(), False)):
        program = exported(model, torch.rand(5, WIDTH), dims=({0: Dim("rows", min=0, max=MOST)},))
        fast = sw.torch.compile_exported(program, encoder_libraries, options={"rest": "eager"})
        for rows in (4, 2, 1, 0):
            x = torch.rand(rows, WIDTH)
            if is_special and rows == 1:
                with pytest.raises(InvalidInput, match=r"sizes s\d+ = 1 give another shape than others do at squeeze"):
                    fast(x)
            else:
                assert close(fast(x), model(x))


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: words(1, MOST + 1), r"words\.shape\[1\]: 65 is out of range.*to 64.*export"),
    (lambda: words(1, 3)[0], "words: has 1 dims"),
    (lambda: words(1, 3).float(), "words: has the dtype torch.float32"),
    (lambda: [[1, 2]], "words: list is no plain tensor"),
    (lambda: nn.Buffer(words(1, 3)).as_subclass(type("Own", (torch.Tensor,), {})), "no plain tensor"),
    (lambda: words(1, 3).to_sparse(), "has the layout torch.sparse_coo"),
]


def test_other_inputs_are_refused_again_and_again(program: Any, encoder_libraries: Path) -> None:
    fast = sw.torch.compile_exported(program, encoder_libraries, options={"rest": "eager"})
    for make, message in 2 * REFUSED:
        with pytest.raises(InvalidInput, match=message):
            fast(make())


@pytest.mark.parametrize("rest", RESTS)
def test_buffers_and_inputs_are_written_to_as_in_the_model(rest: str, encoder_libraries: Path) -> None:
    class Counting(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(WIDTH, INNER)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            seen[:1].add_(x.sum())
            return self.up(x) + self.count

    model = Counting().eval()
    program = exported(model, torch.rand(3, WIDTH), torch.zeros(4), dims=({0: Dim("rows", max=MOST)}, None))
    fast = sw.torch.compile_exported(program, encoder_libraries, options={"rest": rest})
    mine, own = torch.zeros(4), torch.zeros(4)
    for calls, rows in enumerate((5, 1, 2), start=1):
        x = torch.rand(rows, WIDTH)
        with torch.no_grad():
            assert close(fast(x, mine), model.up(x) + calls)
            own[:1].add_(x.sum())
        assert close(mine, own)
    with pytest.raises(InvalidInput, match="seen: has gaps, and the program writes to it"):
        fast(torch.rand(2, WIDTH), torch.zeros(8)[::2])


def test_what_a_program_must_be() -> None:
    with pytest.raises(InvalidInput, match="program: Linear is none"):
        sw.torch.compile_exported(nn.Linear(2, 2), "libraries")
    turned = exported(nn.ReLU(), torch.rand(2, 3).T, dims=None)
    with pytest.raises(InvalidInput, match="axes in another order"):
        sw.torch.compile_exported(turned, "libraries")


def test_what_was_decided_while_compiling_holds_for_later_sizes(replacing: Replacing, encoder_libraries: Path) -> None:
    """Keys and values are of one length (``agree``): a program that has a symbol for each is not called with two."""

    class Mixed(nn.Module):  # type: ignore[misc]
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(q, k, v)

    dims = tuple({2: Dim(name, max=MOST)} for name in ("i", "j", "j"))
    q, k, v = (torch.rand(1, 2, length, WIDTH // 2) for length in (3, 5, 5))
    fast = sw.torch.compile_exported(
        exported(Mixed(), q, k, v, dims=dims), encoder_libraries, options={"rest": "eager"}
    )
    assert close(fast(q, k, v), Mixed()(q, k, v))
    with pytest.raises(InvalidInput, match=r"v\.shape\[2\]"):
        fast(q, k, torch.rand(1, 2, 4, WIDTH // 2))


def test_threads_call_at_once(compiled: Any, encoder: Encoder) -> None:
    call_at_once(encoder, compiled)


@pytest.mark.parametrize("rest", RESTS)
def test_an_int_may_be_a_dynamic_input(rest: str, encoder_libraries: Path) -> None:
    class First(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(WIDTH, INNER)

        def forward(self, x: torch.Tensor, number: int) -> Any:
            return self.up(x)[:number], x.shape[0] + number

    model, rows = First().eval(), Dim("rows", min=4, max=MOST)
    program = exported(model, torch.rand(6, WIDTH), 3, dims=({0: rows}, Dim.DYNAMIC))
    fast = sw.torch.compile_exported(program, encoder_libraries, options={"rest": rest})
    for count, number in ((6, 3), (9, 2), (20, 7)):
        x = torch.rand(count, WIDTH)
        with torch.no_grad():
            same(fast(x, number), model(x, number))
    with pytest.raises(InvalidInput, match=r"do not satisfy .* a guard of the compilation"):
        fast(x, 30)
    for wrong in (2.0, True, "x"):
        with pytest.raises(InvalidInput, match=r"number: .* is no size"):
            fast(x, wrong)


def test_words_beyond_the_table_raise_as_in_eager(compiled: Any) -> None:
    with pytest.raises((IndexError, RuntimeError)):
        compiled(torch.full((1, 3), WORDS + 5))


def test_a_norm_of_an_exported_module_has_the_library_of_what_was_extracted(built: OnDemand) -> None:
    """PyTorch spells it out on the way, with an epsilon that was rounded to float32."""
    model = nn.RMSNorm(WIDTH, eps=1e-6).eval()
    program = torch.export.export(model, (torch.rand(5, WIDTH),), dynamic_shapes=({0: Dim("rows", max=32)},))
    (task,) = sw.extract(program)
    fast = sw.torch.compile_exported(program, [str(built.folder(task.workload))], strict=True)
    with torch.no_grad():
        x = torch.rand(7, WIDTH)
        assert close(fast(x), model(x))
    assert len(fast.shapewright_report.replaced) == 1
