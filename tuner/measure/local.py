"""A builder and a private device of this machine, for a search in this process. Imports TVM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from tuner.measure._base import Builder
from tuner.measure.local_builder import LocalBuilder
from tuner.measure.local_device import LocalDevice
from tuner.measure.rpc_runner import RpcRunner


@contextmanager
def local_tools() -> Iterator[tuple[Builder, RpcRunner]]:
    """Both live in child processes, which end with the context."""
    with closing(LocalBuilder()) as builder:
        builder.start()
        with LocalDevice() as device:
            runner = RpcRunner(device.connect)
            yield builder, runner
            runner.close()
