"""Packed layouts in C, as statements that write the same elements to the same places as ``Layout.pack``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner.errors import ShapewrightError
from tuner.program.dims import DimExpr
from tuner.program.dtypes import DTYPES
from tuner.program.workload import Tensor
from tuner.schedule.layout import CutLayout, Layout, MatrixLayout, PanelLayout, WinogradLayout

Text = Callable[[DimExpr | int], str]
"""Writes a size as an expression of C."""
MAX_PARTS = 16
ZERO = DimExpr.of(0)


@dataclass(frozen=True, slots=True)
class _Dim:
    """A dim of the source, or of a part that is cut out of it: ``stride`` in elements, ``first`` is where it begins."""

    size: DimExpr
    stride: DimExpr
    first: DimExpr = ZERO


def packs(layout: Layout, tensor: Tensor, parameter: str, text: Text) -> str:
    """The statements that pack ``parameter``, which has the elements of a constant, into ``packed``."""
    if isinstance(layout, WinogradLayout):
        return f"  sw_filter(&(const sw_taps){_taps(layout, text)}, {parameter}, packed);"
    dtype = DTYPES[tensor.dtype]
    matrices = ",\n    ".join(matrices_of(layout, tensor.dims, text))
    return (
        f"  const sw_matrices sw_list[] = {{\n    {matrices}}};\n"
        "  for (size_t i = 0; i < sizeof sw_list / sizeof *sw_list; i++)\n"
        f"    sw_pack(&sw_list[i], (const char *){parameter}, packed, {dtype.bytes}, {int(dtype.kind == 'i')});"
    )


def _taps(layout: WinogradLayout, text: Text) -> str:
    kernels, channels, *_ = (layout.sizes[dim] for dim in layout.order)
    strides = ", ".join(text(math.prod(layout.sizes[dim + 1 :])) for dim in layout.order)
    return f"{{{text(kernels)}, {text(channels)}, {text(layout.packed_shape(layout.sizes)[1])}, {{{strides}}}}}"


def matrices_of(layout: Layout, dims: Sequence[DimExpr], text: Text) -> list[str]:
    """The initializers of all matrices that ``layout`` makes of a tensor of these dims."""
    strides = [math.prod(dims[axis + 1 :], start=DimExpr.of(1)) for axis in range(len(dims))]
    whole = [_Dim(size, stride) for size, stride in zip(dims, strides, strict=True)]
    match layout:
        case PanelLayout():
            rows, steps = whole
            words = layout.packed_shape((rows.size, steps.size))[1]
            indices = _index((), text), _index((rows,), text), _index((steps,), text)
            return [_matrices(indices, layout, DimExpr.of(words), DimExpr.of(0), 0, text)]
        case MatrixLayout():
            return [_of_parts(layout, whole, 0, text)]
        case CutLayout():
            return [_cut(layout, number, whole, text) for number in range(len(layout.parts))]
        case _:
            raise ShapewrightError(f"constants that are packed as {type(layout).__name__} have no form in C yet")


def _cut(layout: CutLayout, number: int, whole: Sequence[_Dim], text: Text) -> str:
    taken, part = layout.parts[number]
    dims = list(whole)
    for axis, *indices in taken:
        kept, dim = range(*indices), dims[axis]
        dims[axis] = _Dim(DimExpr.of(len(kept)), dim.stride * indices[2], dim.stride * indices[0])
    return _of_parts(part, dims, layout.first(number), text)


def _of_parts(layout: MatrixLayout, dims: Sequence[_Dim], to: int, text: Text) -> str:
    parts: list[_Dim] = []
    for sizes, dim in zip(layout.dims, dims, strict=True):
        for place, size in enumerate(sizes):
            parts.append(_Dim(DimExpr.of(size), dim.stride * math.prod(sizes[place + 1 :])))
    shape = layout.packed_shape([math.prod(sizes) for sizes in layout.dims])
    # Lines of a row each are panels of one row: [batch * rows, words * group].
    words = shape[1] // layout.group if layout.panel == 1 else shape[1]
    indices = [_index([parts[at] for at in group], text) for group in (layout.batch, layout.rows, layout.steps)]
    first = sum((dim.first for dim in dims), start=DimExpr.of(0))
    return _matrices(indices, layout, DimExpr.of(words), first, to, text)


def _index(parts: Sequence[_Dim], text: Text) -> str:
    if len(parts) > MAX_PARTS:
        raise ShapewrightError(f"a constant of {len(parts)} parts in one index has no form in C: at most {MAX_PARTS}")
    sizes, strides = (", ".join(map(text, each)) for each in ([p.size for p in parts], [p.stride for p in parts]))
    return f"{{{len(parts)}, {{{sizes or '0'}}}, {{{strides or '0'}}}}}"


def _matrices(
    indices: Sequence[str], layout: PanelLayout | MatrixLayout, words: DimExpr, first: DimExpr, to: int, text: Text
) -> str:
    numbers: tuple[DimExpr | int, ...] = (layout.panel, layout.group, layout.offset, words, first, to)
    return f"{{{', '.join((*indices, *map(text, numbers)))}}}"
