"""Packed layouts in C, as statements that write the same elements to the same places as ``Layout.pack``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tuner.errors import ShapewrightError
from tuner.program.language.dims import DimExpr, parse_dim
from tuner.program.language.dtypes import DTYPES
from tuner.program.language.workload import Tensor
from tuner.schedule.filters import FILTERS
from tuner.schedule.layout import CutLayout, Layout, MatrixLayout, Numbers, PackLayout

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
    if isinstance(layout, PackLayout) and layout.filter:
        return f"  sw_filter(&(const sw_taps){_taps(layout, text)}, {parameter}, packed);"
    if isinstance(layout, PackLayout) and layout.blocks:
        rows, steps = map(text, tensor.dims)
        return f"  sw_blocks({parameter}, packed, {rows}, {steps}, {layout.panel});"
    if isinstance(layout, PackLayout) and layout.numbers:
        (numbers,) = layout.numbers
        dims = tuple(map(DimExpr.of, (numbers.rows, -(-numbers.steps // numbers.joined))))
        panels = _panels(replace(layout, numbers=()), tensor, dims, "sw_joined", text)
        return _joined(numbers, tensor, parameter, panels)
    return _panels(layout, tensor, tensor.dims, parameter, text)


def _panels(layout: Layout, tensor: Tensor, dims: Sequence[DimExpr], source: str, text: Text) -> str:
    dtype = DTYPES[tensor.dtype]
    matrices = ",\n    ".join(matrices_of(layout, dims, text))
    return (
        f"  const sw_matrices sw_list[] = {{\n    {matrices}}};\n"
        "  for (size_t i = 0; i < sizeof sw_list / sizeof *sw_list; i++)\n"
        f"    sw_pack(&sw_list[i], (const char *){source}, packed, {dtype.bytes}, {int(dtype.kind == 'i')});"
    )


def _joined(numbers: Numbers, tensor: Tensor, parameter: str, panels: str) -> str:
    """Numbers of four bits as a matrix of elements that hold as many as before, in the order of steps; then panels."""
    element, columns, place = f"uint{DTYPES[tensor.dtype].bits}_t", -(-numbers.steps // numbers.joined), "0"
    for index, size in zip(numbers.index, tensor.dims, strict=True):
        place = f"({place}) * INT64_C({size.constant}) + {_place(index)}"
    number = f"({element})((({element}){parameter}[{place}] >> ({_place(numbers.shift)})) & 15)"
    return (
        f"  {element} *sw_joined = calloc({max(numbers.rows * columns, 1)}, sizeof *sw_joined);\n"
        f'  if (!sw_joined) return sw_no_memory("{parameter}");\n'
        f"  for (int64_t sw_row = 0; sw_row < {numbers.rows}; sw_row++)\n"
        f"    for (int64_t sw_step = 0; sw_step < {numbers.steps}; sw_step++)\n"
        f"      sw_joined[sw_row * {columns} + sw_step / {numbers.joined}] |=\n"
        f"        ({element})({number} << (4 * (sw_step % {numbers.joined})));\n"
        f"{panels}\n  free(sw_joined);"
    )


def _place(text: str) -> str:
    """An index or a shift as an expression of C, of values that are never negative."""
    at = {name: DimExpr.var(f"sw_{name}") for name in ("row", "step")}
    return str(parse_dim(text).substituted(at)).replace("//", "/")


def _taps(layout: PackLayout, text: Text) -> str:
    sizes = [size for (size,) in layout.dims]
    kernels, channels, *_ = (sizes[dim] for dim in layout.filter)
    strides = ", ".join(text(math.prod(sizes[dim + 1 :])) for dim in layout.filter)
    points = FILTERS[layout.outputs, layout.stride]
    matrix = ", ".join(f"{{{', '.join(map(repr, row))}}}" for row in points)
    steps = text(layout.packed_shape(sizes)[1])
    return f"{{{text(kernels)}, {text(channels)}, {steps}, {{{strides}}}, {len(points)}, {{{matrix}}}}}"


def matrices_of(layout: Layout, dims: Sequence[DimExpr], text: Text) -> list[str]:
    """The initializers of all matrices that ``layout`` makes of a tensor of these dims."""
    strides = [math.prod(dims[axis + 1 :], start=DimExpr.of(1)) for axis in range(len(dims))]
    whole = [_Dim(size, stride) for size, stride in zip(dims, strides, strict=True)]
    if isinstance(layout, MatrixLayout):
        raise ShapewrightError("constants that are packed for a GPU are not packed in C: there are none for CPUs")
    if isinstance(layout, CutLayout):
        return [_cut(layout, number, whole, text) for number in range(len(layout.parts))]
    return [_of_parts(layout, whole, 0, text)]


def _cut(layout: CutLayout, number: int, whole: Sequence[_Dim], text: Text) -> str:
    taken, part = layout.parts[number]
    dims = list(whole)
    for axis, *indices in taken:
        kept, dim = range(*indices), dims[axis]
        dims[axis] = _Dim(DimExpr.of(len(kept)), dim.stride * indices[2], dim.stride * indices[0])
    return _of_parts(part, dims, layout.first(number), text)


def _of_parts(layout: PackLayout, dims: Sequence[_Dim], to: int, text: Text) -> str:
    """The matrices of a layout: their indices, how they are panels of words, where they begin and are packed to."""
    parts = list(dims)
    if layout.dims:
        parts = [
            _Dim(DimExpr.of(size), dim.stride * math.prod(sizes[place + 1 :]))
            for sizes, dim in zip(layout.dims, dims, strict=True)
            for place, size in enumerate(sizes)
        ]
    shape = layout.packed_shape([dim.size for dim in dims])
    # Lines of a row each are panels of one row: [batch * rows, words * group].
    words = DimExpr.of(shape[1]) // layout.group if layout.has_rows else shape[1]
    indices = [_index([parts[at] for at in group], text) for group in (layout.batch, layout.rows, layout.steps)]
    first = sum((dim.first for dim in dims), start=DimExpr.of(0))
    numbers: tuple[DimExpr | int, ...] = (layout.panel, layout.group, layout.offset, words, first, to)
    return f"{{{', '.join((*indices, *map(text, numbers)))}}}"


def _index(parts: Sequence[_Dim], text: Text) -> str:
    if len(parts) > MAX_PARTS:
        raise ShapewrightError(f"a constant of {len(parts)} parts in one index has no form in C: at most {MAX_PARTS}")
    sizes, strides = (", ".join(map(text, each)) for each in ([p.size for p in parts], [p.stride for p in parts]))
    return f"{{{len(parts)}, {{{sizes or '0'}}}, {{{strides or '0'}}}}}"
