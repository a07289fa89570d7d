"""The NumPy form of tensors: element types by the names that programs use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from tuner.program.language.dtypes import DTYPES

NUMPY: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name in DTYPES
}
"""The NumPy dtype of a tensor's elements in memory; bfloat16 is that of ml_dtypes."""
