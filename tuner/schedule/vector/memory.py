"""Vectors in TensorIR: masked at ragged ends, prefetched, transposed and added up in registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from tuner.program.target import Hardware
from tuner.schedule.tir import I, TirExpr, i64, tirx, tvm
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import constant, element_type, lanes_of, vector_type

DTYPE = "float32"
WORD_BYTES = 4
DL_CPU, DL_FLOAT = 1, 2


@dataclass(frozen=True)
class Vectors:
    """Loads and stores of ``lanes`` consecutive elements of a buffer, two or more, of the buffer's dtype.

    A masked load or store touches no element outside its mask on any target: where the target has no instruction
    for it, LLVM branches around each lane.
    """

    lanes: int

    def zero(self) -> TirExpr:
        return tirx.Broadcast(tirx.FloatImm(DTYPE, 0.0), self.lanes)

    def ramp(self, start: TirExpr | int) -> TirExpr:
        return tirx.Ramp(start, tirx.IntImm("int64", 1) if not isinstance(start, int) else 1, self.lanes)

    def load(self, buffer: TirExpr, prefix: Sequence[TirExpr], column: TirExpr, limit: TirExpr | None) -> TirExpr:
        """A vector of ``buffer[*prefix, column:]``; lanes at and past ``limit`` are not touched and give zero."""
        if limit is None:
            return buffer[(*prefix, self.ramp(column))]
        return loaded_where(self.mask(column, limit), buffer, (*prefix, self.ramp(column)))

    def store(
        self, buffer: TirExpr, value: TirExpr, prefix: Sequence[TirExpr], column: TirExpr, limit: TirExpr | None
    ) -> None:
        """The opposite of ``load``."""
        if limit is None:
            I.buffer_store(buffer, value, [*prefix, self.ramp(column)])
        else:
            value, mask = fenced_integers(value), self.mask(column, limit)
            I.evaluate(tirx.op.masked_store(buffer, value, *prefix, self.ramp(column), mask))

    def transposed(self, rows: Sequence[TirExpr]) -> list[TirExpr]:
        """The columns of the square of ``lanes`` vectors: log2(lanes) rounds of exchanges between pairs."""
        rows, span = list(rows), 1
        while span < self.lanes:
            low = [lane if not lane & span else self.lanes + lane - span for lane in range(self.lanes)]
            high = [lane + span if not lane & span else self.lanes + lane for lane in range(self.lanes)]
            for first in range(self.lanes):
                if not first & span:
                    pair = [rows[first], rows[first + span]]
                    rows[first], rows[first + span] = (I.Bind(shuffled(pair, lanes)) for lanes in (low, high))
            span *= 2
        return rows

    def totals(self, rows: Sequence[TirExpr]) -> TirExpr:
        """The sums of ``lanes`` vectors as one vector: in each round, pairs become one vector of their halves' sums."""
        rows, span = list(rows), 1
        while span < self.lanes:
            low = [lane if not lane & span else self.lanes + lane - span for lane in range(self.lanes)]
            high = [lane + span if not lane & span else self.lanes + lane for lane in range(self.lanes)]
            pairs = [rows[first : first + 2] for first in range(0, len(rows), 2)]
            rows = [bound(shuffled(pair, low) + shuffled(pair, high)) for pair in pairs]
            span *= 2
        return rows[0]

    def total(self, value: TirExpr) -> TirExpr:
        """The sum of a vector's lanes: halves are added until one is left."""
        for span in self._spans():
            value = I.Bind(value)
            value = value + rotated(value, span)
        return tirx.Shuffle([I.Bind(value)], [tirx.IntImm("int32", 0)])

    def across(self, value: TirExpr, combine: Callable[[TirExpr, TirExpr], TirExpr]) -> TirExpr:
        """A vector's lanes combined to one scalar by an operation of any dtype whose operands may change places."""
        for span in self._spans():
            value = bound(value)
            value = combine(value, bound(rotated(value, span)))
        return tirx.Shuffle([bound(value)], [tirx.IntImm("int32", 0)])

    def _spans(self) -> Iterator[int]:
        span = self.lanes // 2
        while span:
            yield span
            span //= 2

    def mask(self, column: TirExpr, limit: TirExpr) -> TirExpr:
        """Which lanes of the vector at ``column`` lie before ``limit``."""
        # The intrinsic is generated for int32 alone, and compares without sign.
        valid = tirx.Cast("int32", tirx.max(tirx.min(limit - column, i64(self.lanes)), i64(0)))
        return tirx.op.get_active_lane_mask(f"boolx{self.lanes}", tirx.IntImm("int32", 0), valid)


def loaded_where(mask: TirExpr, buffer: TirExpr, place: Sequence[TirExpr]) -> TirExpr:
    """The lanes of ``buffer[*place]`` that ``mask`` has; others are not touched and give zero.

    ``place`` ends in a ramp of as many lanes as ``mask`` has.
    """
    lanes, element, mask = lanes_of(mask), str(buffer.dtype), bound(mask)
    value = tirx.op.masked_load(vector_type(element, lanes), buffer, *place, mask)
    # TVM leaves the other lanes to LLVM, which may put anything there. LLVM makes one instruction of both.
    return tirx.Select(mask, value, constant(0, element, lanes))


def rotated(value: TirExpr, span: int) -> TirExpr:
    """The lanes of a vector, ``span`` places nearer to the first. ``value`` is used once."""
    lanes = int(value.ty.dtype.lanes)
    return shuffled([value], [(lane + span) % lanes for lane in range(lanes)])


def shuffled(vectors: Sequence[TirExpr], lanes: Sequence[int]) -> TirExpr:
    """The lanes of vectors laid one after the other."""
    return tirx.Shuffle(list(vectors), [tirx.IntImm("int32", lane) for lane in lanes])


IN_L1, IN_L2 = 3, 2
"""LLVM's numbers of the caches that a line is asked for to be kept in, from that one on."""


def prefetch(buffer: TirExpr, indices: Sequence[TirExpr], write: bool = False, locality: int = IN_L1) -> None:
    """Ask for a cache line to be kept, in every level unless ``locality`` says otherwise. An address that is not mapped
    costs time and no fault."""
    _prefetch(tirx.address_of(buffer[tuple(indices)]), write, locality)


_are_aligned: ContextVar[bool] = ContextVar("are_aligned")


@contextmanager
def spills_aligned(are_aligned: bool) -> Iterator[None]:
    """What is written inside is a function: its spills, and those of loops over threads, are aligned or not."""
    token = _are_aligned.set(are_aligned)
    try:
        align_spills()
        yield
    finally:
        _are_aligned.reset(token)


def align_spills() -> None:
    """Have LLVM spill vectors of the function at hand to multiples of their size, which ABIs do not align the stack to.

    LLVM aligns the stack for spills only if the function has a frame pointer before it allocates registers. A function
    that asks for its frame has one. Loops that spill take longer where vectors lie across two cache lines, and that
    differs from process to process (docs/decisions/0121).
    """
    if _are_aligned.get():
        # An address that nothing uses would be removed.
        _prefetch(tirx.call_llvm_intrin("handle", "llvm.frameaddress.p0", tirx.IntImm("int32", 0)))


def _prefetch(address: TirExpr, write: bool = False, locality: int = IN_L1) -> None:
    i32 = [tirx.IntImm("int32", value) for value in (int(write), locality, 1)]
    I.evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch.p0", address, *i32))


@contextmanager
def workspace(shape: Sequence[TirExpr], dtype: str = DTYPE) -> Iterator[TirExpr]:
    """A buffer of the calling thread's own, aligned to 64 bytes.

    Allocated by hand: the compiler would move an allocation of its own to where the device is not known.
    """
    size = i64(bytes_of(dtype))
    for extent in shape:
        size = size * extent
    device = [tirx.IntImm("int32", DL_CPU), tirx.IntImm("int32", 0)]
    request = [*device, tirx.Cast("uint64", size), tirx.IntImm("int32", DL_FLOAT), tirx.IntImm("int32", 32)]
    pointer = tvm.ir.PointerType(tvm.ir.PrimType(dtype))
    data = I.Bind(tvm.ir.Call("tirx.TVMBackendAllocWorkspace", request, ret_ty=pointer))
    yield I.decl_buffer(tuple(shape), dtype, data=data, align=64)
    I.evaluate(tvm.ir.Call("tirx.TVMBackendFreeWorkspace", [*device, data], ret_ty="int32"))


def part_of(buffer: TirExpr, first: int, shape: Sequence[int]) -> TirExpr:
    """What lies from element ``first`` of a buffer of one dim on, as a buffer of its own of another shape."""
    pointer = tvm.ir.PointerType(tvm.ir.PrimType(buffer.dtype))
    address = tirx.address_of(buffer[i64(first)])
    data = I.Bind(tvm.ir.Call("tirx.reinterpret", [address], ret_ty=pointer))
    return I.decl_buffer([i64(size) for size in shape], buffer.dtype, data=data, align=bytes_of(buffer.dtype))


def fenced_integers(value: TirExpr) -> TirExpr:
    """A vector of short integers, kept apart from the cast that it comes from. Of such a cast and a masked store of one
    lane LLVM 22 makes a store of the whole integer before the cast, past what the mask allows."""
    dtype, lanes = element_type(value), lanes_of(value)
    words = lanes * bytes_of(dtype) // WORD_BYTES
    if "int" not in dtype or bytes_of(dtype) >= WORD_BYTES or words == 0:
        return value
    # A fence is no instruction, and is there for floats alone.
    floats = vector_type(DTYPE, words)
    fenced = tirx.call_llvm_intrin(floats, "llvm.arithmetic.fence", tirx.reinterpret(floats, value))
    return tirx.reinterpret(vector_type(dtype, lanes), fenced)


def bytes_of(dtype: str) -> int:
    return int(tvm.DataType(dtype).bits) // 8


_OF_TWO, _OF_ONE = "llvm.x86.avx512.vpermi2var.ps.512", "llvm.x86.avx2.permps"
_NEEDS = {64: "avx512f", 32: "avx2"}


def permutes(hardware: Hardware) -> bool:
    """Whether vectors of 32-bit words are made of any lanes of two others."""
    return _NEEDS.get(hardware.vector_bytes) in hardware.features


def permuted(first: TirExpr, second: TirExpr, lane: TirExpr) -> TirExpr:
    """By lane of a vector of float32: lane ``lane`` of ``first``, or of ``second`` from ``lanes`` on (int32)."""
    lanes = lanes_of(first)
    wide = vector_type("float32", lanes)
    if lanes == 16:
        return tirx.call_llvm_intrin(wide, _OF_TWO, first, lane, second)
    # Of a lane's number the instruction takes the lowest bits.
    low, high = (bound(tirx.call_llvm_intrin(wide, _OF_ONE, vector, lane)) for vector in (first, second))
    return tirx.Select(lane < tirx.Broadcast(tirx.IntImm("int32", lanes), lanes), low, high)


TABLE, WORDS = 16, 32
"""Elements of a table that one instruction looks up: of float32, of 16 bits."""


def looks_up(hardware: Hardware) -> bool:
    """Whether a vector of floats is looked up in a table of TABLE by one instruction."""
    return permutes(hardware) and hardware.lanes() == TABLE


def looks_up_words(hardware: Hardware) -> bool:
    """Whether elements of 16 bits are looked up in a table of WORDS by one instruction."""
    return looks_up(hardware) and "avx512bw" in hardware.features


def looked_up(table: TirExpr, index: TirExpr) -> TirExpr:
    """By element of ``index``, an integer of as many bits: the element of ``table`` that its lowest bits are the number
    of, four of a table of float32, five of one of 16 bits."""
    name = "sf" if lanes_of(table) == TABLE else "hi"
    return tirx.call_llvm_intrin(table.ty.dtype, f"llvm.x86.avx512.permvar.{name}.512", table, index)
