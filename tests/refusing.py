"""A process that Linux refuses the tiles of AMX, whatever the machine, on a CPU that says it is a Sapphire Rapids:

    python -m tests.refusing NUMBER QUESTION PATH

``arch_prctl`` answers with that number of an error when it is asked for tiles. Prints the answer as JSON.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from shapewright import doctor
from shapewright.library import check_cpu
from tests.compiled import loaded
from tests.refused import refuse, say_sapphire_rapids
from tuner.errors import ShapewrightError
from tuner.program.target import Target, native
from tuner.schedule.product.atoms import atoms_of

ROOT = Path(__file__).resolve().parents[1]
DEADLINE_S = 120.0
SIZE = 40
SAPPHIRE_RAPIDS = {"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 1}


def answer(error: int, question: str, path: Path | None = None) -> tuple[Any, str]:
    """What one of QUESTIONS is answered in such a process, and what it logged."""
    line = [sys.executable, "-m", "tests.refusing", str(error), question, str(path)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


# -- in the process ---------------------------------------------------------------------------------------------------
def what_is_said(_: str) -> dict[str, Any]:
    """Of the machine, of its CPU in `doctor`, and of a library that is for a Sapphire Rapids."""
    target, finding = native(), doctor.cpu()
    atoms = atoms_of("bfloat16", "bfloat16", "float32", target.hardware).values()
    library = ""
    try:
        check_cpu({"target": Target.from_json(SAPPHIRE_RAPIDS).to_json()})
    except ShapewrightError as error:
        library = str(error)
    return {
        "mcpu": target.mcpu,
        "instructions": [atom.name for atom in atoms],
        "doctor": [finding.state, finding.says, finding.remedy],
        "library": library,
    }


def what_a_kernel_says(path: str) -> str:
    """One that multiplies a matrix of SIZE by SIZE bfloat16 by another."""
    try:
        loaded(Path(path).read_bytes())([np.zeros((1, SIZE, SIZE), bfloat16) for _ in range(3)])
    except RuntimeError as error:
        return str(error)
    return "nothing"


def what_a_c_library_says(path: str) -> list[Any]:
    """A shared library whose function ``shapewright_layer`` takes three operands and a size: its status and message."""
    library = ctypes.CDLL(path)
    library.shapewright_layer_error.restype = ctypes.c_char_p
    status = library.shapewright_layer(*[ctypes.c_void_p()] * 3, ctypes.c_int64(1))
    return [status, library.shapewright_layer_error().decode()]


QUESTIONS: Mapping[str, Callable[[str], Any]] = {
    "machine": what_is_said,
    "kernel": what_a_kernel_says,
    "c library": what_a_c_library_says,
}

if __name__ == "__main__":
    refuse(int(sys.argv[1]))
    say_sapphire_rapids()
    print(json.dumps(QUESTIONS[sys.argv[2]](sys.argv[3])))
