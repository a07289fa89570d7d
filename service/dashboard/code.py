"""The code of kernels as pages show it: TensorIR and assembly, with syntax in colours."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from tuner.library.package import LIBRARY
from tuner.storage.sql import ClientStorage

DISASSEMBLER = "objdump"
LONGEST_S = 10.0
INSTRUCTION = '<span class="t-a">{}</span>  <span class="t-nf">{:<12}</span> {}'
Instruction = tuple[str, str, str]
MOST_LINES = 4000
"""Lines of code that a page shows."""
MULTIPLY_ADDS = (
    "vfmadd",
    "vfnmadd",
    "vfmsub",
    "vdp",
    "vpdp",
    "tdp",
    "fmla",
    "bfdot",
    "bfmmla",
    "sdot",
    "udot",
    "smmla",
)
"""How the mnemonics of fused multiply-adds and dot products begin, on x86 and ARM."""

_PYTHON = PythonLexer(stripnl=False)
_FORMAT = HtmlFormatter(nowrap=True, classprefix="t-")
_LINE = re.compile(r"\s*([0-9a-f]+):\s+(\S+)(.*)")
_WITHIN = re.compile(r"\b[0-9a-f]+ <kernel_[0-9a-f]+(?:\+(0x[0-9a-f]+))?>")


@dataclass(frozen=True, slots=True)
class Listing:
    """Code as HTML. ``lines`` is how many there are, ``shown`` how many of them are in it."""

    html: Markup
    lines: int
    shown: int


@dataclass(frozen=True, slots=True)
class Assembly:
    """The machine code of a kernel. ``listing`` is None where there is none, for the reason ``why``."""

    listing: Listing | None
    multiply_adds: int = 0
    why: str = ""


def script(text: str) -> Listing:
    """TensorIR, which is Python by its syntax."""
    lines = text.splitlines()
    shown = lines[:MOST_LINES]
    return Listing(Markup(highlight("\n".join(shown), _PYTHON, _FORMAT)), len(lines), len(shown))


def assembly(storage: ClientStorage, digest: str, kernel_id: str) -> Assembly:
    """What a library runs for a kernel, disassembled here. Addresses are counted from the kernel's first instruction.

    Raises NotFound.
    """
    if shutil.which(DISASSEMBLER) is None:
        return Assembly(None, why=f"{DISASSEMBLER} is not on the service's PATH: install binutils to see it")
    lines = disassembled(storage.artifact_files(digest).get(LIBRARY, b""), kernel_id)
    if not lines:
        return Assembly(None, why=f"{DISASSEMBLER} finds no code of this kernel, or does not know its architecture")
    shown = lines[:MOST_LINES]
    html = Markup("\n").join(Markup(INSTRUCTION).format(*each) for each in shown)
    return Assembly(Listing(html, len(lines), len(shown)), sum(each[1].startswith(MULTIPLY_ADDS) for each in lines))


def disassembled(library: bytes, kernel_id: str) -> list[Instruction]:
    """Address, mnemonic and operands of each instruction; none where the disassembler has nothing to say of it."""
    with tempfile.TemporaryDirectory(prefix="shapewright-code-") as folder:
        path = Path(folder) / LIBRARY
        path.write_bytes(library)
        options = ["-d", "--no-show-raw-insn", f"--disassemble=kernel_{kernel_id}"]
        try:
            command = [DISASSEMBLER, *options, str(path)]
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", check=False, timeout=LONGEST_S
            )
        except (OSError, subprocess.TimeoutExpired):
            return []
    found = [match for line in done.stdout.splitlines() if (match := _LINE.fullmatch(line))]
    if not found:
        return []
    first = int(found[0][1], 16)
    return [(f"{int(match[1], 16) - first:6x}", match[2], _operands(match[3])) for match in found]


def _operands(text: str) -> str:
    """Jumps within the kernel go to ``+0x1f0``: where it lies in the library says nothing."""
    return _WITHIN.sub(lambda match: f"+{match[1] or '0x0'}", text.strip())
