"""What a GPU host is: card, driver and versions."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import torch

QUERY = "name,driver_version,clocks.max.sm,clocks.sm,clocks.mem,power.limit,temperature.gpu,ecc.mode.current"


def facts() -> dict[str, Any]:
    """Card, driver and versions."""
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv"]
    smi = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
    properties = str(torch.cuda.get_device_properties(0)) if torch.cuda.is_available() else ""
    versions = {name: metadata.version(name) for name in ("torch", "triton", "numpy") if find_spec(name)}
    return {
        "smi": smi,
        "properties": properties,
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
        **versions,
    }
