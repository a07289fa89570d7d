"""Layouts: how arrays stand in memory for a library's kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tuner.errors import InvalidInput, shown
from tuner.program.language.dims import DimExpr, parse_dim
from tuner.schedule.filters import FILTER_KINDS, FILTERS
from tuner.schedule.strassen import SUMS

if TYPE_CHECKING:
    from numpy.typing import NDArray

LINE_BYTES = 64
LINE_ELEMENTS = LINE_BYTES // 4
MAX_ELEMENTS = 2**48  # No memory holds more.

Size = TypeVar("Size", int, DimExpr)


def up(size: Size, by: int) -> Size:
    """``size / by``, rounded up."""
    return (size + by - 1) // by if by > 1 else size


@dataclass(frozen=True, slots=True, order=True)
class Numbers:
    """Numbers of four bits in the elements of a weight, as a matrix ``[rows, steps]``: that of a row and a step is
    ``element[index] >> shift & 15``.

    ``index``, by dim, and ``shift`` are dims (their texts) over ``row`` and ``step``. So many ``joined`` neighbouring
    steps are one element again, the first in its lowest bits.
    """

    rows: int
    steps: int
    index: tuple[str, ...]
    shift: str
    joined: int = 1


@dataclass(frozen=True, slots=True, order=True)
class PackLayout:
    """A weight as matrices ``[rows, steps]``, panels of whose rows a kernel reads as one contiguous stream.

    Packed is ``[batch * ceil(rows / panel), words, panel * group]``, filled up with zeros: ``group`` neighbouring
    steps are a word, and element ``[j, p]`` of a matrix stands at
    ``[j // panel, p // group, j % panel * group + p % group]``. Panels of one row of a weight with ``dims`` are rows,
    ``[batch * rows, words * group]``, an odd number of cache lines apart: those of a tile fall on different sets of a
    cache.

    ``dims``: the sizes of the parts of each dim of the weight, in order (a dim of o = g * w elements may be two, g and
    w). ``batch``, ``rows`` and ``steps`` take those parts by their positions; each is one flattened index. Without
    ``dims`` the weight is one matrix of any size. With an ``offset`` a word stands in front of the steps of each panel,
    or row: what that offset, added to all elements of the other operand, adds to each sum, negated (int32). The words
    of the steps are a multiple of ``whole``.

    ``filter``: the dims of a weight that are kernels, channels, and the taps down and across, 3 of each. What is packed
    is ``G g G^T`` of the taps ``g`` of a kernel (Lavin and Gray, CVPR 2016, section 4.1) for ``outputs`` along each
    axis, with this ``stride``, computed in float64: matrix row ``p * kernels + o`` is element ``p`` (by rows) of
    kernel ``o``, by channels.

    ``numbers``: what the matrix is of, where it is not the weight's own elements; one at most.

    ``blocks``: the matrix, float32 with an even number of steps, is packed in blocks of two by two and their sums for
    Strassen's products. Two panels that are neighbours have columns of both halves of the right matrix. Packed are, one
    after the other: all panels of the columns divided by their factors; for each pair of panels ``strassen.SUMS`` of
    its blocks, half as many steps each; and the factors. These are powers of two, by which the largest element of a
    column is 1 to 2; 0 for a column of zeros, and NaN for one with an element that is no finite number, which is packed
    as zeros.
    """

    panel: int
    group: int = 1
    offset: int = 0
    dims: tuple[tuple[int, ...], ...] = ()
    batch: tuple[int, ...] = ()
    rows: tuple[int, ...] = (0,)
    steps: tuple[int, ...] = (1,)
    whole: int = 1
    filter: tuple[int, ...] = ()
    outputs: int = 2
    stride: int = 1
    numbers: tuple[Numbers, ...] = ()
    blocks: bool = False

    def packed_shape(self, shape: Sequence[Size]) -> tuple[Size | int, ...]:
        """The shape of the packed form of a tensor of ``shape``."""
        batch, rows, steps = self.sizes_of(shape)
        if self.blocks:
            # Of two columns: themselves, the sums of their blocks, and their factors.
            return (self.panel * up(rows, 2 * self.panel) * (2 * steps + len(SUMS) * up(steps, 2) + 2),)
        words = up(up(steps, self.group), self.whole) * self.whole + int(bool(self.offset))
        if self.has_rows:
            # An odd number of cache lines apart.
            return rows * batch, (up(words, LINE_ELEMENTS) | 1) * LINE_ELEMENTS * self.group
        return up(rows, self.panel) * batch, words, self.panel * self.group

    @property
    def has_rows(self) -> bool:
        """Whether it is packed as rows, not as panels."""
        return self.panel == 1 and bool(self.dims)

    def sizes_of(self, shape: Sequence[Size]) -> tuple[Any, Any, Any]:
        """How many matrices, and their rows and steps."""
        for each in self.numbers:
            return 1, each.rows, up(each.steps, each.joined)
        if not self.dims:
            rows, steps = shape
            return 1, rows, steps
        parts = [size for dim in self.dims for size in dim]
        if self.filter:
            kernels, channels, *_ = (parts[dim] for dim in self.filter)
            return 1, len(FILTERS[self.outputs, self.stride]) ** 2 * kernels, channels
        batch, of_row, of_step = (math.prod(parts[at] for at in each) for each in (self.batch, self.rows, self.steps))
        return batch, of_row, of_step

    def pack(self, array: NDArray[Any]) -> NDArray[Any]:
        """``array``: any dtype and strides; int8 in groups of 4 with an offset. The result is contiguous."""
        from tuner.schedule.packing import pack  # noqa: PLC0415 - NumPy, which whoever reads a layout need not have

        return pack(self, array)

    def to_json(self) -> dict[str, Any]:
        """What ``layout_from_json`` reads; ``kind`` names the form."""
        if self.filter:
            sizes = [size for (size,) in self.dims]
            return {"kind": FILTER_KINDS[self.outputs, self.stride], "sizes": sizes, "order": list(self.filter)}
        usual = {"group": (self.group, 1), "offset": (self.offset, 0), "whole": (self.whole, 1)}
        words: dict[str, Any] = {"panel": self.panel}
        words |= {name: value for name, (value, default) in usual.items() if value != default}
        for each in self.numbers:
            return {"kind": "numbers", **asdict(each), "index": list(each.index), **words}
        if self.blocks:
            return {"kind": "blocks", "panel": self.panel}
        if not self.dims:
            return {"kind": "panels", **words}
        groups = {"batch": list(self.batch), "rows": list(self.rows), "steps": list(self.steps)}
        return {"kind": "matrices", "dims": [list(dim) for dim in self.dims], **groups, **words}


@dataclass(frozen=True, slots=True, order=True)
class CutLayout:
    """A weight cut into parts, each of which is packed by a layout of its own, one after the other in one dim.

    Of part ``i``, dim ``dim`` holds the indices ``range(*taken)`` of the weight for each ``(dim, *taken)`` of
    ``parts[i][0]``; all others are whole. Parts start on cache lines.
    """

    parts: tuple[tuple[tuple[tuple[int, int, int, int], ...], PackLayout], ...]
    sizes: tuple[int, ...]
    """The sizes of the weight."""

    def shape(self, number: int) -> tuple[int, ...]:
        """The shape of a part as it is packed."""
        taken, layout = self.parts[number]
        sizes = list(self.sizes)
        for dim, *indices in taken:
            sizes[dim] = len(range(*indices))
        return layout.packed_shape(sizes)

    def first(self, number: int) -> int:
        """The element where a part begins."""
        # Each part fills cache lines even if its elements are bytes.
        return sum(up(math.prod(self.shape(before)), LINE_BYTES) * LINE_BYTES for before in range(number))

    def packed_shape(self, shape: Sequence[Size]) -> tuple[int, ...]:
        # Never empty: there is no pointer to a part of nothing.
        return (max(self.first(len(self.parts)), 1),)

    def pack(self, array: NDArray[Any]) -> NDArray[Any]:
        """``array``: of ``sizes``, any dtype and strides. The result is contiguous."""
        from tuner.schedule.packing import pack_parts  # noqa: PLC0415 - NumPy, which whoever reads a layout need not have

        return pack_parts(self, array)

    def to_json(self) -> dict[str, Any]:
        """What ``layout_from_json`` reads."""
        parts = [{"taken": [list(each) for each in taken], "layout": layout.to_json()} for taken, layout in self.parts]
        return {"kind": "cut", "parts": parts, "sizes": list(self.sizes)}


@dataclass(frozen=True, slots=True, order=True)
class MatrixLayout:
    """A weight as one row-major matrix, as kernels for GPUs read it.

    The weight is seen with the sizes ``dims``, whose dims then stand in ``order``, as a matrix of ``matrix`` rows and
    columns.
    """

    dims: tuple[int, ...]
    order: tuple[int, ...]
    matrix: tuple[int, int]

    def packed_shape(self, shape: Sequence[Size]) -> tuple[int, ...]:
        return self.matrix

    def pack(self, array: Any) -> Any:
        """``array``: of NumPy, of PyTorch or of any library of the Array API; so is the result, on the same device."""
        from tuner.schedule.matrices import pack_matrix  # noqa: PLC0415 - for those who pack

        return pack_matrix(self, array)

    def to_json(self) -> dict[str, Any]:
        """What ``layout_from_json`` reads."""
        return {
            "kind": "matrix",
            "dims": list(self.dims),
            "order": list(self.order),
            "matrix": list(self.matrix),
        }


Layout = PackLayout | CutLayout | MatrixLayout
"""How a constant tensor is rearranged once, ahead of all calls. Values are frozen, hashable and ordered."""


def layout_from_json(data: Mapping[str, Any]) -> Layout:
    """Read what ``to_json`` of a layout wrote. Raises InvalidInput for a kind that this version does not know, and for
    numbers that no layout has."""
    match data.get("kind"):
        case "panels":
            return PackLayout(**_words(data))
        case "blocks":
            (panel,) = _sizes([data["panel"]])
            return PackLayout(**_words({"panel": panel}), blocks=True)
        case "matrices":
            dims = tuple(_sizes(dim) for dim in data["dims"])
            most = sum(map(len, dims)) - 1
            batch, rows, steps = (_sizes(data[group], most) for group in ("batch", "rows", "steps"))
            return PackLayout(dims=dims, batch=batch, rows=rows, steps=steps, **_words(data))
        case "cut":
            sizes = _sizes(data["sizes"])
            return CutLayout(tuple(_part_from_json(part, sizes) for part in data["parts"]), sizes)
        case "matrix":
            return _matrix_from_json(data)
        case "numbers":
            return PackLayout(numbers=(_numbers_from_json(data),), **_words(data))
        case kind if kind in FILTER_KINDS.values():
            (which,) = (each for each, name in FILTER_KINDS.items() if name == kind)
            return filter_layout(sizes := _sizes(data["sizes"]), _sizes(data["order"], len(sizes) - 1), *which)
    kinds = f"panels, blocks, matrices, numbers, cut, matrix, {', '.join(FILTER_KINDS.values())}"
    raise InvalidInput("packed_layouts", f"{shown(data)} is not known", f"kind: {kinds}")


def _matrix_from_json(data: Mapping[str, Any]) -> MatrixLayout:
    dims, matrix = _sizes(data["dims"]), _sizes(data["matrix"])
    order = _sizes(data["order"])
    is_one = sorted(order) == list(range(len(dims))) and len(matrix) == 2 and math.prod(matrix) == math.prod(dims)
    if not is_one:
        raise InvalidInput("packed_layouts", f"{shown(data)} is not known", "all dims in some order, as one matrix")
    rows, columns = matrix
    return MatrixLayout(dims, order, (rows, columns))


def _numbers_from_json(data: Mapping[str, Any]) -> Numbers:
    rows, steps, joined = _sizes([data["rows"], data["steps"], data["joined"]])
    index, shift = tuple(data["index"]), data["shift"]
    names = {name for text in (*index, shift) for name in parse_dim(text).variables}
    if not names <= {"row", "step"} or not joined:
        raise InvalidInput("packed_layouts", f"{shown(data)} is not known", "places by row and step")
    return Numbers(rows, steps, index, shift, joined)


def filter_layout(sizes: Sequence[int], order: tuple[int, ...], outputs: int = 2, stride: int = 1) -> PackLayout:
    """That of a weight of ``sizes`` for minimal filtering, whose dims are kernels, channels and taps in this order."""
    return PackLayout(1, dims=tuple((size,) for size in sizes), filter=order, outputs=outputs, stride=stride)


def _part_from_json(
    data: Mapping[str, Any], sizes: Sequence[int]
) -> tuple[tuple[tuple[int, int, int, int], ...], PackLayout]:
    layout = layout_from_json(data["layout"])
    if not isinstance(layout, PackLayout) or not layout.dims or layout.filter:
        raise InvalidInput("packed_layouts", f"{shown(data)} is not known", "parts of kind: matrices")
    return tuple(_taken(each, sizes) for each in data["taken"]), layout


def _taken(data: Sequence[Any], sizes: Sequence[int]) -> tuple[int, int, int, int]:
    """A dim of a weight of ``sizes``, and the first, the end and the step of its indices."""
    dim, first, end, step = data
    _sizes([dim, *map(abs, data)])
    indices = range(first, end, step)
    if dim >= len(sizes) or any(not 0 <= index < sizes[dim] for index in (*indices[:1], *indices[-1:])):
        raise InvalidInput("packed_layouts", f"{shown(data)} are not indices of {shown(sizes)}", "those of one dim")
    return dim, first, end, step


def _words(data: Mapping[str, Any]) -> dict[str, Any]:
    """How elements are words, and these panels."""
    offset = data.get("offset", 0)
    panel, group, whole, _ = _sizes([data["panel"], data.get("group", 1), data.get("whole", 1), abs(offset)])
    if not (panel and group and whole):
        raise InvalidInput("packed_layouts", f"panels of {panel} in groups of {group} by {whole}", "1 or more")
    return {"panel": panel, "group": group, "offset": offset, "whole": whole}


def _sizes(data: Sequence[Any], most: int = MAX_ELEMENTS) -> tuple[int, ...]:
    if not all(type(size) is int and 0 <= size <= most for size in data):
        raise InvalidInput("packed_layouts", f"{shown(data)} are not sizes", f"integers from 0 to {most}")
    return tuple(data)
