"""A builder and a private device of this machine, for a search in this process. Imports TVM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from tuner.measure._base import Builder
from tuner.measure.builders.local import LocalBuilder
from tuner.measure.runners.local_device import LocalDevice
from tuner.measure.runners.rpc import RpcRunner


@contextmanager
def local_tools() -> Iterator[tuple[Builder, RpcRunner]]:
    """Both live in child processes, which end with the context."""
    with closing(LocalBuilder()) as builder:
        # The compiler is loaded while the device starts.
        builder.start()
        with local_runner() as runner:
            yield builder, runner


@contextmanager
def local_runner() -> Iterator[RpcRunner]:
    """The device alone, for what is built already."""
    with LocalDevice() as device:
        runner = RpcRunner(device.connect)
        yield runner
        runner.close()
