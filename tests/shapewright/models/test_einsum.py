"""``einsum`` as products of matrices: values, and how they lie in memory, beside PyTorch's own."""

from __future__ import annotations

import random

import torch

from shapewright.models.einsum import einsum


def _equation(chosen: random.Random) -> tuple[str, torch.Tensor, torch.Tensor] | None:
    """Letters of the batch, of the left operand, of the right one, and summed ones, in any order."""
    letters = "abcdef"[: chosen.randint(2, 6)]
    kinds = {letter: chosen.choice("BLRS") for letter in letters}
    sizes = {letter: chosen.choice([1, 2, 3, 4]) for letter in letters}
    x, y, out = ([letter for letter in letters if kinds[letter] in own] for own in ("BLS", "BRS", "BLR"))
    for each in (x, y, out):
        chosen.shuffle(each)
    if not x or not y:
        return None
    tensors = [torch.randn([sizes[letter] for letter in own]) for own in (x, y)]
    turned = [each.transpose(0, -1).contiguous().transpose(0, -1) for each in tensors]
    x_tensor, y_tensor = (chosen.choice(pair) for pair in zip(tensors, turned, strict=True))
    return f"{''.join(x)},{''.join(y)}->{''.join(out)}", x_tensor, y_tensor


def test_any_product_of_two_tensors() -> None:
    torch.manual_seed(0)
    chosen, compared = random.Random(0), 0
    for equation, x, y in filter(None, (_equation(chosen) for _ in range(6000))):
        found, right = einsum(equation, x, y), torch.einsum(equation, x, y)
        if found is NotImplemented:
            continue
        compared += 1
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4, msg=equation)
        strides = [
            [step for step, size in zip(each.stride(), each.shape, strict=True) if size > 1] for each in (found, right)
        ]
        assert strides[0] == strides[1], equation
    assert compared > 200
