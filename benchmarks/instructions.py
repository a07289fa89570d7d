"""Rivals limited to the instruction set of a target, so that code for a lesser CPU is compared with code for the same.

The libraries that PyTorch ships read these limits from the environment when they are loaded.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace

from tuner.errors import InvalidInput
from tuner.program.target import Target, native
from tuner.program.target.cpu_names import ARM

SAY_S = 300.0
VARIABLES = ("MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
"""The variables of MKL, oneDNN, and PyTorch's own kernels that limit their instructions."""
LIMITS = (
    ("avx512_bf16", ("AVX512_E3", "AVX512_CORE_BF16", "avx512")),
    ("avx512_vnni", ("AVX512_E1", "AVX512_CORE_VNNI", "avx512")),
    ("avx512f", ("AVX512", "AVX512_CORE", "avx512")),
    ("avx2", ("AVX2", "AVX2", "avx2")),
    ("", ("SSE4_2", "SSE41", "default")),
)
"""The values of VARIABLES by feature; the first one that a target has counts."""
WIDE = re.compile(r"avx-?512", re.IGNORECASE)
PRODUCTS = """
import torch
torch.set_num_threads(1)
print("torch", torch.backends.cpu.get_cpu_capability(), flush=True)
x, weight = torch.ones(8, 64), torch.ones(64, 64)
torch.mm(x, weight)
packed = torch.ops.mkldnn._reorder_linear_weight(weight, 8)
torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
"""
SAID = {
    "torch": re.compile(r"^torch (.+)$", re.MULTILINE),
    "mkl": re.compile(r"^MKL_VERBOSE (oneMKL.+)$", re.MULTILINE),
    "onednn": re.compile(r"^onednn_verbose.*,cpu,isa:(.+)$", re.MULTILINE),
    "onednn_linear": re.compile(r"^onednn_verbose.*,exec,cpu,(?:inner_product|matmul),([^,]+)", re.MULTILINE),
}


def restricted(mcpu: str) -> Target:
    """This machine, caches and cores, as if it had the instructions of that CPU alone. Raises InvalidInput."""
    here, wanted = native(), Target.from_json({"kind": "llvm", "mcpu": mcpu})
    missing = sorted(set(wanted.hardware.features) - set(here.hardware.features))
    if missing or wanted.architecture != here.architecture:
        lacks = f"this machine lacks {', '.join(missing) or wanted.architecture}"
        raise InvalidInput("mcpu", f"code for {mcpu} does not run here: {lacks}", f"{here.mcpu}, or a lesser one")
    own = here.hardware
    caches = replace(wanted.hardware, l1d_bytes=own.l1d_bytes, l2_bytes=own.l2_bytes, l3_bytes=own.l3_bytes)
    return replace(wanted, hardware=replace(caches, cores=own.cores))


def limit_instructions(target: Target) -> dict[str, Mapping[str, str]]:
    """Limit PyTorch, MKL and oneDNN in this process and those that it starts: the ``variables`` of the environment, and
    what each library ``said`` of its instruction set under them. PyTorch must not be loaded yet.

    Raises RuntimeError if it is, or if one of them says that it uses AVX-512 where ``target`` has none.
    """
    if "torch" in sys.modules:
        raise RuntimeError("PyTorch was loaded before its instruction set was limited")
    variables = limits_of(target)
    os.environ.update(variables)
    said = said_under(variables)
    wide = {name: text for name, text in said.items() if WIDE.search(text)}
    if wide and "avx512f" not in target.hardware.features:
        raise RuntimeError(f"rivals are not limited to {target.mcpu}: {wide}")
    return {"variables": variables, "said": said}


def limits_of(target: Target) -> dict[str, str]:
    """The variables of the environment. Raises InvalidInput: the libraries have no such limits on AArch64."""
    if target.architecture == ARM:
        raise InvalidInput("mcpu", f"rivals cannot be limited to {target.mcpu}", "leave --mcpu out on this machine")
    values = next(values for feature, values in LIMITS if not feature or feature in target.hardware.features)
    return dict(zip(VARIABLES, values, strict=True))


def said_under(variables: Mapping[str, str]) -> dict[str, str]:
    """What the libraries say of themselves in a process of its own. Raises RuntimeError if PyTorch fails or hangs."""
    environment = {**os.environ, **variables, "MKL_VERBOSE": "1", "ONEDNN_VERBOSE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", PRODUCTS], env=environment, capture_output=True, text=True, timeout=SAY_S, check=True
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        why = f"no answer within {SAY_S:g} s" if isinstance(error, subprocess.TimeoutExpired) else error.stderr[-500:]
        raise RuntimeError(f"PyTorch does not run under {dict(variables)}: {why}") from error
    matches = {name: pattern.search(done.stdout) for name, pattern in SAID.items()}
    return {name: match.group(1) if match else "said nothing" for name, match in matches.items()}
