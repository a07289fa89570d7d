"""``python -m benchmarks.gpu.dlight JOB.yaml DIR`` makes kernels of a job by the rules of DLight, which is part of TVM
and searches nothing: a static function for each of ``--shapes`` tells them more than a symbolic one would.

It imports TVM and runs nvcc, and needs no GPU. ``python -m benchmarks.gpu.libraries --dlight DIR`` calls them by CuPy.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.harness.results import integers
from tuner.errors import ShapewrightError
from tuner.program.job.documents import read_yaml
from tuner.program.job.jobspec import parse_job
from tuner.program.language.workload import Workload

SHAPES = (24, 62, 100, 128)
NVCC_S = 300.0
CALL = re.compile(r'T\.call_ffi_kernel\("(\w+)", (.*), launch_params=\[(.*)\], ret_ty')
PLACES = [f"{unit}.{axis}" for unit in ("blockIdx", "threadIdx") for axis in "xyz"]
FREE_SHARED_BYTES = 48 << 10
"""Of dynamic shared memory, which no kernel has to ask for."""


def kernel_of(workload: Workload, shape: Mapping[str, int], arch: str) -> tuple[str, dict[str, Any]]:
    """CUDA's source of a workload at a shape, and how it is launched. Raises ShapewrightError for what takes several
    kernels, or memory of its own."""
    import tvm  # noqa: PLC0415 - hosts of GPUs have none
    from tvm.ir.instrument import pass_instrument  # noqa: PLC0415
    from tvm.s_tir import dlight  # noqa: PLC0415
    from tvm.s_tir.dlight import gpu  # noqa: PLC0415

    from benchmarks.rivals.static_function import static_function  # noqa: PLC0415

    hosts: list[str] = []

    @pass_instrument
    class Split:
        def run_after_pass(self, module: Any, info: Any) -> None:
            if info.name == "tirx.SplitHostDevice":
                hosts.append(module["main"].script())

    target = tvm.target.Target({"kind": "cuda", "arch": arch, "max_threads_per_block": 1024}, host="llvm")
    rules = gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()
    module = tvm.IRModule({"main": static_function(workload, shape)})
    with target:
        module = dlight.ApplyDefaultSchedule(*rules)(module)
    with tvm.transform.PassContext(instruments=[Split()]):
        (device,) = tvm.compile(module, target=target).mod.imports
    calls = CALL.findall(hosts[-1])
    operands = [operand.name for operand in workload.operands]
    if len(calls) != 1:
        raise ShapewrightError(f"{workload}: {len(calls)} kernels")
    name, passed, parameters = calls[0]
    values = [value.strip() for value in passed.split(",")]
    names = [value.removesuffix(".data").removesuffix("_1") for value in values if value.endswith(".data")]
    sizes = [int(re.sub(r"T\.int64\((\d+)\)", r"\1", value)) for value in values[len(names) :]]
    if not set(names) <= set(operands):
        raise ShapewrightError(f"{workload}: it takes {', '.join(names)}")
    launch = dict(zip(re.findall(r'"([\w.]+)"', parameters), sizes, strict=True))
    dims = [launch.get(place, 1) for place in PLACES]
    shared = launch.get("tirx.use_dyn_shared_memory", 0)
    return device.inspect_source(), {
        "workload": workload.key, "shape": dict(shape), "name": name, "operands": names, "grid": dims[:3],
        "block": dims[3:], "shared_bytes": shared,
    }  # fmt: skip


def pack(job: Path, folder: Path, shapes: Sequence[int], arch: str, nvcc: str) -> None:
    """The kernels of a job, as machine code and a table; what DLight or nvcc refuses is said and left out."""
    folder.mkdir(parents=True, exist_ok=True)
    made: list[dict[str, Any]] = []
    for task in parse_job(read_yaml(job.read_text())).tasks:
        first, *others = task.shape_vars
        for size in shapes:
            try:
                shape = {first.name: size, **{each.name: each.max for each in others}}
                source, facts = kernel_of(task.workload, shape, arch)
            except Exception as error:
                print(f"{task.workload} at {size} is left out: {type(error).__name__}: {str(error)[-200:]}", flush=True)
                continue
            facts["file"] = f"{len(made)}.cubin"
            (folder / f"{len(made)}.cu").write_text(source)
            made.append(facts)

    def compiled(facts: Mapping[str, Any]) -> bool:
        path = folder / facts["file"]
        command = [nvcc, f"-arch={arch}", "-cubin", "-O3", "-o", str(path), str(path.with_suffix(".cu"))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=NVCC_S, check=False)
        if done.returncode:
            print(f"{facts['workload']} is left out: {done.stderr.strip()[-300:]}", flush=True)
        return not done.returncode

    with ThreadPoolExecutor(2) as pool:
        kept = [facts for facts, is_made in zip(made, pool.map(compiled, made), strict=True) if is_made]
    for source_file in folder.glob("*.cu"):
        source_file.unlink()
    (folder / "kernels.json").write_text(json.dumps(kept))


def calls_of(
    folder: Path | None, workload: Workload, shape: Mapping[str, int], own: Mapping[str, Any]
) -> dict[str, Callable[[], Any]]:
    """The call of the kernel of a workload at a shape, on PyTorch's tensors and stream; none where it was left out."""
    if folder is None:
        return {}
    import cupy  # noqa: PLC0415 - hosts of GPUs have it
    import torch  # noqa: PLC0415

    table = json.loads((folder / "kernels.json").read_text())
    facts = next((each for each in table if (each["workload"], each["shape"]) == (workload.key, dict(shape))), None)
    if facts is None:
        return {}
    function = cupy.RawModule(path=str(folder / facts["file"])).get_function(facts["name"])
    if facts["shared_bytes"] > FREE_SHARED_BYTES:
        function.max_dynamic_shared_size_bytes = facts["shared_bytes"]
    pointers = tuple(own[name].data_ptr() for name in facts["operands"])

    def call() -> None:
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            function(tuple(facts["grid"]), tuple(facts["block"]), pointers, shared_mem=facts["shared_bytes"])

    return {"dlight": call}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=Path, metavar="JOB.yaml")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--shapes", type=integers, default=SHAPES, help=f"default: {SHAPES}")
    parser.add_argument("--arch", default="sm_90", help="default: sm_90")
    parser.add_argument("--nvcc", default="nvcc", metavar="FILE", help="CUDA's compiler")
    options = parser.parse_args()
    pack(options.job, options.folder, options.shapes, options.arch, options.nvcc)


if __name__ == "__main__":
    main()
