"""Rotary embeddings, as models spell them out: one program, from where a product has put the heads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import shapewright as sw
from shapewright.models.lifted import Lifting
from tests.shapewright.models.checking import TARGET, check_values, exported, labels, lifting_of
from tests.shapewright.models.test_heads import BATCH, HEADS, LENGTH, SIZE, WIDTH
from tests.shapewright.models.test_onnx import converted
from tests.shares import every

DIMS = {0: BATCH, 1: LENGTH}


def half_turned(x: Tensor) -> Tensor:
    lower, upper = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-upper, lower), -1)


def chunked(x: Tensor) -> Tensor:
    lower, upper = x.chunk(2, -1)
    return torch.cat((-upper, lower), -1)


class Turned(nn.Module):  # type: ignore[misc]
    """Queries and keys of one product; ``joined`` ones are split of it. With ``whole`` all
    keys are selected, as a cache does it."""

    def __init__(
        self,
        half: Callable[[Tensor], Tensor] = half_turned,
        keys: int = HEADS,
        joined: bool = False,
        whole: bool = False,
    ) -> None:
        super().__init__()
        sizes = [WIDTH, keys * SIZE, keys * SIZE]
        self.half, self.keys, self.sizes, self.joined, self.whole = half, keys, sizes, joined, whole
        self.layers = nn.ModuleList(nn.Linear(WIDTH, size) for size in ([sum(sizes)] if joined else sizes))
        self.register_buffer("rates", 1.0 / 100.0 ** (torch.arange(0, SIZE, 2).float() / SIZE))

    def angles(self, length: int) -> tuple[Tensor, Tensor]:
        angles = torch.arange(length).float()[:, None] * self.rates
        both = torch.cat((angles, angles), -1)
        return both.cos(), both.sin()

    def forward(self, x: Tensor) -> Tensor:
        cos, sin = self.angles(x.shape[1])
        parts = self.layers[0](x).split(self.sizes, -1) if self.joined else [layer(x) for layer in self.layers]
        q, k, v = (each.view(*x.shape[:2], -1, SIZE).transpose(1, 2) for each in parts)
        q, k = (each * cos + self.half(each) * sin for each in (q, k))
        if self.whole:
            k = torch.ops.aten.slice.Tensor(k, 2, 0, 2**63 - 1)
        if self.keys < HEADS:
            copies = (each[:, :, None].expand(-1, -1, HEADS // self.keys, -1, -1) for each in (k, v))
            k, v = (each.reshape(x.shape[0], HEADS, -1, SIZE) for each in copies)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).flatten(2)


def lifting_at(model: nn.Module) -> Lifting:
    torch.manual_seed(0)
    program = exported(model, (torch.randn(2, 5, WIDTH),), (DIMS,))
    lifting = lifting_of(program)
    for batch, length in ((1, 1), (3, 7)):
        check_values(program, lifting, (torch.randn(batch, length, WIDTH),))
    return lifting


def text_of(lifting: Lifting, label: str) -> list[str]:
    return [str(op.workload.program) for op in lifting.ops if op.workload.label.startswith(label)]


@pytest.mark.parametrize("half", every(2, [half_turned, chunked]))
def test_heads_are_turned_where_a_product_has_put_them(half: Callable[[Tensor], Tensor]) -> None:
    lifting = lifting_at(Turned(half))
    assert labels(lifting).count("rotary") == 2
    first, second = text_of(lifting, "rotary")
    assert first == second
    assert first.startswith("out[b, h, i, d] = x[b, i, h, d] * cosine[i, d]")
    assert not {"neg", "add"} & {left.op for left in lifting.left}


def test_heads_of_one_product_are_turned_where_they_lie() -> None:
    lifting = lifting_at(Turned(keys=HEADS // 2, joined=True))
    q, k = text_of(lifting, "rotary")
    assert "x[b, i, h, d] * cosine[i, d]" in q
    assert "x[b, i, h + 4, d] * cosine[i, d]" in k
    (attention,) = text_of(lifting, "attention")
    assert "q[b, h, i, d] * k[b, h // 2, j, d]" in attention
    assert "h // 2 + 6, d]" in attention


def test_what_is_the_same_as_a_turn_is_no_turn() -> None:
    assert labels(lifting_at(Turned(whole=True))) == labels(lifting_at(Turned()))


def test_halves_that_were_joined_are_turned() -> None:
    class Joined(nn.Module):  # type: ignore[misc]
        def forward(self, x: Tensor, y: Tensor, angles: Tensor) -> Tensor:
            cos, sin = (torch.cat((each, each), -1) for each in (angles.cos(), angles.sin()))
            heads = torch.cat((x, y), -1)
            return heads * cos + half_turned(heads) * sin

    example = torch.randn(2, HEADS, 5, SIZE // 2), torch.randn(2, HEADS, 5, SIZE // 2), torch.randn(5, SIZE // 2)
    program = exported(Joined(), example, None)
    lifting = lifting_of(program)
    check_values(program, lifting, example)
    assert "rotary" in labels(lifting)


OTHERS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "the halves in their order": lambda x, c, s: x * c + torch.cat((-x[..., :4], x[..., 4:]), -1) * s,
    "the wrong half is negative": lambda x, c, s: x * c + torch.cat((x[..., 4:], -x[..., :4]), -1) * s,
    "what was turned, the halves in their order": lambda x, c, s: (
        (y := half_turned(x)) * c + torch.cat((-y[..., :4], y[..., 4:]), -1) * s
    ),
    "uneven parts": lambda x, c, s: x * c + torch.cat((-x[..., 2:], x[..., :2]), -1) * s,
    "of another value": lambda x, c, s: x * c + torch.cat((-x.exp()[..., 4:], x.exp()[..., :4]), -1) * s,
    "along another axis": lambda x, c, s: x * c + torch.cat((-x[:, 2:], x[:, :2]), 1) * s,
    "an angle for each head": lambda x, c, s: x * (c[:, :1] * x[0, :, :1, :1]) + half_turned(x) * s,
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_turn_is_left(name: str) -> None:
    class Other(nn.Module):  # type: ignore[misc]
        def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            heads = x.view(*x.shape[:2], HEADS, SIZE).transpose(1, 2)
            return OTHERS[name](heads, cos, sin)

    example = torch.randn(2, 5, WIDTH), torch.randn(5, SIZE), torch.randn(5, SIZE)
    program = exported(Other(), example, (DIMS, {0: LENGTH}, {0: LENGTH}))
    lifting = lifting_of(program)
    check_values(program, lifting, (torch.randn(3, 7, WIDTH), torch.randn(7, SIZE), torch.randn(7, SIZE)))
    assert "rotary" not in labels(lifting)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    class Alone(nn.Module):  # type: ignore[misc]
        def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            return x * cos + half_turned(x) * sin

    shapes = (2, HEADS, 5, SIZE), (2, 1, 5, SIZE), (2, 1, 5, SIZE)
    example = [torch.randn(shape, dtype=dtype) for shape in shapes]
    program = exported(Alone(), example, ({2: LENGTH}, {2: LENGTH}, {2: LENGTH}))
    lifting = lifting_of(program)
    found = labels(lifting)
    assert found == (["rotary"] if dtype is torch.bfloat16 else []), "programs are of floats of up to 32 bits"


def test_onnx_has_the_workload_of_pytorch() -> None:
    class Alone(nn.Module):  # type: ignore[misc]
        def forward(self, given: Tensor) -> Tensor:
            x, cos, sin = given[:, :HEADS], given[:, HEADS : HEADS + 1], given[:, HEADS + 1 :]
            return x * cos + torch.cat((-x[..., SIZE // 2 :], x[..., : SIZE // 2]), -1) * sin

    model, example = Alone().eval(), torch.randn(2, HEADS + 2, 5, SIZE)
    (own,) = sw.extract(model, (example,), ({0: BATCH, 2: LENGTH},), target=TARGET)
    proto = converted(model, example, "given", {0: "batch", 2: "length"})
    (found,) = sw.extract(proto, shape_vars={"batch": range(1, 5), "length": range(1, 33)}, target=TARGET)
    assert own.workload.key == found.workload.key
    assert str(own.workload).startswith("rotary")
