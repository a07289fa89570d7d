"""How a device is served: its options, where it is reached, and the command line of its process."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, replace

from tuner.errors import MAX_SHOWN, InvalidInput
from tuner.measure.network.addresses import Address, address_text, is_everywhere, local_address, parse_address
from tuner.measure.sandbox.confinement import DEFAULT_LIMITS, Limits, parse_memory
from tuner.program.target.cpu import MAX_CORES

HERE = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """How a device is served. Port 0: the first free one from 9091. ``parent``: the process to end with.

    ``host``, where it listens: None is where the tracker's network reaches this machine, or this machine alone where
    there is no tracker. ``address``, by which it is registered: None is the address that it listens at.

    ``cores``: those that it measures on, where others of the machine are for other devices; none: all that this process
    may use. ``gpu``: the GPU that it measures on, as its driver counts them; None: it is this CPU.
    """

    host: str | None = None
    port: int = 0
    key: str = ""
    tracker: Address | None = None
    device_id: str = ""
    address: str | None = None
    parent: int | None = None
    cores: tuple[int, ...] = ()
    gpu: int | None = None
    limits: Limits = DEFAULT_LIMITS


def placed(options: DeviceOptions) -> DeviceOptions:
    """The options with ``host`` and ``address`` filled in. Raises InvalidInput where the tracker's name is unknown, or
    no network leads to it."""
    if options.tracker is None:
        return replace(options, host=options.host or HERE)
    try:
        own = local_address(options.tracker)
    except OSError as error:
        where = address_text(options.tracker)
        raise InvalidInput(
            "--tracker", f"no network leads to {where}: {error.strerror}", "name it as in 10.0.0.7:9190"
        ) from None
    host = own if options.host is None else options.host
    # The tracker would register the address that the connection comes from, which is another one.
    return replace(options, host=host, address=options.address or (own if is_everywhere(host) else host))


def parse_options(argv: list[str]) -> DeviceOptions:
    """The command line of tuner.measure.device.process. Ends the process where it is wrong."""
    parser = argparse.ArgumentParser(prog="device_process", description="Serve this machine as a device.")
    parser.add_argument("--host", default=None, help="the address to listen on [default: the one the tracker reaches]")
    parser.add_argument("--port", type=int, default=0, help="the port; 0 takes a free one")
    parser.add_argument("--key", default="", help="the key that jobs name this device by")
    parser.add_argument("--tracker", type=parse_address, default=None, metavar="HOST:PORT")
    parser.add_argument("--id", default="", dest="device_id", help="names this device; the same after a restart")
    parser.add_argument("--address", default=None, help="the address that others reach this machine by")
    parser.add_argument("--parent", type=int, default=None, help="end when this process is no longer the parent")
    parser.add_argument("--cores", type=parse_cores, default=(), help="the cores to measure on, as in 0,2-3")
    parser.add_argument("--gpu", type=int, default=None, help="the GPU to measure on, as the driver counts them")
    parser.add_argument("--user", default=None, help="whom candidates run as")
    parser.add_argument("--memory", type=parse_memory, default=None, help="what a candidate may map, as in 8G")
    given = vars(parser.parse_args(argv))
    limits = Limits(given.pop("memory"), given.pop("user"), of_data=given["gpu"] is not None)
    return DeviceOptions(**given, limits=limits)


def parse_cores(text: str) -> tuple[int, ...]:
    """``0,2-3`` as numbers of cores. Raises ValueError where it is none, or this process may not use one of them."""
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal() and int(first) <= int(last or first)):
            raise ValueError(f"{part[:MAX_SHOWN]!r} is neither a core nor a range of cores")
        if int(last or first) >= MAX_CORES:
            raise ValueError(f"there is no core {int(last or first)}")
        numbers |= set(range(int(first), int(last or first) + 1))
    if missing := sorted(numbers - os.sched_getaffinity(0)):
        raise ValueError(f"there is no core {missing[0]} for this process")
    return tuple(sorted(numbers))
