"""Linux may refuse a process the tiles of AMX: kernels are those of AVX-512 then, the reason is said, and what was
built for tiles fails with it."""

from __future__ import annotations

import errno
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tests.compiled import shortest
from tests.refusing import SIZE, answer
from tuner.library.codegen import compile_candidate
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import Target, native, tiles
from tuner.program.target.cpu_names import X86
from tuner.schedule import rules_of
from tuner.schedule.product.atoms import AMX

pytestmark = pytest.mark.skipif(
    native().architecture != X86 or native().hardware.vector_bytes < 64, reason="this CPU has no AVX-512"
)


def with_tiles() -> Target:
    """This CPU, as if it had tiles."""
    own = native()
    features = (*own.hardware.features, "amx_tile", "amx_bf16", "amx_int8")
    return replace(own, hardware=replace(own.hardware, features=tuple(dict.fromkeys(features))))


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (errno.EPERM, "allow arch_prctl in the container's filter"),
        pytest.param(errno.EINVAL, "run Linux 5.16 or later", marks=pytest.mark.soak),
    ],
)
def test_a_machine_that_refuses_tiles_has_the_kernels_of_avx512_and_says_why(error: int, remedy: str) -> None:
    said, log = answer(error, "machine")
    assert (said["mcpu"], said["instructions"]) == ("icelake-server", ["fma", "dpbf16ps"])
    for text in (log, " ".join(said["doctor"]), said["library"]):
        assert tiles.REFUSED in text and remedy in text
    assert log.count(tiles.REFUSED) == 1
    assert said["doctor"][0] == "warning"
    assert "amx_bf16" in said["library"]


def test_a_kernel_for_tiles_that_are_refused_fails_with_the_reason(tmp_path: Path) -> None:
    rows = ShapeVar("T", range(1, 65))
    sizes = {"b": 1, "m": rows, "n": SIZE, "k": SIZE}
    task = SearchTask("batch_matmul_nt", sizes, (rows,), dtype="bfloat16", target=with_tiles(), threads=2)
    space, random = rules_of(task)[0].space(task), np.random.default_rng(0)
    depth = AMX[0].depth
    in_tiles = (each for each in iter(lambda: space.sample(random), None) if each.get("group") == depth)
    kernel = shortest(islice(in_tiles, 8))
    path = tmp_path / "kernel.so"
    path.write_bytes(compile_candidate(task, kernel).binary)
    said, _ = answer(errno.EPERM, "kernel", path)
    assert tiles.REFUSED in said
    assert "icelake-server" in said
