"""Element types of tensors, and what arithmetic on them gives. NumPy's names, with bfloat16 of ml_dtypes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dtype:
    """``kind``: f float, i signed, u unsigned, b bool. ``compute``: the type that arithmetic on it is done in."""

    name: str
    kind: str
    bits: int
    compute: str

    @property
    def bytes(self) -> int:
        return self.bits // 8


DTYPES: Mapping[str, Dtype] = {
    dtype.name: dtype
    for dtype in (
        Dtype("float32", "f", 32, "float32"),
        Dtype("float64", "f", 64, "float64"),
        Dtype("float16", "f", 16, "float32"),
        Dtype("bfloat16", "f", 16, "float32"),
        Dtype("int8", "i", 8, "int32"),
        Dtype("uint8", "u", 8, "int32"),
        Dtype("int16", "i", 16, "int32"),
        Dtype("int32", "i", 32, "int32"),
        Dtype("int64", "i", 64, "int64"),
        Dtype("bool", "b", 8, "bool"),
    )
}
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "float32": ("fp32", "f32", "float", "single"),
    "float64": ("fp64", "f64", "double"),
    "float16": ("fp16", "f16", "half"),
    "bfloat16": ("bf16",),
    "int8": ("i8", "s8", "char"),
    "uint8": ("u8", "byte"),
    "int16": ("i16", "short"),
    "int32": ("i32", "int"),
    "int64": ("i64", "long"),
    "bool": ("boolean",),
}
"""What others call them: an error about an unknown one suggests the name that is known here."""
FLOATS = frozenset(name for name, dtype in DTYPES.items() if dtype.kind == "f")
INTEGERS = frozenset(name for name, dtype in DTYPES.items() if dtype.kind in "iu")
_ORDER = ("bool", "int32", "int64", "float32", "float64")


def promoted(dtypes: Iterable[str]) -> str:
    """The type that arithmetic on operands of these types is done in: float32 or wider where any is a float.

    float16 and bfloat16 are computed in float32, int8 in int32; int64 beside a float32 gives float32.
    """
    computed = [DTYPES[name].compute for name in dtypes]
    return max(computed, key=_ORDER.index, default="int32")
