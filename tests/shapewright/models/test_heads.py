"""Attention reads heads where one product has put them side by side, however a model takes them apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from shapewright.models.lifted import LiftedOp
from tests.shapewright.models.checking import check_values, exported, lifted, lifting_of
from tests.shares import chosen, every

HEADS, SIZE = 4, 8
WIDTH = HEADS * SIZE
BATCH, LENGTH = Dim("batch", min=1, max=4), Dim("length", min=1, max=32)
Parts = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


def _heads(x: Tensor, size: int = SIZE) -> Tensor:
    return x.view(x.shape[0], x.shape[1], -1, size).transpose(1, 2)


def _split(y: Tensor) -> Any:
    return tuple(map(_heads, y.split(WIDTH, -1)))


def _uneven(y: Tensor) -> Any:
    return tuple(map(_heads, y.split([WIDTH, WIDTH, WIDTH], -1)))


def _sliced(y: Tensor) -> Any:
    return tuple(map(_heads, (y[..., :WIDTH], y[..., WIDTH:-WIDTH], y[..., -WIDTH:])))


def _unbound(y: Tensor) -> Any:
    return y.reshape(*y.shape[:2], 3, HEADS, SIZE).permute(2, 0, 3, 1, 4).unbind(0)


def _selected(y: Tensor) -> Any:
    y = y.view(*y.shape[:2], 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)
    return y[0], y[1], y[-1]


def _interleaved(y: Tensor) -> Any:
    return tuple(each.transpose(1, 2) for each in y.view(*y.shape[:2], HEADS, 3, SIZE).unbind(3))


def _in_heads(y: Tensor) -> Any:
    return _heads(y, 3 * SIZE).chunk(3, -1)


def _copied(y: Tensor) -> Any:
    parts = y.unflatten(-1, (3, WIDTH)).unsqueeze(0).transpose(0, -2).squeeze(-2).contiguous()
    return _heads(parts[0]), _heads(parts[1]), _heads(parts[2])


FORMS: dict[str, tuple[Parts, tuple[str, str, str]]] = {
    "split": (_split, ("h", "h + 4", "h + 8")),
    "split by sizes": (_uneven, ("h", "h + 4", "h + 8")),
    "slices": (_sliced, ("h", "h + 4", "h + 8")),
    "unbound": (_unbound, ("h", "h + 4", "h + 8")),
    "selected": (_selected, ("h", "h + 4", "h + 8")),
    "interleaved": (_interleaved, ("3 * h", "3 * h + 1", "3 * h + 2")),
    "chunks of heads": (_in_heads, ("3 * h", "3 * h + 1", "3 * h + 2")),
    "copied in another order": (_copied, ("h", "h + 4", "h + 8")),
}


class Joined(nn.Module):  # type: ignore[misc]
    def __init__(self, parts: Callable[..., Any], width: int = 3 * WIDTH, **attention: Any) -> None:
        super().__init__()
        self.parts, self.joined, self.attention = parts, nn.Linear(WIDTH, width), attention

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(self.joined(x))
        return functional.scaled_dot_product_attention(q, k, v, **self.attention).transpose(1, 2).flatten(2)


def attention_of(model: nn.Module, *shapes: tuple[int, ...], is_dynamic: bool = True) -> LiftedOp:
    """The one attention that a model is lifted to, its values checked."""
    dims = {0: BATCH, 1: LENGTH} if is_dynamic else {}
    torch.manual_seed(0)
    program = exported(model, [torch.randn(shape) for shape in shapes], tuple(dims for _ in shapes))
    lifting = lifting_of(program)
    for batch, length in ((1, 1), (3, 7)) if is_dynamic else (shapes[0][:2],):
        check_values(program, lifting, [torch.randn(batch, length, *shape[2:]) for shape in shapes])
    assert not lifting.left
    (found,) = (op for op in lifting.ops if op.workload.label.startswith("attention"))
    return found


@pytest.mark.parametrize("name", chosen(["split", "unbound", "interleaved"], FORMS))
def test_heads_of_one_product_are_read_where_they_lie(name: str) -> None:
    parts, read = FORMS[name]
    op = attention_of(Joined(parts, is_causal=True), (2, 5, WIDTH))
    (operand,) = op.operands
    assert operand.split == SIZE
    for each in read:
        assert f", {each}, d]" in str(op.workload.program)


def test_models_that_take_heads_apart_otherwise_have_one_workload() -> None:
    keys = {attention_of(Joined(FORMS[name][0]), (2, 5, WIDTH)).workload.key for name in ("split", "unbound", "slices")}
    assert len(keys) == 1


@pytest.mark.parametrize("shape", every(3, [(1, 5, WIDTH), (2, 5, WIDTH), (1, 1, WIDTH)]))
def test_fixed_sizes_read_alike(shape: tuple[int, ...]) -> None:
    """What has a batch of 1 for good is a program that a library of any batch has."""
    for parts in (_split, _unbound):
        fixed = attention_of(Joined(parts), shape, is_dynamic=False)
        moving = attention_of(Joined(parts), (2, 5, WIDTH))
        assert str(fixed.workload.program) == str(moving.workload.program)


def test_heads_of_keys_that_several_queries_share() -> None:
    def parts(y: Tensor) -> Any:
        q, k, v = map(_heads, y.split([WIDTH, WIDTH // 2, WIDTH // 2], -1))
        return q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)

    def repeated(y: Tensor) -> Any:
        q, *rest = map(_heads, y.split([WIDTH, WIDTH // 2, WIDTH // 2], -1))
        copies = (each[:, :, None].expand(-1, -1, 2, -1, -1) for each in rest)
        return q, *(each.reshape(each.shape[0], HEADS, -1, SIZE) for each in copies)

    for each in (parts, repeated):
        op = attention_of(Joined(each, 2 * WIDTH), (2, 5, WIDTH))
        text = str(op.workload.program)
        assert "h // 2 + 4, d]" in text
        assert "h // 2 + 6, d]" in text


def test_values_of_another_width_than_keys() -> None:
    """Beside the keys of each head (LeViT), and as tensors of their own, masked and not (MLA, EfficientFormer)."""

    def per_head(y: Tensor) -> Any:
        return y.view(*y.shape[:2], HEADS, 4 * SIZE).transpose(1, 2).split([SIZE, SIZE, 2 * SIZE], -1)

    op = attention_of(Joined(per_head, 4 * WIDTH), (2, 5, WIDTH))
    assert [operand.split for operand in op.operands] == [SIZE, 2 * SIZE]
    text = str(op.workload.program)
    assert "4 * h + 1, d]" in text
    assert "2 * h + 1, c]" in text

    def spelled(y: Tensor) -> Any:
        q, k, v = (each.unflatten(-1, (HEADS, -1)) for each in y.split([WIDTH, WIDTH, 2 * WIDTH], -1))
        weights = torch.softmax(q.transpose(1, 2) @ k.permute(0, 2, 3, 1) * SIZE**-0.5, -1)
        return (weights @ v.transpose(1, 2)).transpose(1, 2).flatten(2)

    class Spelled(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.joined = nn.Linear(WIDTH, 4 * WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return spelled(self.joined(x))

    assert "h + 4, c]" in str(attention_of(Spelled(), (2, 5, WIDTH)).workload.program)
    q, v, mask = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 4), torch.randn(5, 5)
    found = lifted(functional.scaled_dot_product_attention, q, q, v, mask, rows=3)
    assert [op.workload.program.stage["out"].axes for op in found.ops] == [("b", "h", "i", "c")]


def test_keys_and_values_of_another_product() -> None:
    class Cross(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.q, self.joined = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            k, v = map(_heads, self.joined(y).chunk(2, -1))
            return functional.scaled_dot_product_attention(_heads(self.q(x)), k, v).transpose(1, 2).flatten(2)

    op = attention_of(Cross(), (2, 5, WIDTH), (2, 5, WIDTH))
    q, kv = op.operands
    assert (q.split, kv.split) == (0, SIZE)


def test_values_alone_in_a_wider_product() -> None:
    """Queries and keys are turned on the way: only what is read as it lies is."""

    def parts(y: Tensor) -> Any:
        q, k, v = map(_heads, y.split(WIDTH, -1))
        return torch.cumsum(q, -1), torch.cumsum(k, -1), v

    torch.manual_seed(0)
    program = exported(Joined(parts), (torch.randn(2, 5, WIDTH),), ({0: BATCH, 1: LENGTH},))
    lifting = lifting_of(program)
    check_values(program, lifting, (torch.randn(3, 7, WIDTH),))
    op = next(op for op in lifting.ops if op.workload.label.startswith("attention"))
    assert [operand.split for operand in op.operands] == [0, 0, SIZE]
    assert [dim.constant for dim in op.workload.inputs[2].dims[2:]] == [3 * HEADS, SIZE]


ELSEWHERE: dict[str, Parts] = {
    "not at a head's begin": lambda y: tuple(map(_heads, (y[..., 1 : WIDTH + 1], y[..., :WIDTH], y[..., :WIDTH]))),
    "every other element": lambda y: tuple(map(_heads, (y[..., : 2 * WIDTH : 2], y[..., :WIDTH], y[..., :WIDTH]))),
    "elements before heads": lambda y: (
        y[..., :WIDTH].reshape(*y.shape[:2], SIZE, HEADS).permute(0, 3, 1, 2),
        *map(_heads, (y[..., :WIDTH], y[..., :WIDTH])),
    ),
}


@pytest.mark.parametrize("name", chosen(["every other element"], ELSEWHERE))
def test_what_lies_otherwise_is_read_as_a_value_of_its_own(name: str) -> None:
    op = attention_of(Joined(ELSEWHERE[name]), (2, 5, WIDTH))
    q, *rest = op.operands
    assert q.split == 0
    assert {operand.split for operand in rest} == {SIZE}
