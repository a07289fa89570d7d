"""Decompositions of ATen's operators that are a few others: sums with a scaled product (BLOOM's scores), lengths of
vectors (cosine attention), norms of groups, pools of a given output, shuffles of pixels and channels.

What they become is lifted as any model's own. Where a decomposition would round otherwise than the operator, or its
result might lie otherwise in memory (channels last), it is not made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

EXACT = ("torch.float32", "torch.float64")


def spelled() -> dict[Any, Callable[..., Any]]:
    """The decompositions, by overload."""
    import torch  # noqa: PLC0415 - for those who have a model of it

    aten = torch.ops.aten
    return {
        aten.addmm.default: partial(_scaled_sum, aten.mm.default),
        aten.baddbmm.default: partial(_scaled_sum, aten.bmm.default),
        aten.addcmul.default: _sum_with_product,
        aten.linalg_vector_norm.default: _length,
        aten.native_group_norm.default: _group_norm,
        aten._native_batch_norm_legit.no_stats: _instance_norm,
        aten._adaptive_avg_pool2d.default: _adaptive_mean,
        aten.adaptive_max_pool2d.default: _adaptive_max,
        aten.glu.default: _glu,
        aten.pixel_shuffle.default: _pixel_shuffle,
        aten.channel_shuffle.default: _channel_shuffle,
    }


def _sum_with_product(added: Any, x: Any, y: Any, *, value: Any = 1) -> Any:
    """``added + value * x * y``; NotImplemented where rounding in between would show."""
    if not _are_exact(added, x, y):
        return NotImplemented
    return added + (x * y if _is(value, 1) else value * x * y)


def _length(x: Any, order: Any = 2, axes: Any = None, keep: bool = False, *, dtype: Any = None) -> Any:
    """The square root of the sum of squares along axes, all of them if ``axes`` is None; NotImplemented for other
    orders, and where rounding in between would show."""
    if not _is(order, 2) or dtype not in (None, x.dtype) or not _are_exact(x) or not x.dim():
        return NotImplemented
    return (x * x).sum(list(range(x.dim())) if axes is None else axes, keepdim=keep).sqrt()


def _scaled_sum(product: Callable[..., Any], added: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """``beta * added + alpha * product(x, y)``; NotImplemented where nothing is scaled, where the product is not read,
    and where rounding in between would show."""
    is_plain = _is(beta, 1) and _is(alpha, 1)
    if is_plain or _is(alpha, 0) or not _are_exact(x):
        return NotImplemented
    scaled = product(x, y) * alpha
    # The product first: the sum lies as it does. What is taken no times is not read, so NaN in it does not count.
    return scaled if _is(beta, 0) else scaled + added * beta


def _group_norm(
    x: Any, weight: Any, bias: Any, batch: Any, channels: Any, size: Any, groups: int, eps: float
) -> Any:  # fmt: skip
    """A norm of rows that have several axes, so that what each channel is scaled by has one of them."""
    import torch  # noqa: PLC0415

    if not _are_exact(x, weight, bias) or not x.is_contiguous():
        return NotImplemented
    parts = channels // groups
    rows = x.reshape(batch, groups, parts, size)
    value, *statistics = torch.ops.aten.native_layer_norm.default(rows, [parts, size], None, None, eps)
    value = value if weight is None else value * weight.view(groups, parts, 1)
    value = value if bias is None else value + bias.view(groups, parts, 1)
    return value.reshape(x.shape), *(each.reshape(batch, groups) for each in statistics)


def _instance_norm(x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Any:
    """A norm of each channel of one row, as which PyTorch has instance norms; NotImplemented for several rows."""
    import torch  # noqa: PLC0415

    is_one_row = isinstance(x.shape[0], int) and x.shape[0] == 1 and x.dim() > 2 and x.is_contiguous()
    if not training or not is_one_row or not _are_exact(x, weight, bias):
        return NotImplemented
    value, *statistics = torch.ops.aten.native_layer_norm.default(x, list(x.shape[2:]), None, None, eps)
    along = (-1, *[1] * (x.dim() - 2))
    value = value if weight is None else value * weight.view(along)
    value = value if bias is None else value + bias.view(along)
    return value, *(each.flatten() for each in statistics)


def _adaptive_mean(x: Any, size: Any) -> Any:
    import torch  # noqa: PLC0415

    window = _window(x, size)
    return NotImplemented if window is None else torch.ops.aten.avg_pool2d.default(x, window, window)


def _adaptive_max(x: Any, size: Any) -> Any:
    import torch  # noqa: PLC0415

    window = _window(x, size)
    if window is None or not x.is_contiguous():
        return NotImplemented
    value, places = torch.ops.aten.max_pool2d_with_indices.default(x, window, window)
    return (x.amax((-2, -1), keepdim=True) if [*size] == [1, 1] else value), places


def _window(x: Any, size: Any) -> list[int] | None:
    """The window of a pool whose output is of a given size, which it moves by; None where windows differ, or may."""
    given = [*zip(x.shape[-2:], size, strict=True)]
    if not all(isinstance(whole, int) and part and whole % part == 0 for whole, part in given):
        return None
    return [whole // part for whole, part in given]


def _glu(x: Any, axis: int = -1) -> Any:
    """One half of an axis, by the sigmoid of the other; NotImplemented where rounding in between would show."""
    if not _are_exact(x):
        return NotImplemented
    value, gate = x.split(x.shape[axis] // 2, axis)
    return value * gate.sigmoid()


def _pixel_shuffle(x: Any, factor: int) -> Any:
    if not x.is_contiguous():
        return NotImplemented
    *batch, channels, height, width = x.shape
    kept, rank = channels // (factor * factor), len(batch)
    parts = x.reshape(*batch, kept, factor, factor, height, width)
    order = [*range(rank), rank, rank + 3, rank + 1, rank + 4, rank + 2]
    return parts.permute(order).reshape(*batch, kept, height * factor, width * factor)


def _channel_shuffle(x: Any, groups: int) -> Any:
    if not x.is_contiguous():
        return NotImplemented
    batch, channels, *size = x.shape
    return x.reshape(batch, groups, channels // groups, *size).transpose(1, 2).reshape(x.shape)


def _are_exact(*tensors: Any) -> bool:
    """Whether values in between are rounded as the operator's own would be."""
    return all(each is None or str(each.dtype) in EXACT for each in tensors)


def _is(number: Any, value: int) -> bool:
    return isinstance(number, int | float) and number == value
