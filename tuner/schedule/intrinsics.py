"""Instructions that multiply and add, found by what they compute (as in AMOS, Zheng et al., ISCA 2022).

Each entry says, for elements of which dtypes, that a vector of totals takes one more step:

    total[lane] += sum(g < group) left[g] * right[lane, g]

A rule whose program adds up such products may use any entry that the target has; which one is an axis of its space.
Instructions on tiles of a matrix (AMX) compute ``total[row, lane]`` so, and have an entry of their own when there is a
rule for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache

from tuner.program.target import Hardware

SHORT_FLOATS = frozenset({"float16", "bfloat16"})
FLOATS = SHORT_FLOATS | {"float32"}
BYTES = frozenset({"int8", "uint8"})


@dataclass(frozen=True, slots=True)
class DotProduct:
    """``group``: neighbouring elements of the sum in one step, which are one word of 32 bits in a register.

    ``needs``: by the bytes of a vector the features without which there is no such instruction, no entry for vectors
    that it does not have; empty: any vectors. ``offset`` is added to every element of the left operand, and taken from
    the total again: instructions that want it without sign, or with one.
    """

    name: str
    left: frozenset[str]
    right: frozenset[str]
    total: str
    group: int
    needs: Mapping[int, str] = field(default_factory=dict)
    offset: int = 0
    operations: int = 1
    """Vector operations for each step."""
    is_swapped: bool = False
    """Whether what it calls left and right are the program's right and left operand."""

    def is_on(self, hardware: Hardware) -> bool:
        return not self.needs or self.needs.get(hardware.vector_bytes) in hardware.features


FMA = DotProduct("fma", FLOATS, FLOATS | BYTES, "float32", 1)

DOT_PRODUCTS: tuple[DotProduct, ...] = (
    FMA,
    DotProduct("dpbf16ps", frozenset({"bfloat16"}), frozenset({"bfloat16"}), "float32", 2, {64: "avx512_bf16"}),
    DotProduct("pmaddwd", BYTES, BYTES, "int32", 2, {64: "avx512bw", 32: "avx2"}, operations=2),
    DotProduct("dpbusd", frozenset({"uint8"}), frozenset({"int8"}), "int32", 4, {64: "avx512_vnni"}),
    DotProduct("dpbusd", frozenset({"int8"}), frozenset({"int8"}), "int32", 4, {64: "avx512_vnni"}, offset=128),
    DotProduct("sdot", frozenset({"int8"}), frozenset({"int8"}), "int32", 4, {16: "asimddp"}),
    DotProduct("udot", frozenset({"uint8"}), frozenset({"uint8"}), "int32", 4, {16: "asimddp"}),
    DotProduct("sdot", frozenset({"uint8"}), frozenset({"int8"}), "int32", 4, {16: "asimddp"}, offset=-128),
    # After the one before: of two for a group, the last is taken.
    DotProduct("usdot", frozenset({"uint8"}), frozenset({"int8"}), "int32", 4, {16: "i8mm"}),
)


@lru_cache(maxsize=1024)
def dot_products(left: str, right: str, total: str, hardware: Hardware) -> dict[int, DotProduct]:
    """What multiplies elements of these dtypes and adds to such a total there, by its group; the widest last."""
    fitting = [
        each for each in DOT_PRODUCTS
        if left in each.left and right in each.right and total == each.total and each.is_on(hardware)
    ]  # fmt: skip
    return {each.group: each for each in sorted(fitting, key=lambda each: each.group)}


@lru_cache(maxsize=1024)
def dot_products_either_way(left: str, right: str, total: str, hardware: Hardware) -> tuple[DotProduct, ...]:
    """The same, for operands that may also change places, which a product does not mind: several of a group perhaps,
    those without an offset first, and as they stand before swapped."""
    own = dot_products(left, right, total, hardware).values()
    swapped = (replace(each, is_swapped=True) for each in dot_products(right, left, total, hardware).values())
    return tuple(sorted((*own, *swapped), key=lambda each: (abs(each.offset), each.is_swapped)))


def only_fma(hardware: Hardware) -> Mapping[int, DotProduct]:
    """The instructions for products of which every step is one element: fused multiply-adds alone."""
    return {FMA.group: FMA}


_PERMUTES = {64: "avx512f", 32: "avx2"}


def permutes(hardware: Hardware) -> bool:
    """Whether vectors of 32-bit words are made of any lanes of two others (vector/permutation.py)."""
    return _PERMUTES.get(hardware.vector_bytes) in hardware.features


_is_fusing: ContextVar[bool] = ContextVar("is_fusing", default=False)


@contextmanager
def fusing(hardware: Hardware) -> Iterator[None]:
    """What is written inside is for ``hardware``: code may differ by what it has (``is_fusing``)."""
    token = _is_fusing.set(not {"fma", "asimd"}.isdisjoint(hardware.features))
    try:
        yield
    finally:
        _is_fusing.reset(token)


def is_fusing() -> bool:
    """Whether a multiplication and an addition round once (``vector.arithmetic.multiply_add``)."""
    return _is_fusing.get()
