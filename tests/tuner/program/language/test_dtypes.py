"""Element types and what arithmetic on them is done in."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tuner.program.language.dtypes import DTYPES, FLOATS, INTEGERS, promoted


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype_is_numpys_of_that_name(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    assert DTYPES[name].bytes == dtype.itemsize
    assert DTYPES[name].bits == 8 * dtype.itemsize
    assert (name in FLOATS) == (DTYPES[name].kind == "f")
    assert (name in INTEGERS) == (dtype.kind in "iu")
    assert DTYPES[DTYPES[name].compute].compute == DTYPES[name].compute


@pytest.mark.parametrize(
    ("dtypes", "result"),
    [
        (["float16"], "float32"),
        (["bfloat16", "float16"], "float32"),
        (["int8", "uint8"], "int32"),
        (["int8", "int64"], "int64"),
        (["int64", "float32"], "float32"),
        (["float32", "float64"], "float64"),
        (["bool"], "bool"),
        (["bool", "int8"], "int32"),
        ([], "int32"),
    ],
)
def test_arithmetic_is_done_in_the_wider_type(dtypes: list[str], result: str) -> None:
    assert promoted(dtypes) == result
    assert promoted(reversed(dtypes)) == result
