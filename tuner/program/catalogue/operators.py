"""What an operator of the catalogue is: templates of a program and its sizes, and settings that are put into them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.program.language.dims import DimExpr

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """A constant parameter of an operator: its default and what it may be."""

    default: object
    doc: str
    check: Callable[[object], object]
    """The value in the form that templates use; raises ValueError with what would do."""


@dataclass(frozen=True, eq=False, repr=False)
class Op:
    """An operator of the catalogue. ``help(op)`` shows its args, settings and program.

    ``sizes`` gives extents that follow from the args, as expressions over args and settings. ``channel`` names the axis
    of the output that ``bias`` runs over. ``variant`` adds or replaces template values that depend on the settings.
    ``dtypes`` are of tensors that ``dtype`` is not meant for. ``padded`` holds where ``reads_outside`` says so: other
    reads stay inside. ``example``: small, ragged args over the shape variables B, S and T, at which tests compile the
    operator and compare it with the reference. ``synonyms`` are what others call it: an error about an unknown operator
    suggests it for them.
    """

    name: str
    doc: str
    args: tuple[str, ...]
    program: str
    example: Mapping[str, Any] = field(kw_only=True)
    constant: tuple[str, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, str] = field(default_factory=dict)
    padded: Mapping[str, float] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    channel: str | None = None
    reads_outside: Callable[[Values], bool] = lambda settings: settings["pad"] > 0
    variant: Callable[[Mapping[str, DimExpr], Values], Values] | None = None
    synonyms: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # An instance's own docstring is what help() shows of it.
        object.__setattr__(self, "__doc__", self._described())

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        """``conv2d(b, c, h, w, o, r, s, stride=1, pad=0, ...)``: its args, and its settings with their defaults."""
        settings = (f"{name}={setting.default!r}" for name, setting in self.settings.items())
        return f"{self.name}({', '.join([*self.args, *settings])})"

    def _described(self) -> str:
        """Its doc, args, settings, program and constants, below the signature that ``repr`` gives."""
        lines = [self.doc, "", f"args, the extents, integers or expressions of shape variables: {', '.join(self.args)}"]
        for name, setting in self.settings.items():
            lines.append(f"{name}: {setting.doc} (default {setting.default})")
        # Templates of several forms are no program before their settings are put in.
        if "{" not in self.program:
            lines += ["program:", *(f"    {line}" for line in self.program.split("\n"))]
        if self.constant:
            lines.append(f"constant, packed once by library.pack: {', '.join(self.constant)}")
        return "\n".join([*lines, f"as in SearchTask(sw.ops.{self.name}, args={{...}}, shape_vars=[...])"])


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


MAX_GROUPS = 2**20
"""Groups of channels are as many as channels in depthwise layers; they cost a program nothing."""


def _integer(least: int, most: int = 1024) -> Callable[[object], int]:
    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"an integer from {least} to {most}")
        return value

    return check


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e30:
        raise ValueError("a number, 0 or more")
    return float(value)


def _positive(value: object) -> float:
    if not (number := _number(value)):
        raise ValueError("a number above 0")
    return number


def _optional(check: Callable[[object], object]) -> Callable[[object], object]:
    return lambda value: None if value is None else check(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _layout(value: object) -> str:
    if value not in ("nchw", "nhwc"):
        raise ValueError("nchw or nhwc")
    return str(value)


STRIDE = Setting(1, "step between windows, on every spatial axis", _integer(1))
PAD = Setting(0, "zeros around the input, on every side", _integer(0))
DILATION = Setting(1, "step between the elements of a window", _integer(1))
GROUPS = Setting(1, "groups of channels that do not mix", _integer(1, MAX_GROUPS))
LAYOUT = Setting("nchw", "of x and out: nchw or nhwc", _layout)
GROUP = Setting(32, "steps of k that share a scale", _integer(1))
EPS = Setting(1e-5, "added to the variance", _number)
CAUSAL = Setting(False, "hide j > i + (extent of j - extent of i)", _flag)
SCALE = Setting(None, "of the scores; 1/sqrt(d) if left out", _optional(_number))
NEAREST = Setting(None, "hide keys that are this far from the row's own, or further", _optional(_integer(1, 2**31 - 1)))
SOFTCAP = Setting(None, "scores are softcap * tanh(scores / softcap), before the mask", _optional(_positive))
KV_HEADS = Setting(
    None, "heads of k and v, each of which h / kv_heads heads of q share; h if left out", _optional(_integer(1, 2**20))
)
WINDOW = {"stride": STRIDE, "pad": PAD, "dilation": DILATION}
