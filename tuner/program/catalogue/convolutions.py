"""Convolutions of the catalogue, on one to three spatial axes, and their transposes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.errors import InvalidInput
from tuner.program.catalogue.operators import GROUPS, LAYOUT, WINDOW, Op, Values
from tuner.program.language.dims import DimExpr, parse_dim

_OUT_SIZE = "({0} + 2*{{pad}} - {{dilation}}*({1} - 1) - 1)//{{stride}} + 1"
_TRANSPOSED_SIZE = "({0} - 1)*{{stride}} - 2*{{pad}} + {{dilation}}*({1} - 1) + 1"

DOC = (
    "convolution: x[b, c, *spatial] (or [b, *spatial, c] with layout nhwc), weight[o, c/groups, *window] constant, "
    "out[b, o, *spatial]"
)


@dataclass(frozen=True, slots=True)
class Spatial:
    """Names of spatial axes: the sizes of the input and of a window, the axes of the output and of a window."""

    sizes: tuple[str, ...]
    window: tuple[str, ...]
    outer: tuple[str, ...]

    @property
    def reads(self) -> str:
        """Where an element of a window is read, as a template: ``{stride}*p + {dilation}*r - {pad}, ...``."""
        pairs = zip(self.outer, self.window, strict=True)
        return ", ".join(f"{{stride}}*{o} + {{dilation}}*{i} - {{pad}}" for o, i in pairs)

    def out_sizes(self, form: str = _OUT_SIZE) -> dict[str, str]:
        """The sizes of the output's axes, as templates."""
        parts = zip(self.outer, self.sizes, self.window, strict=True)
        return {o: form.format(size, window) for o, size, window in parts}


SPATIAL: Mapping[int, Spatial] = {
    1: Spatial(("w",), ("s",), ("q",)),
    2: Spatial(("h", "w"), ("r", "s"), ("p", "q")),
    3: Spatial(("d", "h", "w"), ("t", "r", "s"), ("z", "p", "q")),
}


def conv(rank: int, name: str, note: str = "", *, example: Mapping[str, Any]) -> Op:
    """A convolution on ``rank`` spatial axes; ``note`` ends its docstring."""
    axes = SPATIAL[rank]
    window = ", ".join(axes.window)

    def variant(args: Mapping[str, DimExpr], settings: Values) -> Values:
        share, width = _shares(args, settings)
        channel = "c" if settings["groups"] == 1 else f"{share}*(o//{width}) + c"
        read = axes.reads.format(**settings)
        return {
            "out": _tensor("out", settings, "o", ", ".join(axes.outer)),
            "x": _tensor("x", settings, channel, read),
            "shape": _tensor("", settings, "channels", ", ".join(axes.sizes)),
            "share": share,
        }

    return Op(
        name,
        DOC + note,
        ("b", "c", *axes.sizes, "o", *axes.window),
        program=f"{{out}} = sum(c, {window}) {{x}} * weight[o, c, {window}]",
        constant=("weight",),
        settings={**WINDOW, "groups": GROUPS, "layout": LAYOUT},
        sizes={**axes.out_sizes(), "channels": "c", "c": "{share}"},
        shapes={"x": "{shape}"},
        padded={"x": 0.0},
        channel="o",
        variant=variant,
        example=example,
        synonyms=() if note else (f"convolution{rank}d", *(("conv", "convolution") if rank == 2 else ())),
    )


def conv_transpose(rank: int, name: str, *, example: Mapping[str, Any]) -> Op:
    """The transpose: an element of x meets an element of the window where (p + pad - dilation*r) % stride == 0."""
    axes = SPATIAL[rank]
    window = ", ".join(axes.window)

    def variant(args: Mapping[str, DimExpr], settings: Values) -> Values:
        share, width = _shares(args, settings)
        pad, dilation, stride = settings["pad"], settings["dilation"], settings["stride"]
        terms = [parse_dim(f"{o} + {pad} - {dilation}*{i}") for o, i in zip(axes.outer, axes.window, strict=True)]
        reads = ", ".join(f"({term})//{stride}" for term in terms)
        hits = " & ".join(f"(({term}) % {stride} == 0)" for term in terms)
        grouped = settings["groups"] > 1
        channel = f"{share}*(o//{width}) + c" if grouped else "c"
        x = _tensor("x", settings, channel, reads)
        weight = f"weight[{channel}, {f'o % {width}' if grouped else 'o'}, {window}]"
        # With steps of 1 every element of a window is hit.
        hit = x if stride == 1 else f"where({hits}, {x}, 0)"
        return {
            "out": _tensor("out", settings, "o", ", ".join(axes.outer)),
            "body": f"{hit} * {weight}",
            "shape": _tensor("", settings, "channels", ", ".join(axes.sizes)),
            "share": share,
            "width": width,
        }

    return Op(
        name,
        f"the transpose of conv{rank}d (deconvolution): x, weight[c, o/groups, {window}] constant, out",
        ("b", "c", *axes.sizes, "o", *axes.window),
        program=f"{{out}} = sum(c, {window}) {{body}}",
        constant=("weight",),
        settings={**WINDOW, "groups": GROUPS, "layout": LAYOUT},
        sizes={**axes.out_sizes(_TRANSPOSED_SIZE), "channels": "c", "c": "{share}"},
        shapes={"x": "{shape}", "weight": f"[channels, {{width}}, {window}]"},
        padded={"x": 0.0},
        channel="o",
        reads_outside=lambda settings: True,
        variant=variant,
        example=example,
        synonyms=(f"deconv{rank}d", f"deconvolution{rank}d", f"conv_transpose{rank}d"),
    )


def _shares(args: Mapping[str, DimExpr], settings: Values) -> tuple[str, str]:
    """How many channels of x, and of out, a group has, as templates."""
    groups, c, o = settings["groups"], args["c"], args["o"]
    if groups == 1:
        return "c", "o"
    if c.constant is None or o.constant is None or c.constant % groups or o.constant % groups:
        problem = f"{groups} groups do not divide c={c} and o={o}"
        raise InvalidInput("args.groups", problem, "c and o are constants, multiples of groups")
    return str(c.constant // groups), str(o.constant // groups)


def _tensor(name: str, settings: Values, channel: str, spatial: str) -> str:
    """``x[b, channel, spatial]``, in the requested layout."""
    inner = f"{channel}, {spatial}" if settings["layout"] == "nchw" else f"{spatial}, {channel}"
    return f"{name}[b, {inner}]"
