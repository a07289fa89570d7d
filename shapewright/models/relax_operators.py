"""Operators of Relax in neutral terms: every attribute is read, or refused where it has another value than usual."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shapewright.models.graph import CannotLift, Input, Shape
from shapewright.models.translated import Translated, number
from shapewright.models.windows import means, round_up

ELEMENTWISE_NAMES: Mapping[str, str] = {
    **{name: name for name in ("sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "erf", "sin", "cos", "abs", "floor")},
    **{name: name for name in ("square", "round", "maximum", "minimum", "add", "multiply", "subtract", "divide")},
    **{f"nn.{name}": name for name in ("relu", "gelu", "gelu_tanh", "silu")},
    "negative": "neg",
    "multiply": "mul",
    "subtract": "sub",
    "divide": "div",
}
SHORT = frozenset({"float16", "bfloat16"})


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operator: its inputs, their shapes and dtypes, and its attributes."""

    inputs: tuple[Input, ...]
    shapes: tuple[Shape | None, ...]
    dtypes: tuple[str, ...]
    attrs: Any

    def attr(self, name: str, default: Any = None) -> Any:
        value = getattr(self.attrs, name, default)
        return default if value is None else value

    def integers(self, name: str, default: Any = ()) -> tuple[int, ...]:
        """Constants, one or several. Raises CannotLift for sizes that are symbolic."""
        value = self.attr(name, default)
        try:
            return tuple(int(each) for each in value) if hasattr(value, "__len__") else (int(value),)
        except (TypeError, ValueError) as error:
            raise CannotLift(f"{name} {value} is no constant") from error

    def shape(self, position: int) -> Shape:
        """The shape of an input. Raises CannotLift where it is not known."""
        found = self.shapes[position] if position < len(self.shapes) else None
        if found is None:
            raise CannotLift(f"the shape of input {position} is not known")
        return found

    def rank(self, position: int) -> int:
        return len(self.shape(position))

    def is_usual(self, name: str, usual: Any) -> None:
        """Raises CannotLift where an attribute says something else."""
        value = self.attr(name, usual)
        if str(value) not in ("", str(usual)):
            raise CannotLift(f"{name} is {value}, not {usual}")

    def check_out_dtype(self) -> None:
        """The dtype of the inputs, or the float32 that short floats are summed in. Raises CannotLift for others."""
        own, wanted = self.dtypes[0], str(self.attr("out_dtype", "") or "")
        if wanted not in ("", "void", own) and not (own in SHORT and wanted == "float32"):
            raise CannotLift(f"out_dtype is {wanted}, and its inputs are {own}")


def _matmul(call: Call) -> Translated:
    call.check_out_dtype()
    return Translated("matmul", call.inputs)


def _norm(op: str) -> Callable[[Call], Translated]:
    def translate(call: Call) -> Translated:
        rank = call.rank(0)
        axes = sorted(axis % rank for axis in call.integers("axes")) if rank else []
        if not axes or axes != list(range(rank - len(axes), rank)):
            raise CannotLift("it is not over the last axes")
        if not all(call.attr(name, True) for name in ("center", "scale")):
            raise CannotLift("it leaves out its vectors")
        return Translated(op, call.inputs, {"rank": len(axes), "eps": float(call.attr("epsilon", 1e-5))})

    return translate


def _softmax(call: Call) -> Translated:
    return Translated("softmax", call.inputs, {"axis": int(call.attr("axis", -1))})


def _attention(call: Call) -> Translated:
    """Attention as TVM lowers it: the softmax of a row that is hidden whole is NaN."""
    causal, scale = str(call.attr("causal_mask", "") or ""), call.attr("scale")
    queries, keys = call.shape(0), call.shape(1)
    if call.attr("window_size") is not None:
        raise CannotLift("a window of positions")
    if causal not in ("", "TopLeft", "BottomRight"):
        raise CannotLift(f"the causal mask {causal}")
    if causal == "BottomRight" and not _has_no_more(queries[1].constant, keys[1].constant) and queries[1] != keys[1]:
        raise CannotLift(f"a causal mask from the end, of {queries[1]} queries to {keys[1]} keys")
    if queries[2] != keys[2]:
        raise CannotLift("queries and keys have other numbers of heads")
    attrs = {
        "causal": bool(causal),
        "from_end": causal == "BottomRight",
        "scale": None if scale is None else float(getattr(scale, "value", scale)),
        "heads_behind": True,
        "nan_rows": True,
    }
    return Translated("attention", (*call.inputs, None)[:4], attrs)


def _has_no_more(queries: int | None, keys: int | None) -> bool:
    """Whether there are as many keys as queries, or more: where there are fewer, TVM aligns the mask otherwise."""
    return queries is not None and keys is not None and queries <= keys


def _conv(rank: int) -> Callable[[Call], Translated]:
    data, kernel = {1: ("NCW", "OIW"), 2: ("NCHW", "OIHW"), 3: ("NCDHW", "OIDHW")}[rank]

    def translate(call: Call) -> Translated:
        for name, usual in (("data_layout", data), ("kernel_layout", kernel), ("out_layout", data)):
            call.is_usual(name, usual)
        call.check_out_dtype()
        attrs = {
            "stride": _spread(call.integers("strides"), rank),
            **_pads(call, rank),
            "dilation": _spread(call.integers("dilation"), rank),
            "groups": int(call.attr("groups", 1)),
            "transposed": False,
        }
        return Translated("conv", call.inputs, attrs)

    return translate


def _pads(call: Call, rank: int) -> dict[str, tuple[int, ...]]:
    """The padding in front of each axis, and behind."""
    pad = call.integers("padding")
    front, behind = (pad[:rank], pad[rank:]) if len(pad) == 2 * rank else (pad, pad)
    return {"pad": _spread(front, rank), "behind": _spread(behind, rank)}


def _spread(values: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return values * rank if len(values) == 1 else values


def _pool(op: str) -> Callable[[Call], Translated]:
    def translate(call: Call) -> Translated:
        call.is_usual("layout", "NCHW")
        call.is_usual("out_layout", "NCHW")
        names = {"window": "pool_size", "stride": "strides", "dilation": "dilation"}
        spread = {name: _spread(call.integers(attr), 2) for name, attr in names.items()}
        attrs: dict[str, Any] = {**spread, **_pads(call, 2)}
        counts, beyond = bool(call.attr("count_include_pad", False)), False
        if call.attr("ceil_mode", False):
            beyond = round_up(attrs, call.shape(0)[2:])
        if op == "avg_pool":
            if beyond and counts:
                raise CannotLift("the means of its last windows divide by fewer elements")
            means(attrs, count_padding=counts, beyond=beyond)
        return Translated(op, call.inputs, attrs)

    return translate


def _reduce(kind: str) -> Callable[[Call], Translated]:
    def translate(call: Call) -> Translated:
        axes = list(call.integers("axis", tuple(range(call.rank(0)))))
        return Translated(
            "reduce", call.inputs, {"kind": kind, "axes": axes, "keep": bool(call.attr("keepdims", False))}
        )

    return translate


def _permute(call: Call) -> Translated:
    rank = call.rank(0)
    order = call.integers("axes", tuple(reversed(range(rank))))
    return Translated("permute", call.inputs, {"order": tuple(axis % rank for axis in order)})


def _concat(call: Call) -> Translated:
    (axis,) = call.integers("axis", 0)
    return Translated("cat", call.inputs, {"axis": axis})


def _view(op: str) -> Callable[[Call], Translated]:
    return lambda call: Translated(op, call.inputs[:1])


TRANSLATIONS: Mapping[str, Callable[[Call], Translated]] = {
    "matmul": _matmul,
    **{f"nn.conv{rank}d": _conv(rank) for rank in (1, 2, 3)},
    "nn.max_pool2d": _pool("max_pool"),
    "nn.avg_pool2d": _pool("avg_pool"),
    "nn.layer_norm": _norm("layer_norm"),
    "nn.rms_norm": _norm("rms_norm"),
    "nn.softmax": _softmax,
    **dict.fromkeys(("nn.attention", "nn.attention_bias"), _attention),
    "nn.leakyrelu": lambda call: Translated("leaky_relu", call.inputs, {"slope": number(float(call.attr("alpha")))}),
    "nn.relu6": lambda call: Translated("clamp", call.inputs, {"low": "0.0", "high": "6.0"}),
    **{kind: _reduce(kind) for kind in ("mean", "sum", "max", "min")},
    "permute_dims": _permute,
    "concat": _concat,
    **dict.fromkeys(("reshape", "expand_dims", "squeeze", "flatten"), _view("reshape")),
    "broadcast_to": _view("expand"),
}
"""Translations of calls, by name. Raise CannotLift with the reason."""
