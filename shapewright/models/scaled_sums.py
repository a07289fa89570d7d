"""Decompositions of ATen's sums of a product and something else where either is scaled: BLOOM's scores."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any


def scaled_sums() -> dict[Any, Callable[..., Any]]:
    """Decompositions of the scaled sums, by overload."""
    import torch  # noqa: PLC0415 - for those who have a model of it

    aten = torch.ops.aten
    return {
        aten.addmm.default: partial(_scaled_sum, aten.mm.default),
        aten.baddbmm.default: partial(_scaled_sum, aten.bmm.default),
    }


def _scaled_sum(product: Callable[..., Any], added: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """``beta * added + alpha * product(x, y)``; NotImplemented where nothing is scaled, where the product is not read,
    and where rounding in between would show."""
    is_plain = _is(beta, 1) and _is(alpha, 1)
    if is_plain or _is(alpha, 0) or str(x.dtype) not in ("torch.float32", "torch.float64"):
        return NotImplemented
    scaled = product(x, y) * alpha
    # The product first: the sum lies as it does. What is taken no times is not read, so NaN in it does not count.
    return scaled if _is(beta, 0) else scaled + added * beta


def _is(number: Any, value: int) -> bool:
    return isinstance(number, int | float) and number == value
