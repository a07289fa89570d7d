"""No kernel reads past its operands: each is called between pages that may not be touched, in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.contract.rule_samples import SAMPLES

pytestmark = pytest.mark.soak

DEADLINE_S = 1200.0


@pytest.mark.parametrize("rule", sorted(SAMPLES))
def test_kernels_touch_nothing_outside_their_operands(rule: str) -> None:
    command = [sys.executable, "-m", "tests.fenced", rule]
    result = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    last = result.stdout.splitlines()[-1:]
    assert result.returncode == 0, f"ended with {result.returncode} at {last}: {result.stderr[-2000:]}"


@pytest.mark.parametrize(("place", "offset"), [("before_the_fence", 12), ("behind_the_fence", -1)])
def test_a_fence_ends_who_reads_past_it(place: str, offset: int) -> None:
    program = (
        "import ctypes; import numpy as np; from tests.fenced import *\n"
        f"array = {place}(np.arange(3, dtype=np.float32))\n"
        "assert list(array) == [0, 1, 2]\n"
        f"ctypes.string_at(array.ctypes.data + {offset}, 1)"
    )
    result = subprocess.run([sys.executable, "-c", program], timeout=DEADLINE_S, check=False)
    assert result.returncode == -signal.SIGSEGV
