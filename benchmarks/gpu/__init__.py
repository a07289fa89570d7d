"""GPUs: bundles of a job's candidates, and libraries beside PyTorch's own ways."""

from collections.abc import Mapping
from typing import Any

REPLAY_US = 6.4
"""Of a replay of a CUDA graph itself: a fit to graphs of empty kernels on an H100 (docs/decisions/0069)."""


def times(block: Mapping[str, Any]) -> dict[str, float]:
    """Microseconds of a launch by name, without what a replay takes itself."""
    return {name: max(us - REPLAY_US / block["launches"], 0.1) for name, us in block["us"].items()}
