"""Linux may refuse a device's process the tiles of AMX: its target is one of AVX-512 then, tasks that are for tiles are
refused, and a kernel that is for them fails with the reason inside a session, which goes on."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.refusing import ROOT, SIZE
from tests.tuner.measure.device.test_devices import connected
from tests.tuner.schedule.product.test_permission import with_tiles
from tuner.library.codegen import compile_candidate
from tuner.measure import BuildResult, RunRequest, WrongDevice
from tuner.measure.network.addresses import free_port
from tuner.measure.processes import device_environment
from tuner.measure.runners.rpc import RpcRunner
from tuner.measure.sandbox.confinement import clean_environment
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar, WorkloadInstance
from tuner.program.target import Target, native, tiles
from tuner.program.target.cpu_names import X86
from tuner.records import ErrorKind
from tuner.schedule import rules_of
from tuner.schedule.product.atoms import AMX

pytestmark = pytest.mark.skipif(
    native().architecture != X86 or native().hardware.vector_bytes < 64, reason="this CPU has no AVX-512"
)
ROWS = ShapeVar("T", range(1, 65))
AVX512 = Target.from_json({"kind": "llvm", "mcpu": "x86-64-v4", "num-cores": 1})
DRAWN = 1000
_REFUSED = """
import sys
from tests.refused import refuse, say_sapphire_rapids

from tuner.measure.child import announce
from tuner.measure.device.process import parse_options, serve_until_stopped

refuse(int(sys.argv[1]))
say_sapphire_rapids()
# Not by its main, which begins anew where the environment is another one.
serve_until_stopped(parse_options(sys.argv[2:]), lambda _, port: announce(port))
"""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of a device on a CPU that says it is a Sapphire Rapids."""
    chosen = free_port()
    line = [sys.executable, "-c", _REFUSED, str(errno.EPERM), "--port", str(chosen)]
    environment = clean_environment(device_environment(None))
    with subprocess.Popen(line, stdout=subprocess.PIPE, cwd=ROOT, env=environment) as process:
        try:
            assert process.stdout is not None and json.loads(process.stdout.readline())["port"] == chosen
            yield chosen
        finally:
            process.kill()


@pytest.fixture
def runner(port: int) -> Iterator[RpcRunner]:
    made = RpcRunner(partial(connected, port), timeout_s=20.0)
    yield made
    made.close()


def task_for(target: Target) -> SearchTask:
    sizes = {"b": 1, "m": ROWS, "n": SIZE, "k": SIZE}
    return SearchTask("batch_matmul_nt", sizes, (ROWS,), dtype="bfloat16", target=target, threads=1)


def request_for(target: Target) -> RunRequest:
    """A kernel, in tiles where the target has them."""
    task, random = task_for(target), np.random.default_rng(0)
    space = rules_of(task)[0].space(task)
    has_tiles = any(map(tiles.is_of_tiles, target.hardware.features))
    drawn = (space.sample(random) for _ in range(DRAWN))
    kernel = next(each for each in drawn if (each.get("group") == AMX[0].depth) is has_tiles)
    return RunRequest(
        BuildResult(kernel, compile_candidate(task, kernel).binary, 0.0), (WorkloadInstance.of({"T": 5}),)
    )


def test_a_task_for_tiles_is_refused(runner: RpcRunner) -> None:
    with pytest.raises(WrongDevice, match=r"\(icelake-server\) lacks amx_bf16, amx_int8, amx_tile"):
        runner.run(task_for(with_tiles()), [request_for(with_tiles())])


def test_a_kernel_for_tiles_fails_with_the_reason_and_the_next_one_is_measured(runner: RpcRunner) -> None:
    right = request_for(AVX512)
    # The device asks the rule of its task's target what the kernel packs: nothing.
    mistaken = replace(right, build=replace(right.build, binary=request_for(with_tiles()).build.binary))
    refused, measured = runner.run(task_for(AVX512), [mistaken, right])
    assert refused.error_kind is ErrorKind.WRONG
    assert tiles.REFUSED in refused.error and "icelake-server" in refused.error
    assert measured.ok, measured.error
