"""CPUs by LLVM's names, and which of the features that targets name each of them has.

The table, ``llvm_cpus.json``, is written by ``python -m tuner.program.target.llvm_cpus`` from the LLVM that TVM
is built with: whatever is not in it ends the process that compiles, or is silently taken for another CPU.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tuner.errors import MAX_SHOWN, InvalidInput, did_you_mean, shown

TABLE = Path(__file__).with_name("llvm_cpus.json")
X86, ARM = "x86_64", "aarch64"
"""Architectures, as LLVM and Linux call them."""
TRIPLES: Mapping[str, str] = {X86: "x86_64-linux-gnu", ARM: "aarch64-linux-gnu"}
SPOKEN: Mapping[str, str] = {X86: "x86-64", ARM: "AArch64"}
NEEDED = "64bit"
"""What every rule's code needs of a CPU, beside what every 64-bit x86 CPU has (SSE2). AArch64 has NEON throughout."""
OWN_NAMES: Mapping[tuple[str, str], Sequence[str]] = {
    ("AuthenticAMD", "26"): ("znver5",),
    ("AuthenticAMD", "25"): ("znver4", "znver3"),
    ("AuthenticAMD", "23"): ("znver2", "znver1"),
    ("GenuineIntel", "6"): ("graniterapids",),
    ("0x41", "0xd84"): ("neoverse-v3",),
    ("0x41", "0xd4f"): ("neoverse-v2",),
    ("0x41", "0xd40"): ("neoverse-v1",),
    ("0x41", "0xd8e"): ("neoverse-n3",),
    ("0x41", "0xd49"): ("neoverse-n2",),
    ("0x41", "0xd0c"): ("neoverse-n1",),
}
"""CPU names, that of most features first, by maker and family (on AArch64 implementer and part) as Linux tells them."""
ONLY_WITH: Mapping[str, str] = {"znver2": "clwb"}
"""A flag of Linux, by CPU name, that tells the CPU from older ones where the features that targets name do not."""
USUAL = ("x86-64", "x86-64-v3", "x86-64-v4", "znver4", "icelake-server", "sapphirerapids", "neoverse-n1")
"""Named where a CPU is refused."""


def features_of(mcpu: object) -> tuple[str, ...]:
    """The features of a CPU that code can be generated for. Raises InvalidInput on field ``target.mcpu``."""
    architecture = architecture_of(mcpu)
    names: Sequence[str] = _table()[architecture][mcpu]
    if architecture == X86 and NEEDED not in names:
        problem = f"{mcpu!r} is a 32-bit CPU, code is generated for 64 bits and SSE2"
        raise InvalidInput("target.mcpu", problem, f"x86-64 has no more than those; or one of: {', '.join(USUAL[1:])}")
    return tuple(name for name in names if name != NEEDED)


def own_name(described: Mapping[str, str], flags: Collection[str]) -> str | None:
    """LLVM's name of a CPU, of which Linux tells the fields of /proc/cpuinfo and these flags: one whose features it
    has. None where its maker's names are not known, or it lacks some, as a virtual machine may."""
    maker = described.get("vendor_id") or described.get("CPU implementer", "")
    model = described.get("cpu family") or described.get("CPU part", "")
    for name in OWN_NAMES.get((maker, model), ()):
        if {*features_of(name), *filter(None, [ONLY_WITH.get(name)])} <= set(flags):
            return name
    return None


def architecture_of(mcpu: object) -> str:
    """X86 or ARM; of a name that both have, X86. Raises InvalidInput on field ``target.mcpu``."""
    table, field = _table(), "target.mcpu"
    if not isinstance(mcpu, str) or len(mcpu) > MAX_SHOWN:
        raise InvalidInput(field, f"{shown(mcpu)} is not known", f"one of: {', '.join(USUAL)}")
    of_name = next((architecture for architecture in TRIPLES if mcpu in table[architecture]), None)
    if of_name is None:
        meant = did_you_mean("".join(mcpu.split()[:1]), [name for each in TRIPLES for name in table[each]])
        remedy = f"{meant}one of: {', '.join(USUAL)}; or another name of LLVM {table['llvm']}"
        raise InvalidInput(field, f"{shown(mcpu)} is not known", remedy)
    return of_name


@cache
def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table
