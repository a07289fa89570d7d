"""Instructions that multiply and add, an entry each, found by what they compute (as in AMOS, Zheng et al., ISCA 2022).

An entry says, for elements of which dtypes, that it adds some steps of a sum of products to several totals at once:

    total[row, column] += sum(p < steps * group) left[row, p] * right[p, column]

Instructions of vectors have one row, a column for each lane, and one step. Instructions on tiles of a matrix have a
``unit``, which says how tiles are loaded, multiplied and stored. A rule whose program adds up such products may use any
entry that the target has; which one is an axis of its space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from tuner.program.target import Hardware
from tuner.schedule.product.amx import AMX
from tuner.schedule.product.atom import AddProducts, Atom
from tuner.schedule.tir import TirExpr, tirx
from tuner.schedule.vector.dtypes import lanes_of, vector_type

SHORT_FLOATS = frozenset({"float16", "bfloat16"})
FLOATS = SHORT_FLOATS | {"float32"}
BYTES = frozenset({"int8", "uint8"})


# -- the table --------------------------------------------------------------------------------------------------------
def _of_bytes(name: str) -> AddProducts:
    """An intrinsic of LLVM that takes the totals and two vectors of bytes."""
    return lambda total, left, right: tirx.call_llvm_intrin(
        vector_type("int32", lanes_of(total)), name, total, left, right
    )


_MADD = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd"}
"""By lanes of the total."""


def _pmaddwd(total: TirExpr, left: TirExpr, right: TirExpr) -> TirExpr:
    lanes = lanes_of(total)
    return total + tirx.call_llvm_intrin(vector_type("int32", lanes), _MADD[lanes], left, right)


# TVM has no vectors of LLVM's bfloat, so what takes them is called through a function that LLVM inlines.
_DPBF16 = "shapewright_dpbf16ps"
_DPBF16_CODE = f"""
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)

define linkonce_odr <16 x float> @{_DPBF16}(<16 x float> %total, <32 x i16> %left, <32 x i16> %right) alwaysinline {{
  %x = bitcast <32 x i16> %left to <32 x bfloat>
  %y = bitcast <32 x i16> %right to <32 x bfloat>
  %sum = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %total, <32 x bfloat> %x, <32 x bfloat> %y)
  ret <16 x float> %sum
}}
"""


def _dpbf16ps(total: TirExpr, left: TirExpr, right: TirExpr) -> TirExpr:
    return tirx.call_pure_extern(vector_type("float32", lanes_of(total)), _DPBF16, total, left, right)


_INT8, _UINT8, _BF16 = frozenset({"int8"}), frozenset({"uint8"}), frozenset({"bfloat16"})
_DPBUSD = _of_bytes("llvm.x86.avx512.vpdpbusd.512")
_SDOT, _UDOT, _USDOT = (_of_bytes(f"llvm.aarch64.neon.{each}.v4i32.v16i8") for each in ("sdot", "udot", "usdot"))

FMA = Atom(
    "fma", FLOATS, FLOATS | BYTES, "float32", 1, "float32", add=lambda total, left, right: total + left * right,
    widened={"bfloat16": 2.0, "float16": 1.0, "int8": 2.0, "uint8": 2.0},
)  # fmt: skip
PMADDWD = Atom(
    "pmaddwd", BYTES, BYTES, "int32", 2, "int16", {64: "avx512bw", 32: "avx2"}, _pmaddwd, operations=2,
    widened=dict.fromkeys(BYTES, 1.0),
)  # fmt: skip

ATOMS: list[Atom] = [
    FMA,
    Atom("dpbf16ps", _BF16, _BF16, "float32", 2, "uint16", {64: "avx512_bf16"}, _dpbf16ps, code=_DPBF16_CODE),
    PMADDWD,
    Atom("dpbusd", _UINT8, _INT8, "int32", 4, "int8", {64: "avx512_vnni"}, _DPBUSD),
    Atom("dpbusd", _INT8, _INT8, "int32", 4, "int8", {64: "avx512_vnni"}, _DPBUSD, offset=128),
    Atom("sdot", _INT8, _INT8, "int32", 4, "int8", {16: "asimddp"}, _SDOT),
    Atom("udot", _UINT8, _UINT8, "int32", 4, "int8", {16: "asimddp"}, _UDOT),
    Atom("sdot", _UINT8, _INT8, "int32", 4, "int8", {16: "asimddp"}, _SDOT, offset=-128),
    # After the one before: of two of one depth, the last is taken.
    Atom("usdot", _UINT8, _INT8, "int32", 4, "int8", {16: "i8mm"}, _USDOT),
    *AMX,
]


# -- looked up --------------------------------------------------------------------------------------------------------
def atoms_of(left: str, right: str, total: str, hardware: Hardware) -> dict[int, Atom]:
    """What multiplies elements of these dtypes and adds to such a total there, by its depth; the deepest last."""
    return _atoms_of(left, right, total, hardware, tuple(ATOMS))


@lru_cache(maxsize=1024)
def _atoms_of(left: str, right: str, total: str, hardware: Hardware, table: tuple[Atom, ...]) -> dict[int, Atom]:
    fitting = [
        each for each in table
        if left in each.left and right in each.right and total == each.total and each.is_on(hardware)
    ]  # fmt: skip
    return {each.depth: each for each in sorted(fitting, key=lambda each: each.depth)}


def atoms_either_way(left: str, right: str, total: str, hardware: Hardware) -> tuple[Atom, ...]:
    """The same, for operands that may also change places, which a product does not mind: several of a depth perhaps,
    those without an offset first, and as they stand before swapped."""
    own = atoms_of(left, right, total, hardware).values()
    others = atoms_of(right, left, total, hardware).values()
    swapped = (replace(each, is_swapped=True) for each in others if each.unit is None)
    return tuple(sorted((*own, *swapped), key=lambda each: (abs(each.offset), each.is_swapped)))


def best_of_vectors(atoms: Mapping[int, Atom]) -> int:
    """The depth of the deepest instruction of vectors among these."""
    return max(depth for depth, atom in atoms.items() if atom.unit is None)


def only_fma(hardware: Hardware) -> Mapping[int, Atom]:
    """The instructions for products of which every step is one element: fused multiply-adds alone."""
    return {FMA.depth: FMA}
