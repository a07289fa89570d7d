"""A builder and a private device of this machine, for a search in this process. Imports TVM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from tuner.measure._base import Builder
from tuner.measure.builders.local import LocalBuilder
from tuner.measure.runners.local_device import LocalDevice, gpu_options
from tuner.measure.runners.rpc import RpcRunner


@contextmanager
def local_tools(gpu: int | None = None) -> Iterator[tuple[Builder, RpcRunner]]:
    """Both live in child processes, which end with the context. ``gpu``: see ``local_runner``."""
    with closing(LocalBuilder()) as builder:
        # The compiler is loaded while the device starts.
        builder.start()
        with local_runner(gpu) as runner:
            yield builder, runner


@contextmanager
def local_runner(gpu: int | None = None) -> Iterator[RpcRunner]:
    """The device alone, for what is built already. ``gpu``: the number of the one that it measures on; None: this CPU.
    Raises GpuFailed where there is none, or it is another device's."""
    with LocalDevice(options=gpu_options(gpu)) as device:
        runner = RpcRunner(device.connect)
        yield runner
        runner.close()
