"""torch.ops.shapewright.call: fake tensors, views, constants that change, strides, threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad
from torch.nn import functional

import shapewright as sw
from shapewright.torch.op import call, prepared
from shapewright.torch.plan import Plan, Taken, plan_of
from tests.shapewright.torch.models import WIDTH, close
from tuner.errors import InvalidInput, ShapewrightError

ROWS = ((0, 1), (2,))
WHOLE = ((0,), (1,))


@pytest.fixture
def square(libraries: Path) -> str:
    """The digest of out[m, n] = x[m, k] . w[n, k]^T + bias[n]."""
    from shapewright.sources.libraries import load_library  # noqa: PLC0415

    return load_library(libraries / "square").digest


def plan(digest: str, x: tuple[tuple[int, ...], ...] = WHOLE, out: tuple[tuple[int, ...], ...] | None = None) -> str:
    operands = (Taken((0,), x), Taken((1,), WHOLE, packed=True), Taken((2,), ((0,),)))
    return Plan(digest, operands, out or x, "float32").text()


def weights() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(WIDTH, WIDTH), torch.randn(WIDTH)


def test_pytorchs_own_checks_of_an_operator_pass(square: str) -> None:
    weight, bias = weights()
    for x, text, sizes in (
        (torch.randn(5, WIDTH), plan(square), [5, WIDTH]),
        (torch.randn(2, 3, WIDTH), plan(square, ROWS), [2, 3, WIDTH]),
        (torch.randn(5, WIDTH), plan(square, WHOLE, ((1,), (0,))), [WIDTH, 5]),
    ):
        result = torch.library.opcheck(call, ([x, weight, bias], sizes, text))
        assert set(result.values()) == {"SUCCESS"}


@settings(max_examples=20)
@given(st.integers(0, 4), st.integers(0, 9), st.booleans(), st.booleans())
def test_any_size_and_order_of_axes_is_right(batch: int, length: int, is_turned: bool, turns_out: bool) -> None:
    (digest,) = list(_digests)
    weight, bias = weights()
    x = torch.randn(length, batch, WIDTH) if is_turned else torch.randn(batch, length, WIDTH)
    view = ((1, 0), (2,)) if is_turned else ROWS
    out = ((1, 0), (2,)) if turns_out else ROWS
    sizes = [length, batch, WIDTH] if turns_out else [batch, length, WIDTH]
    ours = call([x, weight, bias], sizes, plan(digest, view, out))
    expected = functional.linear(x.transpose(0, 1) if is_turned else x, weight, bias)
    assert close(ours, expected.transpose(0, 1) if turns_out else expected)


_digests: list[str] = []


@pytest.fixture(autouse=True)
def _digest(square: str) -> None:
    """Hypothesis runs many examples in one test, which takes no fixtures of a function."""
    _digests[:] = [square]


def test_a_weight_that_changes_is_packed_again(square: str) -> None:
    layer, x, text = torch.nn.Linear(WIDTH, WIDTH), torch.randn(3, WIDTH), plan(square)

    def is_right() -> bool:
        with torch.no_grad():
            return close(call([x, layer.weight, layer.bias], [3, WIDTH], text), layer(x))

    assert is_right()
    with torch.no_grad():
        layer.weight.mul_(2.0)
    assert is_right()
    layer.load_state_dict(torch.nn.Linear(WIDTH, WIDTH).state_dict())
    assert is_right()
    for _ in range(5):
        # Memory that is given back may be used for the next one.
        layer.weight.data = torch.randn(WIDTH, WIDTH)
        layer.weight.data = torch.randn(WIDTH, WIDTH)
        assert is_right()
    layer.weight.data = layer.weight.data.t()
    assert is_right()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    layer(x).sum().backward()
    optimizer.step()
    assert is_right()


def test_a_change_that_pytorch_does_not_count_is_seen_after_forget(square: str) -> None:
    (weight, bias), x, text = weights(), torch.randn(3, WIDTH), plan(square)
    before = call([x, weight, bias], [3, WIDTH], text)
    weight.numpy()[...] *= 2.0
    assert close(call([x, weight, bias], [3, WIDTH], text), before)
    sw.torch.forget()
    assert close(call([x, weight, bias], [3, WIDTH], text), functional.linear(x, weight, bias))


def test_weights_of_inference_mode_have_no_version_and_are_packed_at_every_call(square: str) -> None:
    with torch.inference_mode():
        (weight, bias), x, text = weights(), torch.randn(3, WIDTH), plan(square)
        for _ in range(2):
            assert close(call([x, weight, bias], [3, WIDTH], text), functional.linear(x, weight, bias))
            weight.add_(1.0)


_DERIVATIVES: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "backward": lambda f, x: f(x.clone().requires_grad_()).sum().backward(),
    "autograd.grad": torch.autograd.functional.jacobian,
    "func.grad": lambda f, x: torch.func.grad(lambda z: f(z).sum())(x),
    "vjp": lambda f, x: torch.func.vjp(f, x)[1](x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,)),
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "hessian": lambda f, x: torch.func.hessian(lambda z: f(z).sum())(x),
    "linearize": torch.func.linearize,
    "vmap of grad": lambda f, x: torch.func.vmap(torch.func.grad(lambda z: f(z[None]).sum()))(x),
    "grad of vmap": lambda f, x: torch.func.grad(lambda y: torch.func.vmap(lambda z: f(z[None]))(y).sum())(x),
}


def _dual(f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        return f(forward_ad.make_dual(x, x))


@pytest.mark.parametrize("is_recording", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("name", [*_DERIVATIVES, "dual tensors"])
def test_who_asks_for_a_derivative_is_refused(square: str, name: str, is_recording: bool) -> None:
    (weight, bias), text = weights(), plan(square)
    if not is_recording and name in ("backward", "autograd.grad"):
        with torch.no_grad():
            assert not call([torch.ones(3, WIDTH, requires_grad=True), weight, bias], [3, WIDTH], text).requires_grad
        return
    derivative = _DERIVATIVES.get(name, _dual)
    with torch.set_grad_enabled(is_recording), pytest.raises(RuntimeError, match=r"no derivative.*torch\.no_grad"):
        derivative(lambda x: call([x, weight, bias], [x.shape[0], WIDTH], text), torch.randn(3, WIDTH))  # type: ignore[no-untyped-call]


def test_a_weights_derivative_is_refused_too_and_only_when_backward_runs(square: str) -> None:
    layer, x, text = torch.nn.Linear(WIDTH, WIDTH), torch.randn(3, WIDTH), plan(square)
    ours = call([x, layer.weight, layer.bias], [3, WIDTH], text)
    assert ours.requires_grad
    assert close(ours, layer(x))
    with pytest.raises(RuntimeError, match="no derivative"):
        ours.sum().backward()


def test_compiled_code_refuses_when_its_backward_runs(square: str) -> None:
    (weight, bias), text = weights(), plan(square)
    fast = torch.compile(lambda x: call([x, weight, bias], [3, WIDTH], text), backend="aot_eager")
    x = torch.randn(3, WIDTH, requires_grad=True)
    ours = fast(x)
    assert close(ours, functional.linear(x, weight, bias))
    with pytest.raises(RuntimeError, match="no derivative"):
        ours.sum().backward()


def test_what_is_differentiated_past_the_call_has_its_derivative(square: str) -> None:
    (weight, bias), x, text = weights(), torch.randn(3, WIDTH), plan(square)
    expected = functional.linear(x, weight, bias)

    def f(z: torch.Tensor) -> torch.Tensor:
        return call([x, weight, bias], [3, WIDTH], text) * z

    assert close(torch.func.grad(lambda z: f(z).sum())(x), expected)
    assert close(torch.func.jvp(f, (x,), (x,))[1], expected * x)


def test_vmap_calls_once_for_each_sample(square: str) -> None:
    (weight, bias), x, text = weights(), torch.randn(4, 3, WIDTH), plan(square)

    def f(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return call([x, weight, bias], [3, WIDTH], text)

    stacked = torch.stack([weight * i for i in range(4)])
    assert close(torch.func.vmap(f, (0, None))(x, weight), functional.linear(x, weight, bias))
    turned = torch.func.vmap(f, (1, 0))(x.transpose(0, 1), stacked)
    assert close(turned, torch.stack([functional.linear(a, b, bias) for a, b in zip(x, stacked, strict=True)]))
    nested = torch.func.vmap(torch.func.vmap(f, (0, None)), (0, None))(x[None], weight)
    assert close(nested, functional.linear(x, weight, bias)[None])


def test_results_are_made_on_the_cpu_whatever_the_default_device_and_may_be_written_to(square: str) -> None:
    (weight, bias), x = weights(), torch.randn(5, WIDTH)
    expected = functional.linear(x, weight, bias)
    for out in (WHOLE, ((1,), (0,))):
        sizes = [5, WIDTH] if out is WHOLE else [WIDTH, 5]
        with torch.no_grad(), torch.device("meta"):
            ours = call([x, weight, bias], sizes, plan(square, WHOLE, out))
        assert close(ours if out is WHOLE else ours.t(), expected)
        ours.mul_(torch.ones((), requires_grad=True))
        assert ours.requires_grad


def test_what_was_packed_goes_with_its_weight(square: str) -> None:
    from shapewright.torch import plan as plans  # noqa: PLC0415

    sw.torch.forget()
    x, text = torch.randn(3, WIDTH), plan(square)
    for _ in range(10):
        weight, bias = weights()
        call([x, weight, bias], [3, WIDTH], text)
        del weight, bias
    # The entry of the last weight goes when the next one is packed.
    assert sum(len(packs) for packs in plans._shared.values()) <= 2


def test_strided_operands_are_copied_and_counted(square: str) -> None:
    (weight, bias), text = weights(), plan(square)
    wide = torch.randn(5, 2 * WIDTH)
    before = prepared(text).copies.get("x", 0)
    ours = call([wide[:, ::2], weight, bias], [5, WIDTH], text)
    assert close(ours, functional.linear(wide[:, ::2], weight, bias))
    call([wide[:, :WIDTH].contiguous(), weight, bias], [5, WIDTH], text)
    assert prepared(text).copies["x"] == before + 1


def test_several_threads_may_call_at_once(square: str) -> None:
    (weight, bias), text, wrong = weights(), plan(square), []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for rows in range(1, 40):
            x = torch.randn(rows, WIDTH, generator=generator)
            if not close(call([x, weight, bias], [rows, WIDTH], text), functional.linear(x, weight, bias)):
                wrong.append((seed, rows))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_a_library_that_is_not_at_hand_is_named_with_the_remedy() -> None:
    weight, bias = weights()
    with pytest.raises(ShapewrightError, match=r"needs the library 0000.*sw\.torch\.provide"):
        call([torch.randn(1, WIDTH), weight, bias], [1, WIDTH], plan("0" * 64))


@pytest.mark.parametrize("text", ["", "{}", '{"library": "a"}', "[1]"])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="plan"):
        plan_of(text)
