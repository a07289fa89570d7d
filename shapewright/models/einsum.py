"""Products that are written as ``einsum``, as ``matmul``: PyTorch makes of them views that no pattern knows, so that
attention would be two products and a softmax, and a linear layer a product with a weight that is new at every call.

The product has the batch first, then what the left operand has alone, then what the right one has, or the other way
round if the output does, each in the order of the output: so PyTorch's own has them, and the result lies in memory as
its own.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any


def spelled_einsum(equation: str, tensors: Sequence[Any], *, path: Any = None) -> Any:
    """ATen's operator, as a product of matrices where ``einsum`` makes one of it."""
    import torch  # noqa: PLC0415 - for those who have a model of it

    product = einsum(equation, *tensors)
    return torch.ops.aten.einsum.default(equation, tensors, path=path) if product is NotImplemented else product


def einsum(*given: Any) -> Any:
    """The sum of products of two tensors; NotImplemented for other numbers of them, for letters that occur twice in
    one, are summed up in one alone or are missing, and for sizes that are broadcast or 1."""
    equation, *tensors = given
    tensors = list(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    letters = _letters(equation) if isinstance(equation, str) and len(tensors) == 2 else None
    if letters is None:
        return NotImplemented
    (x, y), (of_x, of_y, out) = tensors, letters
    if x.dim() != len(of_x) or y.dim() != len(of_y):
        return NotImplemented
    sizes = dict(zip(of_x, x.shape, strict=True))
    if any(sizes.get(letter, size) != size for letter, size in zip(of_y, y.shape, strict=True)):
        return NotImplemented
    sizes |= dict(zip(of_y, y.shape, strict=True))
    batch = [letter for letter in out if letter in of_x and letter in of_y]
    left, right = ([letter for letter in out if letter not in other] for other in (of_y, of_x))
    summed = [letter for letter in of_x if letter not in out]
    if not left or not right or not summed or {*summed} != {*of_y} - {*out}:
        return NotImplemented
    # To PyTorch an axis of size 1 is none: where it is not that of a batch, the result may lie otherwise.
    single = {letter for letter, size in sizes.items() if isinstance(size, int) and size == 1}
    is_turned = [letter for letter in out if letter not in batch] == right + left
    if not single <= {*batch} or (single and is_turned):
        return NotImplemented
    if is_turned:
        x, of_x, left, y, of_y, right = y, of_y, right, x, of_x, left
    product = _matrices(x, of_x, sizes, batch, left, summed) @ _matrices(y, of_y, sizes, batch, summed, right)
    made = [*batch, *left, *right]
    if len(left) > 1 or len(right) > 1:
        product = product.reshape([sizes[letter] for letter in made])
    return _permuted(product, [made.index(letter) for letter in out])


def _letters(equation: str) -> tuple[str, str, str] | None:
    """Those of two operands and of the output, each once."""
    inputs, arrow, out = equation.replace(" ", "").partition("->")
    operands = inputs.split(",")
    if len(operands) != 2 or not {*inputs, *out} <= {*string.ascii_letters, ","}:
        return None
    # Without an output it is of what occurs once, in the order of the alphabet.
    out = out if arrow else "".join(sorted(letter for letter in inputs if inputs.count(letter) == 1 and letter != ","))
    are_single = all(len({*each}) == len(each) for each in (*operands, out))
    return (*operands, out) if are_single and {*out} <= {*inputs} else None  # type: ignore[return-value]


def _matrices(
    tensor: Any, letters: str, sizes: dict[str, Any], batch: list[str], rows: list[str], columns: list[str]
) -> Any:  # fmt: skip
    """A tensor as [*batch, rows, columns]."""
    parts = _permuted(tensor, [letters.index(letter) for letter in (*batch, *rows, *columns)])
    if len(rows) == len(columns) == 1:
        return parts
    shape = [sizes[letter] for letter in batch]
    return parts.reshape([*shape, *(math.prod(sizes[letter] for letter in each) for each in (rows, columns))])


def _permuted(tensor: Any, order: list[int]) -> Any:
    return tensor if order == sorted(order) else tensor.permute(order)
