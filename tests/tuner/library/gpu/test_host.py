"""Sizes that the host computes: C gives what Python gives, and stays at the ends of int64 beyond them."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.contract.rule_samples import SAMPLES
from tuner.library.gpu import build
from tuner.library.gpu.host import c_expression
from tuner.program.job.build import workload_from_json
from tuner.schedule.gpu.plan import emit

TEXTS = (
    "-(-s_m // 64)", "cdiv(s_m, 7)", "cdiv(max(s_m, 0) * max(s_n, 0), 64) * 3", "((s_m + -3) // 4) * s_n",
    "s_m % 5 - s_n // 9", "(s_m * s_n + -1) % 16", "max(s_m, s_n, 3)", "min(s_m, -s_n)", "s_m * s_m * s_m * s_n",
    "-7 // 2 + s_m", "cdiv(s_m - s_n, 3)",
)  # fmt: skip
END = 2**63 - 1
SCOPE = {"max": max, "min": min, "cdiv": lambda a, b: -(-a // b)}


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """A function for each text, behind integers.c."""
    integers = Path(build.__file__).with_name("integers.c").read_text()
    functions = (
        f"int64_t f{at}(int64_t s_m, int64_t s_n) {{ return {c_expression(text)}; }}" for at, text in enumerate(TEXTS)
    )
    folder = tmp_path_factory.mktemp("host")
    (folder / "host.c").write_text("\n".join(["#include <stdint.h>", integers, *functions]))
    line = ["gcc", "-Wno-unused-parameter", "-O2", "-shared", "-fPIC", "-o", "host.so", "host.c"]
    subprocess.run(line, cwd=folder, check=True, timeout=60)
    return ctypes.CDLL(str(folder / "host.so"))


@example(m=2**21, n=-1)
@given(m=st.integers(-(2**31), 2**31), n=st.integers(-(2**31), 2**31) | st.integers(-9, 9))
def test_sizes_are_pythons(code: ctypes.CDLL, m: int, n: int) -> None:
    for at, text in enumerate(TEXTS):
        function = code[f"f{at}"]
        function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_int64] * 2
        wanted = eval(text, SCOPE, {"s_m": m, "s_n": n})
        if abs(wanted) <= END:
            assert function(m, n) == wanted, text
        elif text.count("*") == 3:
            # At an end, or one before it: what stayed at the other end was multiplied by -1.
            found = function(m, n)
            assert abs(found) >= END and (found > 0) == (wanted > 0), text


def test_everything_that_modules_compute_is_translated() -> None:
    for samples in SAMPLES.values():
        for sample in samples.values():
            module = emit(workload_from_json(sample))
            sizes = [size for launch in module.launches for size in launch.grid]
            sizes += [each.size for each in module.scratch]
            sizes += [size for each in module.launches for matrix in each.function.descriptors for size in matrix.shape]
            assert all(c_expression(size) for size in sizes)


@pytest.mark.parametrize(
    "text", ["s_m / 2", "open(1)", "max()", "1.5", "True", "s_m +", "a.b", "2 ** 9", f"{2**63}", "max(1, key=2)"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no size that a host computes"):
        c_expression(text)
