"""What a GPU is, by its driver: the target that it is, and its description. Asked in a process of its own, since a
process that has used a driver cannot hand it on to those that it forks, and a driver may hang."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any

from tuner.errors import GpuFailed
from tuner.measure.gpu.clocks import Clocks
from tuner.measure.gpu.driver import Driver
from tuner.program.target import Target
from tuner.program.target.cuda import ARCHITECTURES, nearest_product

ANSWER_S = 60.0
"""How long a driver may take to say what there is."""
MAJOR, MINOR, SMS, CLOCK_KHZ, MEMORY_KHZ, BUS_BITS, L2_BYTES = 75, 76, 16, 13, 36, 37, 38
"""The driver's numbers of attributes."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """``name`` as the driver has it, ``bus_id`` its place; ``driver`` the version of the driver, ``cuda`` what that is
    for. Clocks are in MHz, None where NVML is not there: ``no_clocks`` says why."""

    number: int
    name: str
    bus_id: str
    arch: str
    sms: int
    clock_mhz: int
    l2_bytes: int
    memory_bytes_s: int
    cuda: str
    driver: str | None
    watts: int | None
    most_mhz: int | None
    memory_mhz: int | None
    no_clocks: str

    @property
    def target(self) -> Target:
        """What code for it is generated for: the product that is nearest, with this GPU's own numbers. Raises GpuFailed
        for an instruction set that is not known."""
        if self.arch not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise GpuFailed(f"GPU {self.number} ({self.name}) is {self.arch}: there are kernels for {known}")
        near = nearest_product(self.arch, self.sms, self.memory_bytes_s)
        return Target.of_gpu(
            replace(
                near,
                sms=self.sms,
                clock_mhz=self.clock_mhz or near.clock_mhz,
                l2_bytes=self.l2_bytes or near.l2_bytes,
                memory_bytes_s=self.memory_bytes_s or near.memory_bytes_s,
                watts=self.watts or near.watts,
            )
        )

    def description(self) -> dict[str, Any]:
        """What a device says of it."""
        told: dict[str, Any] = {"gpu": self.name, "gpu_number": self.number, "cuda": self.cuda, "driver": self.driver}
        told |= {"clock_mhz": self.most_mhz or self.clock_mhz, "memory_mhz": self.memory_mhz, "watts": self.watts}
        return {name: value for name, value in told.items() if value is not None} | (
            {"clocks": f"not watched: {self.no_clocks}"} if self.no_clocks else {}
        )


def read(number: int) -> GpuFacts:
    """Ask the driver in this process. Raises GpuFailed."""
    driver = Driver()
    device = driver.device(number)
    bus_id = driver.text("cuDeviceGetPCIBusId", device)
    clocks = Clocks(bus_id)

    def told(attribute: int) -> int:
        return driver.attribute(device, attribute)

    return GpuFacts(
        number=number,
        name=driver.text("cuDeviceGetName", device),
        bus_id=bus_id,
        arch=f"sm_{told(MAJOR)}{told(MINOR)}",
        sms=told(SMS),
        clock_mhz=told(CLOCK_KHZ) // 1000,
        l2_bytes=told(L2_BYTES),
        # Twice in a cycle, on so many bits.
        memory_bytes_s=2 * told(MEMORY_KHZ) * 1000 * told(BUS_BITS) // 8,
        cuda=driver.version,
        driver=clocks.driver,
        watts=clocks.watts,
        most_mhz=clocks.most_mhz,
        memory_mhz=clocks.memory_mhz,
        no_clocks=clocks.problem,
    )


def ask(number: int) -> GpuFacts:
    """Ask in another process. Raises GpuFailed."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__, str(number)], capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise GpuFailed(f"NVIDIA's driver says nothing of GPU {number} within {ANSWER_S:g} s: see nvidia-smi") from None
    if done.returncode:
        raise GpuFailed(f"asking for GPU {number} failed: {(done.stderr or 'it said nothing').strip()[-300:]}")
    answer = json.loads(done.stdout)
    if "problem" in answer:
        raise GpuFailed(answer["problem"])
    return GpuFacts(**answer)


_held: list[socket.socket] = []
"""What this process holds GPUs by, until it ends."""


def hold_gpu(facts: GpuFacts) -> None:
    """Keep other devices of this machine from measuring on it. Raises GpuFailed where one does."""
    name = f"\0shapewright-gpu-{facts.bus_id}"
    # A name in no file system: nothing is left of it when this process ends, however it does.
    own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        own.bind(name)
    except OSError:
        own.close()
        problem = f"another device of this machine measures on GPU {facts.number} ({facts.name}, {facts.bus_id})"
        raise GpuFailed(f"{problem}: serve another one, or stop it") from None
    _held.append(own)


def main() -> None:
    try:
        answer = asdict(read(int(sys.argv[1])))
    except GpuFailed as error:
        answer = {"problem": str(error)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
