"""Writes the table of CPUs (tuner/program/target/llvm_cpus.json) from the LLVM that TVM is built with.

    python -m tuner.program.target.llvm_cpus

To be run after TVM was upgraded; a test says when the table is no longer what this writes.
"""

from __future__ import annotations

import json
from typing import Any

from tuner.program.target.cpu import FEATURES
from tuner.program.target.cpu_names import NEEDED, TABLE, TRIPLES

OF_LLVM = {"asimd": "neon", "asimdhp": "fullfp16", "asimddp": "dotprod"}
"""Features of AArch64 that LLVM has other names for, by those of Linux."""


def table() -> dict[str, Any]:
    """The features that targets name, by architecture and CPU, as Linux calls them."""
    from tvm.target import codegen  # noqa: PLC0415 - only where the table is made

    cpus = {each: {name: _features(each, name) for name in _names(each)} for each in TRIPLES}
    return {"llvm": str(codegen.llvm_version_major()), **cpus}


def text() -> str:
    """The table as it is stored: a line for each CPU."""
    made = table()
    parts = [f'  "llvm": {json.dumps(made["llvm"])}']
    for architecture in TRIPLES:
        cpus = ",\n".join(f"    {json.dumps(name)}: {json.dumps(has)}" for name, has in made[architecture].items())
        parts.append(f'  "{architecture}": {{\n{cpus}\n  }}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _target(architecture: str, **more: str) -> Any:
    import tvm  # noqa: PLC0415

    return tvm.target.Target({"kind": "llvm", "mtriple": TRIPLES[architecture], **more})


def _names(architecture: str) -> list[str]:
    from tvm.target import codegen  # noqa: PLC0415

    return sorted(map(str, codegen.llvm_get_cpu_archlist(_target(architecture))))


def _features(architecture: str, mcpu: str) -> list[str]:
    from tvm.target import codegen  # noqa: PLC0415

    has = set(map(str, codegen.llvm_get_cpu_features(_target(architecture, mcpu=mcpu))))
    return [name for name in (NEEDED, *FEATURES[architecture]) if _of_llvm(name) in has]


def _of_llvm(feature: str) -> str:
    """Linux writes amx_tile and avx512_vnni, LLVM amx-tile and avx512vnni."""
    return OF_LLVM.get(feature, feature.replace("_", "-" if feature.startswith("amx") else ""))


if __name__ == "__main__":
    TABLE.write_text(text(), encoding="utf-8")
