"""The catalogue of operators: each is a few lines of the programs' own notation, with parameters.

An entry's ``program`` and ``extents`` are templates. ``args`` are extents (dims over shape variables), ``settings`` are
constants with defaults, put into the templates by name. ``docs/guide.md`` shows how an operator is added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.errors import InvalidInput
from tuner.program.dims import DimExpr

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """A constant parameter of an operator: its default and what it may be."""

    default: object
    doc: str
    check: Callable[[object], object]
    """The value in the form that templates use; raises ValueError with what would do."""


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """An operator of the catalogue.

    ``sizes`` gives extents that follow from the args, as expressions over args and settings. ``channel`` names the axis
    of the output that ``bias`` runs over. ``variant`` adds or replaces template values that depend on the settings.
    """

    name: str
    doc: str
    args: tuple[str, ...]
    program: str
    constant: tuple[str, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, str] = field(default_factory=dict)
    padded: Mapping[str, float] = field(default_factory=dict)
    channel: str | None = None
    variant: Callable[[Mapping[str, DimExpr], Values], Values] | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Stages appended to a program: ``text`` is an expression of ``{x}``, the result so far.

    ``operand`` is a further input, of the output's shape (``whole``) or of its channel axis.
    """

    name: str
    doc: str
    text: str
    operand: str | None = None
    whole: bool = False


def _count(least: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 1024:
            raise ValueError(f"an integer from {least} to 1024")
        return value

    return check


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e30:
        raise ValueError("a number, 0 or more")
    return float(value)


def _optional_number(value: object) -> float | None:
    return None if value is None else _number(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _layout(value: object) -> str:
    if value not in ("nchw", "nhwc"):
        raise ValueError("nchw or nhwc")
    return str(value)


STRIDE = Setting(1, "step between windows, on every spatial axis", _count(1))
PAD = Setting(0, "zeros around the input, on every side", _count(0))
DILATION = Setting(1, "step between the elements of a window", _count(1))
GROUPS = Setting(1, "groups of channels that do not mix", _count(1))
LAYOUT = Setting("nchw", "of x and out: nchw or nhwc", _layout)
EPS = Setting(1e-5, "added to the variance", _number)
CAUSAL = Setting(False, "hide j > i + (extent of j - extent of i)", _flag)
SCALE = Setting(None, "of the scores; 1/sqrt(d) if left out", _optional_number)
WINDOW = {"stride": STRIDE, "pad": PAD, "dilation": DILATION}
_OUT_SIZE = "({0} + 2*{{pad}} - {{dilation}}*({1} - 1) - 1)//{{stride}} + 1"
_TRANSPOSED_SIZE = "({0} - 1)*{{stride}} - 2*{{pad}} + {{dilation}}*({1} - 1) + 1"

# By number of spatial axes: (input sizes, window sizes, output axes, window axes).
_SPATIAL: Mapping[int, tuple[str, str, str, str]] = {1: ("w", "s", "q", "s"), 2: ("hw", "rs", "pq", "rs"), 3: ("dhw", "trs", "zpq", "trs")}


def _window(rank: int) -> str:
    """``{stride}*p + {dilation}*r - {pad}, ...``: where a window's element is read."""
    _, _, outer, inner = _SPATIAL[rank]
    return ", ".join(f"{{stride}}*{o} + {{dilation}}*{i} - {{pad}}" for o, i in zip(outer, inner, strict=True))


def _sizes(rank: int, form: str) -> dict[str, str]:
    given, window, outer, _ = _SPATIAL[rank]
    return {o: form.format(g, w) for o, g, w in zip(outer, given, window, strict=True)}


def _channels(args: Mapping[str, DimExpr], settings: Values) -> Values:
    """Layouts and groups of a convolution: which channel of x a filter reads."""
    groups, c, o = settings["groups"], args["c"], args["o"]
    if groups == 1:
        return {"channel": "c", "filters": "c"}
    if c.constant is None or o.constant is None or c.constant % groups or o.constant % groups:
        problem = f"{groups} groups do not divide c={c} and o={o}"
        raise InvalidInput("args.groups", problem, "c and o are constants, multiples of groups")
    return {"channel": f"{c.constant // groups}*(o//{o.constant // groups}) + c", "filters": str(c.constant // groups)}


def _conv(rank: int, name: str, doc: str) -> Op:
    given, window, outer, inner = (", ".join(part) for part in _SPATIAL[rank])
    nchw = (f"out[b, o, {outer}]", f"x[b, {{channel}}, {_window(rank)}]", f"[b, channels, {given}]")
    nhwc = (f"out[b, {outer}, o]", f"x[b, {_window(rank)}, {{channel}}]", f"[b, {given}, channels]")

    def variant(args: Mapping[str, DimExpr], settings: Values) -> Values:
        values = dict(_channels(args, settings))
        out, x, shape = nchw if settings["layout"] == "nchw" else nhwc
        merged = {**settings, **values}
        return {**values, "out": out, "x": x.format(**merged), "shape": shape}

    return Op(
        name,
        doc,
        ("b", "c", *_SPATIAL[rank][0], "o", *_SPATIAL[rank][1]),
        program=f"{{out}} = sum(c, {inner}) {{x}} * weight[o, c, {inner}]",
        constant=("weight",),
        settings={**WINDOW, "groups": GROUPS, "layout": LAYOUT},
        sizes={**_sizes(rank, _OUT_SIZE), "channels": "c", "c": "{filters}"},
        shapes={"x": "{shape}"},
        padded={"x": 0.0},
        channel="o",
        variant=variant,
    )


def _conv_transpose(rank: int, name: str) -> Op:
    given, _, outer, inner = (", ".join(part) for part in _SPATIAL[rank])
    terms = [f"({o} + {{pad}} - {{dilation}}*{i})" for o, i in zip(_SPATIAL[rank][2], _SPATIAL[rank][3], strict=True)]
    hits = " & ".join(f"({term} % {{stride}} == 0)" for term in terms)
    at = ", ".join(f"{term}//{{stride}}" for term in terms)

    def variant(args: Mapping[str, DimExpr], settings: Values) -> Values:
        groups, c, o = settings["groups"], args["c"], args["o"]
        if groups > 1 and (c.constant is None or o.constant is None or c.constant % groups or o.constant % groups):
            problem = f"{groups} groups do not divide c={c} and o={o}"
            raise InvalidInput("args.groups", problem, "c and o are constants, multiples of groups")
        if groups == 1:
            values = {"channel": "c", "filter": "o", "filters": "c"}
        else:
            share, width = (c.constant or 0) // groups, (o.constant or 0) // groups
            values = {"channel": f"{share}*(o//{width}) + c", "filter": f"o % {width}", "filters": str(share)}
        merged = {**settings, **values}
        read = at.format(**merged)
        nchw = settings["layout"] == "nchw"
        x = f"x[b, {values['channel']}, {read}]" if nchw else f"x[b, {read}, {values['channel']}]"
        out = f"out[b, o, {outer}]" if nchw else f"out[b, {outer}, o]"
        weight = f"weight[{values['channel']}, {values['filter']}, {inner}]"
        shape = f"[b, channels, {given}]" if nchw else f"[b, {given}, channels]"
        # With steps of 1 every element of a window is hit.
        body = f"{x} * {weight}" if settings["stride"] == 1 else f"where({hits.format(**merged)}, {x}, 0) * {weight}"
        return {**values, "out": out, "body": body, "shape": shape}

    return Op(
        name,
        f"the transpose of conv{rank}d (deconvolution): x, weight[c, o/groups, {inner}] constant, out",
        ("b", "c", *_SPATIAL[rank][0], "o", *_SPATIAL[rank][1]),
        program=f"{{out}} = sum(c, {inner}) {{body}}",
        constant=("weight",),
        settings={**WINDOW, "groups": GROUPS, "layout": LAYOUT},
        sizes={**_sizes(rank, _TRANSPOSED_SIZE), "channels": "c", "c": "{filters}"},
        shapes={"x": "{shape}", "weight": f"[channels, {{width}}, {inner}]"},
        padded={"x": 0.0},
        channel="o",
        variant=lambda args, settings: {
            **variant(args, settings),
            "width": str(args["o"]) if settings["groups"] == 1 else str((args["o"].constant or 0) // settings["groups"]),
        },
    )


def _attention(args: Mapping[str, DimExpr], settings: Values) -> Values:
    scale = settings["scale"]
    if scale is None:
        if args["d"].constant is None:
            raise InvalidInput("args.scale", f"d={args['d']} is dynamic, so 1/sqrt(d) is no constant", "give scale")
        scale = args["d"].constant ** -0.5
    scaled = f"{scale!r} * dots[b, h, i, j]"
    hidden = f"where(j <= i + (extent(j) - extent(i)), {scaled}, -inf)"
    return {"scores": hidden if settings["causal"] else scaled}


_CONV_DOC = (
    "convolution: x[b, c, *spatial] (or [b, *spatial, c] with layout nhwc), weight[o, c/groups, *window] constant, "
    "out[b, o, *spatial]"
)

OPS: Mapping[str, Op] = {
    op.name: op
    for op in (
        Op(
            "dense", "out[m, n] = x[m, k] . w[n, k]^T; the weight w is constant: library.pack(w) packs it once",
            ("m", "n", "k"), "out[m, n] = sum(k) x[m, k] * w[n, k]", constant=("w",),
        ),
        Op(
            "matmul", "out[m, n] = x[m, k] . y[k, n], both operands new at every call",
            ("m", "n", "k"), "out[m, n] = sum(k) x[m, k] * y[k, n]",
        ),
        Op(
            "batch_matmul_nn", "out[b, m, n] = x[b, m, k] . y[b, k, n] for each b, both operands new at every call",
            ("b", "m", "n", "k"), "out[b, m, n] = sum(k) x[b, m, k] * y[b, k, n]",
        ),
        Op(
            "batch_matmul_nt", "out[b, m, n] = x[b, m, k] . y[b, n, k]^T for each b, both operands new at every call",
            ("b", "m", "n", "k"), "out[b, m, n] = sum(k) x[b, m, k] * y[b, n, k]",
        ),
        Op(
            "gemv", "y[n] = w[n, k] . x[k], both operands new at every call",
            ("n", "k"), "y[n] = sum(k) w[n, k] * x[k]",
        ),
        Op(
            "bilinear", "y[b, o] = u[b, :]^T w[o, :, :] v[b, :]; w is constant",
            ("b", "o", "i", "j"), "y[b, o] = sum(i, j) u[b, i] * w[o, i, j] * v[b, j]", constant=("w",),
        ),
        *(_conv(rank, f"conv{rank}d", _CONV_DOC) for rank in (1, 2, 3)),
        _conv(2, "group_conv2d", _CONV_DOC + "; conv2d by the name that is used where groups are more than 1"),
        _conv(2, "dilated_conv2d", _CONV_DOC + "; conv2d by the name that is used where dilation is more than 1"),
        *(_conv_transpose(rank, f"conv{rank}d_transpose") for rank in (1, 2, 3)),
        Op(
            "depthwise_conv2d", "each channel by a window of its own: x[b, c, h, w], weight[c, r, s] constant, out[b, c, p, q]",
            ("b", "c", "h", "w", "r", "s"), f"out[b, c, p, q] = sum(r, s) x[b, c, {_window(2)}] * weight[c, r, s]",
            constant=("weight",), settings=WINDOW, sizes=_sizes(2, _OUT_SIZE), shapes={"x": "[b, c, h, w]"},
            padded={"x": 0.0}, channel="c",
        ),
        Op(
            "max_pool2d", "the largest of each window: x[b, c, h, w], out[b, c, p, q]; padding is -inf",
            ("b", "c", "h", "w", "r", "s"), f"out[b, c, p, q] = max(r, s) x[b, c, {_window(2)}]",
            settings=WINDOW, sizes=_sizes(2, _OUT_SIZE), shapes={"x": "[b, c, h, w]"}, padded={"x": float("-inf")},
            channel="c",
        ),
        Op(
            "avg_pool2d", "the mean of each window, padding counted: x[b, c, h, w], out[b, c, p, q]",
            ("b", "c", "h", "w", "r", "s"),
            f"total[b, c, p, q] = sum(r, s) x[b, c, {_window(2)}]\n"
            "out[b, c, p, q] = total[b, c, p, q] / (extent(r) * extent(s))",
            settings=WINDOW, sizes=_sizes(2, _OUT_SIZE), shapes={"x": "[b, c, h, w]"}, padded={"x": 0.0}, channel="c",
        ),
        Op(
            "softmax", "out[m, n] = exp(x[m, n] - max over n) / their sum over n",
            ("m", "n"),
            "top[m] = max(n) x[m, n]\n"
            "e[m, n] = exp(x[m, n] - top[m])\n"
            "z[m] = sum(n) e[m, n]\n"
            "out[m, n] = e[m, n] / z[m]",
        ),
        Op(
            "layer_norm", "rows of x[m, n] to mean 0 and variance 1 over n, times gamma[n], plus beta[n]",
            ("m", "n"),
            "total[m] = sum(n) x[m, n]\n"
            "centred[m, n] = x[m, n] - total[m] / extent(n)\n"
            "square[m] = sum(n) centred[m, n] * centred[m, n]\n"
            "out[m, n] = centred[m, n] * rsqrt(square[m] / extent(n) + {eps!r}) * gamma[n] + beta[n]",
            settings={"eps": EPS},
        ),
        Op(
            "rms_norm", "rows of x[m, n] to mean square 1 over n, times gamma[n]",
            ("m", "n"),
            "square[m] = sum(n) x[m, n] * x[m, n]\n"
            "out[m, n] = x[m, n] * rsqrt(square[m] / extent(n) + {eps!r}) * gamma[n]",
            settings={"eps": EPS},
        ),
        Op("reduce_sum", "out[m] = sum over n of x[m, n]", ("m", "n"), "out[m] = sum(n) x[m, n]"),
        Op("reduce_max", "out[m] = largest over n of x[m, n]", ("m", "n"), "out[m] = max(n) x[m, n]"),
        Op(
            "reduce_mean", "out[m] = mean over n of x[m, n]",
            ("m", "n"), "total[m] = sum(n) x[m, n]\nout[m] = total[m] / extent(n)",
        ),
        Op(
            "attention",
            "softmax(scale * q . k^T) . v: q[b, h, i, d], k[b, h, j, d], v[b, h, j, d], out[b, h, i, d]",
            ("b", "h", "i", "j", "d"),
            "dots[b, h, i, j] = sum(d) q[b, h, i, d] * k[b, h, j, d]\n"
            "scores[b, h, i, j] = {scores}\n"
            "top[b, h, i] = max(j) scores[b, h, i, j]\n"
            "e[b, h, i, j] = exp(scores[b, h, i, j] - top[b, h, i])\n"
            "z[b, h, i] = sum(j) e[b, h, i, j]\n"
            "mixed[b, h, i, d] = sum(j) e[b, h, i, j] * v[b, h, j, d]\n"
            "out[b, h, i, d] = mixed[b, h, i, d] / z[b, h, i]",
            settings={"causal": CAUSAL, "scale": SCALE}, variant=_attention,
        ),
        Op(
            "moe_dense", "out[t, n] = x[t, k] . w[expert[t], n, k]^T: x, w constant, expert[t] int32, out",
            ("t", "e", "n", "k"), "out[t, n] = sum(k) x[t, k] * w[expert[t], n, k]", constant=("w",),
            shapes={"w": "[e, n, k]"},
        ),
    )
}  # fmt: skip

EPILOGUES: Mapping[str, Epilogue] = {
    epilogue.name: epilogue
    for epilogue in (
        Epilogue("bias", "adds bias, one value for each channel of the output", "{x} + {operand}", "bias"),
        Epilogue("add", "adds residual, of the output's shape", "{x} + {operand}", "residual", whole=True),
        Epilogue("relu", "max(x, 0)", "where({x} < 0.0, 0.0, {x})"),
        Epilogue("gelu", "x * (1 + erf(x / sqrt 2)) / 2", "{x} * 0.5 * (1.0 + erf({x} * 0.7071067811865476))"),
        Epilogue(
            "gelu_tanh", "the tanh approximation of gelu",
            "{x} * 0.5 * (1.0 + tanh(0.7978845608028654 * ({x} + 0.044715 * {x} * {x} * {x})))",
        ),
    )
}  # fmt: skip


def op_named(name: object) -> Op:
    """The operator of that name. Raises InvalidInput on field ``op``."""
    if isinstance(name, Op):
        return name
    if isinstance(name, str) and name in OPS:
        return OPS[name]
    raise InvalidInput("op", f"{name!r} is not in the catalogue", f"one of: {', '.join(sorted(OPS))}")
