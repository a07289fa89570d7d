"""A compiled function as data: what a library of it holds, and what its launcher has to know. Imports no compiler."""

from __future__ import annotations

import re
from dataclasses import dataclass

SCRATCH_POINTERS = 2
"""Pointers to scratch memory that Triton adds behind a function's own parameters."""
MAP_BYTES = 128
"""The size of a tensor map, which is passed by value."""
TF32_ELEMENT = 11
"""The driver's number for float32 that is rounded to TF32 on the way."""
_ENTRY = re.compile(r"\.entry\s+\w+\s*\((.*?)\)", re.DOTALL)
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)[^,\[]*?(?:\[(\d+)\])?\s*(?:,|$)")
_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8}


@dataclass(frozen=True)
class TensorMap:
    """How the hardware brings a tile of a matrix: the driver's number for the dtype, bytes of an element, the driver's
    number for the swizzle, and the rows and columns that one instruction brings."""

    element: int
    element_bytes: int
    swizzle: int
    box: tuple[int, int]


@dataclass(frozen=True)
class Cubin:
    """A compiled function.

    ``target``: the instruction set, as PTX names it: code of sm_80 runs on all sm_8x, that of sm_90a on sm_90 alone.
    ``registers``: of a thread; ``spilled_bytes``: stored to local memory; ``shared_bytes``: of a block.
    ``parameters``: the bytes of each; ``maps``: of each descriptor.
    """

    name: str
    binary: bytes
    ptx: str
    shared_bytes: int
    registers: int
    spilled_bytes: int
    num_warps: int
    target: str = ""
    parameters: tuple[int, ...] = ()
    maps: tuple[TensorMap, ...] = ()

    def fits(self, block_shared_bytes: int) -> bool:
        """Whether the hardware runs it, and nothing spills."""
        return self.shared_bytes <= block_shared_bytes and self.spilled_bytes == 0


def target_of(ptx: str) -> str:
    """The instruction set that PTX is for, as in sm_90a."""
    found = re.search(r"\.target\s+(sm_\w+)", ptx)
    if found is None:
        raise ValueError("the PTX names no target")
    return found[1]


def parameters_of(ptx: str) -> tuple[int, ...]:
    """The bytes of each parameter of the function in PTX, in order."""
    found = _ENTRY.search(ptx)
    if found is None:
        raise ValueError("the PTX has no function")
    sizes = []
    for line in filter(None, map(str.strip, found[1].splitlines())):
        parameter = _PARAMETER.search(line)
        if parameter is None:
            raise ValueError(f"the PTX has a parameter of another form: {line}")
        bits = re.sub("[a-z]", "", parameter[1])
        sizes.append(_SIZES[bits] * int(parameter[2] or 1))
    return tuple(sizes)
