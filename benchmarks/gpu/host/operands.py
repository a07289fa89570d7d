"""What a bundle's kernels are called with, and what they give out."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
FATAL = ("illegal", "launch failure", "misaligned", "device-side assert", "uncorrectable", "unspecified")
"""Words of errors after which the device's context is lost."""


class Log:
    """Lines of JSON in a file, each written at once."""

    def __init__(self, folder: Path, start: float) -> None:
        self.folder, self.start = folder, start

    def add(self, name: str, **fields: Any) -> None:
        fields["at"] = round(time.time() - self.start, 2)
        with (self.folder / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps(fields, separators=(",", ":")) + "\n")


MODULES: dict[str, Any] = {}


def module(source: str) -> Any:
    """An emitted module, imported once."""
    if source not in MODULES:
        path = HERE / source
        name = path.stem
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        MODULES[source] = importlib.util.module_from_spec(spec)
        sys.modules[name] = MODULES[source]
        spec.loader.exec_module(MODULES[source])
    return MODULES[source]


def drawn(operand: Mapping[str, Any], seed: int, device: str) -> torch.Tensor:
    """A tensor of random values, as the bundle says: normal, or integers below a number."""
    generator = torch.Generator(device=device).manual_seed(seed)
    dtype, shape = getattr(torch, operand["dtype"]), tuple(operand["shape"])
    if operand.get("below"):
        low = operand.get("low", 0)
        return torch.randint(low, operand["below"], shape, generator=generator, device=device).to(dtype)
    values = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
    return (values * operand.get("scale", 1.0)).to(dtype)


def operand_sets(block: Mapping[str, Any], device: str) -> list[dict[str, torch.Tensor]]:
    """The operands of a block, as many times as it asks for, so that the L2 is cold."""
    sets = []
    for number in range(block.get("sets", 1)):
        made = {each["name"]: drawn(each, 7 * number + place, device) for place, each in enumerate(block["inputs"])}
        made |= {
            each["name"]: torch.zeros(tuple(each["shape"]), dtype=getattr(torch, each["dtype"]), device=device)
            for each in block["outputs"]
        }
        sets.append(made)
    return sets


def prepared(
    kernel: Mapping[str, Any], block: Mapping[str, Any], sets: Sequence[Mapping[str, Any]]
) -> Callable[[int], None]:
    """A call of a kernel on one of the sets; constants are packed before."""
    loaded = module(kernel["source"])
    names = [each["name"] for each in (*block["inputs"], *block["outputs"])]
    calls = [[loaded.pack(name, own[name]) for name in names] for own in sets]
    symbols = block["symbols"]

    def call(number: int) -> None:
        loaded.run(*calls[number % len(calls)], *symbols)

    return call


def error_of(result: torch.Tensor, wanted: torch.Tensor) -> float:
    """The norm of the difference over that of what is wanted; NaN where anything is."""
    difference, whole = result.double() - wanted.double(), wanted.double()
    return float(difference.norm() / whole.norm().clamp_min(1e-30))
