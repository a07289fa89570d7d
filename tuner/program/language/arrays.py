"""The NumPy form of tensors: element types by the names that programs use."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import numpy as np

from tuner.program.language.dtypes import DTYPES

BFLOAT16 = "bfloat16"


def _known() -> Mapping[str, np.dtype[Any]]:
    known = {name: np.dtype(name) for name in DTYPES if name != BFLOAT16}
    if importlib.util.find_spec("ml_dtypes") is None:
        return known
    import ml_dtypes  # noqa: PLC0415 - part of every installation; hosts of bundles need not have it

    return {name: np.dtype(ml_dtypes.bfloat16) if name == BFLOAT16 else known[name] for name in DTYPES}


NUMPY = _known()
"""The NumPy dtype of a tensor's elements in memory; bfloat16 is that of ml_dtypes, and is missing without it."""
