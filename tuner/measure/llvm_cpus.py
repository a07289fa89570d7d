"""Writes the table of CPUs (tuner/program/llvm_cpus.json) from the LLVM that TVM is built with.

    python -m tuner.measure.llvm_cpus

To be run after TVM was upgraded; a test says when the table is no longer what this writes.
"""

from __future__ import annotations

import json
from typing import Any

from tuner.program.cpus import NEEDED, TABLE
from tuner.program.target import KNOWN_FEATURES

TRIPLES = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}


def table() -> dict[str, Any]:
    """By architecture the names of CPUs; of x86 also the features that targets name, as Linux calls them."""
    from tvm.target import codegen  # noqa: PLC0415 - only where the table is made

    return {
        "llvm": str(codegen.llvm_version_major()),
        "x86_64": {name: _features("x86_64", name) for name in _names("x86_64")},
        "aarch64": _names("aarch64"),
    }


def text() -> str:
    """The table as it is stored: a line for each x86 CPU."""
    made = table()
    cpus = ",\n".join(f"    {json.dumps(name)}: {json.dumps(has)}" for name, has in made["x86_64"].items())
    rest = {name: json.dumps(made[name]) for name in ("llvm", "aarch64")}
    lines = ",\n".join(f'  "{name}": {value}' for name, value in rest.items())
    return f'{{\n{lines},\n  "x86_64": {{\n{cpus}\n  }}\n}}\n'


def _target(architecture: str, **more: str) -> Any:
    import tvm  # noqa: PLC0415

    return tvm.target.Target({"kind": "llvm", "mtriple": TRIPLES[architecture], **more})


def _names(architecture: str) -> list[str]:
    from tvm.target import codegen  # noqa: PLC0415

    return sorted(map(str, codegen.llvm_get_cpu_archlist(_target(architecture))))


def _features(architecture: str, mcpu: str) -> list[str]:
    from tvm.target import codegen  # noqa: PLC0415

    has = set(map(str, codegen.llvm_get_cpu_features(_target(architecture, mcpu=mcpu))))
    return [name for name in (NEEDED, *KNOWN_FEATURES) if _of_llvm(name) in has]


def _of_llvm(feature: str) -> str:
    """Linux writes amx_tile and avx512_vnni, LLVM amx-tile and avx512vnni."""
    return feature.replace("_", "-" if feature.startswith("amx") else "")


if __name__ == "__main__":
    TABLE.write_text(text(), encoding="utf-8")
