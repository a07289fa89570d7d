"""Convolutions and pooling as programs: windows that move over images.

Where one stride, padding and dilation holds for all axes and both sides, an operator of the catalogue is meant. Other
windows are spelled out: one by seven, padding on one side alone, pooling that rounds sizes up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shapewright.models.draft import Draft, draft_of
from shapewright.models.graph import ONE, CannotLift, Node, Operation, Shape
from shapewright.models.lifted import Operand, View
from shapewright.models.operands import constant_behind, listed, operand
from shapewright.models.orders import is_depthwise, is_last, is_pointwise, last
from shapewright.models.views import each, product
from tuner.program.catalogue.convolutions import SPATIAL, Spatial
from tuner.program.job.build import ProgramOp
from tuner.program.language.dims import DimExpr, DimLike

DEFAULTS: Mapping[str, int] = {"stride": 1, "pad": 0, "dilation": 1}
POOLS = {
    "max_pool": ("max_pool2d", "out[{out}] = max(r, s) x[{x}]", -math.inf),
    "avg_pool": ("avg_pool2d", "total[{out}] = sum(r, s) x[{x}]\nout[{out}] = total[{out}] / ({divisor})", 0.0),
}
"""By neutral name the operator of the catalogue, its program, and what padding is."""


@dataclass(frozen=True)
class _Windows:
    """Windows on an image [b, c, *spatial], by spatial axis. ``pad`` is in front of an axis, ``behind`` it at its end;
    both are of ``value``. ``counted``: of means how many elements in front of the image, and behind it, count in the
    divisor, by axis; None: a window always has its whole size. ``divisor``: in place of all that, if it is not 0.
    ``inner``: the node that pads the image, if the windows do that in its place. ``is_made_last``: the output's
    channels come last; ``is_read_last``: the image's do, too."""

    image: Node
    shape: Shape
    axes: Spatial
    window: Shape
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pad: tuple[int, ...]
    behind: tuple[int, ...]
    value: float
    counted: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    divisor: int = 0
    inner: tuple[str, ...] = ()
    is_made_last: bool = False
    is_read_last: bool = False

    @property
    def settings(self) -> Mapping[str, int] | None:
        """Those of an operator of the catalogue, None where it has not such windows."""
        values = {"stride": self.stride, "pad": self.pad, "dilation": self.dilation}
        if self.is_made_last != self.is_read_last:
            return None
        if self.behind != self.pad or self.counted or self.divisor or any(len(set(own)) > 1 for own in values.values()):
            return None
        return {name: own[0] for name, own in values.items() if own[0] != DEFAULTS[name]}

    @property
    def sizes(self) -> dict[str, DimExpr]:
        """Of the image and of a window, by the catalogue's names."""
        return dict(zip((*self.axes.sizes, *self.axes.window), (*self.shape[2:], *self.window), strict=True))

    @property
    def outer(self) -> dict[str, DimExpr]:
        """The sizes of the output's axes."""
        parts = zip(self.shape[2:], self.window, self.stride, self.pad, self.behind, self.dilation, strict=True)
        return dict(zip(self.axes.outer, (positions(*part) for part in parts), strict=True))

    @property
    def reads(self) -> str:
        """Where an element of a window is read."""
        parts = zip(self.axes.outer, self.axes.window, self.stride, self.dilation, self.pad, strict=True)
        return ", ".join(f"{step}*{o} + {wide}*{i} - {pad}" for o, i, step, wide, pad in parts)

    @property
    def elements(self) -> str:
        """How many elements of a window a mean is of."""
        if self.divisor or self.counted is None:
            return str(self.divisor) if self.divisor else " * ".join(f"extent({name})" for name in self.axes.window)
        if max(self.dilation) > 1:
            raise CannotLift("means of fewer elements at borders, of a window whose elements are apart")
        factors, (front, behind) = [], self.counted
        for at, (o, size, width) in enumerate(zip(self.axes.outer, self.shape[2:], self.window, strict=True)):
            if size.constant is None or width.constant is None:
                raise CannotLift("means of fewer elements at the borders of an axis whose size is dynamic")
            begin, end = f"{self.stride[at]}*{o} - {self.pad[at]}", size.constant + behind[at]
            factors.append(f"(min({begin} + {width}, {end}) - max({begin}, {-front[at]}))")
        return " * ".join(factors)

    @property
    def is_padded(self) -> bool:
        """Whether windows reach outside the image, by their own padding or by that of the node before."""
        return any((*self.pad, *self.behind))

    @property
    def image_view(self) -> View:
        return _view(len(self.shape), is_last=self.is_read_last)

    @property
    def output_view(self) -> View:
        return _view(len(self.shape), is_last=self.is_made_last)

    def program(self, text: str, channels: tuple[str, str], constant: tuple[str, ...] = ()) -> ProgramOp:
        """``text`` of the indices of the image, ``{x}``, and of the output; ``channels`` of these."""
        x = _indices(channels[0], self.reads, is_last=self.is_read_last)
        out = _indices(channels[1], ", ".join(self.axes.outer), is_last=self.is_made_last)
        text = text.format(x=x, out=out, divisor=self.elements)
        shapes = (("x", tuple(self.shape[axis] for (axis,) in self.image_view)),)
        value = self.value if math.isfinite(self.value) else str(self.value)
        return ProgramOp(text, constant, (("x", value),) if self.is_padded else (), shapes=shapes)


def _view(rank: int, *, is_last: bool) -> View:
    return tuple((axis,) for axis in last(rank)) if is_last else each(rank)


def _indices(channel: str, spatial: str, *, is_last: bool) -> str:
    return f"b, {spatial}, {channel}" if is_last else f"b, {channel}, {spatial}"


def positions(
    size: DimExpr, window: DimLike, stride: int, pad: int, behind: int, dilation: int
) -> DimExpr:  # fmt: skip
    """How many windows an axis has."""
    return (size + pad + behind - (DimExpr.of(window) - 1) * dilation - 1) // stride + 1


def _rounded_up(size: DimExpr, window: int, stride: int, pad: int, dilation: int, *, may_drop: bool = False) -> int:
    """The padding behind an axis with which its last window is a whole one, where sizes are rounded up.

    ``may_drop``: a window that begins behind the image and the padding in front is left out, as PyTorch does; others
    disagree. Raises CannotLift for that, and for a size that is dynamic.
    """
    reach = dilation * (window - 1) + 1
    if stride == 1:
        return pad
    if size.constant is None:
        raise CannotLift("ceil_mode of an axis whose size is dynamic")
    beyond = size.constant + 2 * pad - reach
    last, inside = -(-beyond // stride), (size.constant + pad - 1) // stride
    if last > inside and not may_drop:
        raise CannotLift("ceil_mode with a window that lies in the padding")
    last = min(last, inside)
    return pad if last == beyond // stride else last * stride + reach - size.constant - pad


def round_up(attrs: dict[str, Any], sizes: Shape, *, may_drop: bool = False) -> bool:
    """Have the last windows on an image of spatial ``sizes`` be whole ones, by the padding behind; whether any of them
    reaches past the padding then. Raises CannotLift as ``_rounded_up`` does, and where the sides differ already."""
    if attrs.get("behind", attrs["pad"]) != attrs["pad"]:
        raise CannotLift("ceil_mode and padding that differs between the sides")
    axes = (attrs[name] for name in ("window", "stride", "pad", "dilation"))
    attrs["behind"] = tuple(_rounded_up(*axis, may_drop=may_drop) for axis in zip(sizes, *axes, strict=True))
    return bool(attrs["behind"] != attrs["pad"])


def means(attrs: dict[str, Any], *, count_padding: bool, beyond: bool) -> None:
    """Complete the attributes of a pool of means. ``count_padding``: padding counts as elements; ``beyond``: whether
    windows may reach past the padding (``behind`` is larger than ``pad``), whose elements never count."""
    none = (0,) * len(attrs["pad"])
    if count_padding and beyond:
        attrs["counted"] = attrs["pad"], attrs["pad"]
    elif not count_padding and any((*attrs["pad"], *attrs.get("behind", none))):
        attrs["counted"] = none, none


def conv(operation: Operation) -> Draft:
    """Convolutions on one to three axes, their transposes, and those of single channels."""
    graph, node, w = operation.graph, operation.node, operation.tensor(1)
    ws, groups, transposed = graph.shape(w.name), int(node.attrs["groups"]), bool(node.attrs["transposed"])
    rank = len(ws) - 2
    if rank not in SPATIAL or len(graph.shape(operation.tensor(0).name)) != rank + 2:
        raise CannotLift(f"a convolution of {listed(graph.shape(operation.tensor(0).name))} by {listed(ws)}")
    if not constant_behind(graph, w):
        raise CannotLift(f"the weight {w.name} is new at every call")
    windows = _windows(operation, ws[2:], 0.0, may_be_padded=not transposed)
    settings, xs = windows.settings, windows.shape
    if transposed and settings is None:
        raise CannotLift("a transposed convolution whose stride, padding or dilation differs between axes or sides")
    if windows.is_read_last and is_pointwise(graph, node) and not windows.is_padded:
        return _product(operation, windows, w)
    if is_depthwise(graph, node) and all(size == ONE for size in ws[2:]) and not windows.is_padded:
        return _scaled(operation, windows, operand(graph, "weight", w, ws[:1]))
    right = operand(graph, "weight", w, ws)
    args: dict[str, Any] = {"b": xs[0], "c": xs[1], **windows.sizes}
    if rank == 2 and is_depthwise(graph, node) and not windows.is_made_last:
        right = operand(graph, "weight", w, (ws[0], *ws[2:]), (0, 2, 3, 1))
        return _draft(operation, windows, "depthwise_conv2d", _DEPTHWISE, args, right)
    args |= {"o": ws[1] * groups if transposed else ws[0], **({"groups": groups} if groups > 1 else {})}
    args |= {"layout": "nhwc"} if windows.is_read_last else {}
    name = f"conv{rank}d_transpose" if transposed else f"conv{rank}d"
    share, width = ws[1], str(ws[0].constant and ws[0].constant // groups)
    channels = ("c" if groups == 1 else f"{share}*(o//{width}) + c", "o")
    inner = ", ".join(windows.axes.window)
    text = f"out[{{out}}] = sum(c, {inner}) x[{{x}}] * weight[o, c, {inner}]"
    return _draft(operation, windows, name, text, args, right, channels=channels)


def _product(operation: Operation, windows: _Windows, w: Node) -> Draft:
    """The product of an image whose channels come last: its places are rows."""
    xs, ws, graph = windows.shape, operation.graph.shape(w.name), operation.graph
    view = ((0, *range(2, len(xs))), (1,))
    right = operand(graph, "w", w, ws[:2])
    args = {"m": product([xs[axis] for axis in view[0]]), "n": ws[0], "k": ws[1]}
    return draft_of("dense", args, (Operand("x", windows.image.name, view), right), operation, view)


def _scaled(operation: Operation, windows: _Windows, weight: Operand) -> Draft:
    """Every channel times a number of its own, at some of its places: windows of one element are no sum."""
    xs, outer = windows.shape, windows.axes.outer
    reads = ", ".join(f"{step}*{o}" for step, o in zip(windows.stride, outer, strict=True))
    x = _indices("c", reads, is_last=windows.is_read_last)
    out = _indices("c", ", ".join(outer), is_last=windows.is_made_last)
    shape = tuple(xs[axis] for (axis,) in windows.image_view)
    op = ProgramOp(f"out[{out}] = x[{x}] * weight[c]", ("weight",), shapes=(("x", shape),))
    operands = Operand("x", windows.image.name, windows.image_view), weight
    args = {"b": xs[0], "c": xs[1], **windows.outer}
    draft = draft_of(op, args, operands, operation, windows.output_view)
    return replace(draft, channel="c", nodes=(*windows.inner, *draft.nodes))


_DEPTHWISE = "out[{out}] = sum(r, s) x[{x}] * weight[c, r, s]"


def pool(operation: Operation) -> Draft:
    """Maxima and means of windows on two axes."""
    shape, window = operation.graph.shape(operation.tensor(0).name), tuple(operation.attr("window"))
    if len(window) != 2 or len(shape) != 4:
        raise CannotLift(f"pooling of {len(window)} axes of {len(shape)}")
    name, text, value = POOLS[operation.node.op]
    windows = _windows(operation, tuple(map(DimExpr.of, window)), value, may_be_padded=True)
    args = {"b": windows.shape[0], "c": windows.shape[1], **windows.sizes}
    return _draft(operation, windows, name, text, args)


def _draft(
    operation: Operation, windows: _Windows, name: str, text: str, args: Mapping[str, Any], *others: Operand,
    channels: tuple[str, str] = ("c", "c"),
) -> Draft:  # fmt: skip
    """The operator of that name, or its program ``text`` where its windows are none of the catalogue's."""
    settings = windows.settings
    operands = (Operand("x", windows.image.name, windows.image_view), *others)
    op: str | ProgramOp = name
    if settings is None or (windows.is_made_last and "layout" not in args):
        constant = tuple(other.tensor for other in others)
        op, args, settings = windows.program(text, channels, constant), _extents(windows, args), None
    draft = draft_of(op, {**args, **(settings or {})}, operands, operation, windows.output_view)
    # A program does not say which of its axes a bias and a norm run over.
    channel = draft.axes[-1 if windows.is_made_last else 1]
    return replace(draft, channel=channel, nodes=(*windows.inner, *draft.nodes))


def _extents(windows: _Windows, args: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the axes of a program, of which the output's and a group's channels are some."""
    kept = {name: size for name, size in args.items() if name not in (*windows.axes.sizes, "groups", "layout")}
    if args.get("groups", 1) > 1:
        kept["c"] = args["c"] // args["groups"]
    return {**kept, **windows.outer}


def _windows(operation: Operation, window: Shape, value: float, *, may_be_padded: bool) -> _Windows:
    """The windows of a node; they pad the image in the place of a node before that pads it with ``value``, too."""
    graph, node, image = operation.graph, operation.node, operation.tensor(0)
    stride, dilation, pad = (tuple(node.attrs[name]) for name in ("stride", "dilation", "pad"))
    shape, behind = graph.shape(image.name), tuple(node.attrs.get("behind", pad))
    counted, divisor = node.attrs.get("counted"), node.attrs.get("divisor", 0)
    is_made_last = not node.attrs.get("transposed") and is_last(graph, node)
    made = _Windows(
        image, shape, SPATIAL[len(window)], window, stride, dilation, pad, behind, value, counted, divisor,
        is_made_last=is_made_last, is_read_last=is_made_last and is_last(graph, image),
    )  # fmt: skip
    if not may_be_padded or image.op != "pad" or image.attrs["value"] != value:
        return made
    front, end = image.attrs["front"], image.attrs["behind"]
    if any((*front[:2], *end[:2])) or min((*front, *end)) < 0:
        return made
    source = graph.source(image.inputs[0])
    inner = (image.name,) if graph.only_reader(image.name) == node else ()
    pad, behind = _added(pad, front[2:]), _added(behind, end[2:])
    if counted is not None:
        # To a mean the padding of others is a part of the image.
        counted = _added(counted[0], front[2:]), _added(counted[1], end[2:])
    return replace(
        made, image=source, shape=graph.shape(source.name), pad=pad, behind=behind, counted=counted, inner=inner
    )  # fmt: skip


def _added(some: Sequence[int], more: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(some, more, strict=True))
