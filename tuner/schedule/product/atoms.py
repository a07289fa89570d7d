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
from functools import lru_cache, partial

from tuner.program.target import Hardware
from tuner.program.target.tiles import PERMISSION
from tuner.schedule.product.atom import AddProducts, Atom, MatrixUnit
from tuner.schedule.tir import TirExpr, tirx
from tuner.schedule.vector.dtypes import lanes_of, vector_type

SHORT_FLOATS = frozenset({"float16", "bfloat16"})
FLOATS = SHORT_FLOATS | {"float32"}
BYTES = frozenset({"int8", "uint8"})


# -- Intel's Advanced Matrix Extensions --------------------------------------------------------------------------------
# A multiplication takes 16 rows by 16 words of 32 bits of the left operand, and 16 words by 16 columns of the other.
# Rows and words that there are not are zero, or not looked at. A process asks Linux for the registers before it uses
# them: each kernel does, and goes no further where they are refused. Then each thread configures its own.
AMX_ROWS, AMX_ROW_BYTES, AMX_REGISTERS = 16, 64, 8
AMX_CYCLES = 16.0
"""From one multiplication of whole tiles to the next."""

_CONFIGURATION = [1, *[0] * 15, *[AMX_ROW_BYTES, 0] * AMX_REGISTERS, *[0] * 16, *[AMX_ROWS] * AMX_REGISTERS, *[0] * 8]
"""All registers as whole tiles, once for all that a thread multiplies: the palette, the bytes of a row of each (16
bits), and from byte 48 on their rows."""
_ASK, _BEGIN = "shapewright_amx_refused", "shapewright_amx_begin"
_CONFIGURED = ", ".join(f"i8 {each}" for each in _CONFIGURATION)
_ASKS = ", ".join(f"i64 {each}" for each in PERMISSION)
_AMX_CODE = f"""
@shapewright_amx_configuration = linkonce_odr constant [64 x i8] [{_CONFIGURED}]
@shapewright_amx_granted = linkonce_odr global i8 0

declare i64 @syscall(i64, ...)
declare void @llvm.x86.ldtilecfg(ptr)

define linkonce_odr i32 @{_ASK}() {{
  %granted = load atomic i8, ptr @shapewright_amx_granted monotonic, align 1
  %known = icmp ne i8 %granted, 0
  br i1 %known, label %may, label %ask
ask:
  %answer = call i64 (i64, ...) @syscall({_ASKS})
  %refused = icmp ne i64 %answer, 0
  br i1 %refused, label %may_not, label %first
first:
  store atomic i8 1, ptr @shapewright_amx_granted monotonic, align 1
  br label %may
may:
  ret i32 0
may_not:
  ret i32 1
}}

define linkonce_odr i32 @{_BEGIN}() {{
  call void @llvm.x86.ldtilecfg(ptr @shapewright_amx_configuration)
  ret i32 0
}}
"""


def _called(name: str, *operands: TirExpr | int) -> TirExpr:
    """An intrinsic, which takes registers as numbers."""
    given = [tirx.IntImm("int8", each) if isinstance(each, int) else each for each in operands]
    return tirx.call_llvm_intrin("int32", f"llvm.x86.{name}", *given)


def _entry(name: str, left: str, right: str, total: str, group: int, element: str, feature: str) -> Atom:
    zero, load, store, multiply = (partial(_called, each) for each in ("tilezero", "tileloadd64", "tilestored64", name))
    unit = MatrixUnit(
        16, AMX_REGISTERS, AMX_CYCLES, zero, load, store, multiply,
        refused=lambda: tirx.call_extern("int32", _ASK),
        begin=lambda: [tirx.call_extern("int32", _BEGIN)], end=lambda: [_called("tilerelease")],
    )  # fmt: skip
    return Atom(
        name, frozenset({left}), frozenset({right}), total, group, element, {64: feature},
        rows=AMX_ROWS, steps=AMX_ROW_BYTES // 4, unit=unit, code=_AMX_CODE,
    )  # fmt: skip


AMX = (
    _entry("tdpbf16ps", "bfloat16", "bfloat16", "float32", 2, "uint16", "amx_bf16"),
    _entry("tdpfp16ps", "float16", "float16", "float32", 2, "float16", "amx_fp16"),
    _entry("tdpbssd", "int8", "int8", "int32", 4, "int8", "amx_int8"),
    _entry("tdpbsud", "int8", "uint8", "int32", 4, "int8", "amx_int8"),
    _entry("tdpbusd", "uint8", "int8", "int32", 4, "int8", "amx_int8"),
    _entry("tdpbuud", "uint8", "uint8", "int32", 4, "int8", "amx_int8"),
)


# -- the table --------------------------------------------------------------------------------------------------------
def _of_bytes(name: str) -> AddProducts:
    """An intrinsic of LLVM that takes the totals and two vectors of bytes."""
    return lambda total, left, right: tirx.call_llvm_intrin(
        vector_type("int32", lanes_of(total)), name, total, left, right
    )


_MADD = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd"}
"""Names by lanes of the total."""


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
DPBF16 = Atom(
    "dpbf16ps", _BF16, _BF16, "float32", 2, "uint16", {64: "avx512_bf16"}, _dpbf16ps, code=_DPBF16_CODE,
)  # fmt: skip

ATOMS: list[Atom] = [
    FMA,
    DPBF16,
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
    """``atoms_of`` for operands that may also change places, which a product does not mind: several of a depth perhaps,
    those without an offset first, and as they stand before swapped."""
    own = atoms_of(left, right, total, hardware).values()
    others = atoms_of(right, left, total, hardware).values()
    swapped = (replace(each, is_swapped=True) for each in others if each.unit is None)
    return tuple(sorted((*own, *swapped), key=lambda each: (abs(each.offset), each.is_swapped)))


def atom_to_ask_for(hardware: Hardware) -> Atom | None:
    """An instruction on registers that a process has to ask for, if there is one."""
    asked = (each for each in ATOMS if each.unit and each.unit.refused and each.is_on(hardware))
    return next(asked, None)


def best_of_vectors(atoms: Mapping[int, Atom]) -> int:
    """The depth of the deepest instruction of vectors among these."""
    return max(depth for depth, atom in atoms.items() if atom.unit is None)


def only_fma(hardware: Hardware) -> Mapping[int, Atom]:
    """The instructions for products of which every step is one element: fused multiply-adds alone."""
    return {FMA.depth: FMA}
