"""``python -m tests.soak.cpu_time_device device serve ...``: a device as `shapewright device serve` is one, but for its
clock, which counts CPU time.

What else runs on its core then slows no trial: workers, devices and Ray that are killed and started again all the time.
By the wall half of the readings were off by a tenth even where nothing was broken (two cores, a load of five), and
which kernels a search chooses was as much the load's doing as its own.
"""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

from shapewright.cli import main
from tuner.measure.processes import device_environment
from tuner.measure.sandbox.confinement import clean_environment


def count_cpu_time() -> None:
    """In the place of the clocks of tuner.measure.timing.protocol and of TVM's evaluator, by the same protocol."""
    import tvm_ffi  # noqa: PLC0415  (TVM reads its environment when it is imported)
    from tvm.runtime import Module  # noqa: PLC0415

    from tuner.measure.timing import protocol as timing  # noqa: PLC0415

    def evaluator(module: Any, name: str, _device: Any, *, number: int, repeat: int, f_preproc: str) -> Any:
        call, before = module[name], tvm_ffi.get_global_func(f_preproc)

        def timer(*operands: Any) -> Any:
            sample = timing.sampling(lambda: call(*operands))
            return SimpleNamespace(results=sample(number, repeat, before))

        return timer

    vars(timing)["time"] = SimpleNamespace(perf_counter=time.thread_time)
    Module.time_evaluator = evaluator


if __name__ == "__main__":
    # Otherwise the command starts this again, in an environment of its own: nothing may be left of what tests add.
    own = clean_environment(device_environment(None))
    if own.items() <= os.environ.items():
        for name in os.environ.keys() - own.keys():
            del os.environ[name]
        count_cpu_time()
    main()
