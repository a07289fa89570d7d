"""What NVIDIA's management library (NVML) says of a GPU's clocks. Where there is none, that is said, and no error."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass

LIBRARY = "libnvidia-ml.so.1"
SM, MEMORY = 1, 2
"""NVML's numbers of clocks."""
DROP = 0.05
"""The share by which a clock may fall within a trial without being told of."""
REASONS = {
    0x4: "the power limit",
    0x8: "a slowdown of the hardware",
    0x20: "the temperature",
    0x40: "the temperature of the hardware",
    0x80: "the power brake",
}
"""Why clocks are held down, by NVML's bits; the others are of a GPU that is idle or set by somebody."""


@dataclass(frozen=True, slots=True)
class Drop:
    """A clock that fell within a trial, in MHz, and why."""

    before: int
    after: int
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        why = f", held by {' and '.join(self.reasons)}" if self.reasons else ""
        return f"the clock fell from {self.before} to {self.after} MHz within a trial{why}"


def drop_of(before: int | None, after: int | None, reasons: tuple[str, ...] = ()) -> Drop | None:
    """None where it did not fall, or nobody knows."""
    if before is None or after is None or after >= (1 - DROP) * before:
        return None
    return Drop(before, after, reasons)


class Clocks:
    """The clocks of the GPU at an address of the PCI bus. Every figure is None where NVML does not give it."""

    def __init__(self, bus_id: str) -> None:
        self._code: ctypes.CDLL | None = None
        self._device = c_void_p()
        self.problem = ""
        """Why there are no figures."""
        try:
            code = ctypes.CDLL(LIBRARY)
        except OSError as error:
            self.problem = str(error)
            return
        failed = code.nvmlInit_v2() or code.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), byref(self._device))
        if failed:
            self.problem = f"{LIBRARY} does not know the GPU at {bus_id}: error {failed}"
        else:
            self._code = code

    @property
    def mhz(self) -> int | None:
        """What the multiprocessors run at now."""
        return self._number("nvmlDeviceGetClockInfo", SM)

    @property
    def most_mhz(self) -> int | None:
        return self._number("nvmlDeviceGetMaxClockInfo", SM)

    @property
    def memory_mhz(self) -> int | None:
        return self._number("nvmlDeviceGetClockInfo", MEMORY)

    @property
    def watts(self) -> int | None:
        """The power limit."""
        milliwatts = self._number("nvmlDeviceGetPowerManagementLimit")
        return None if milliwatts is None else round(milliwatts / 1000)

    @property
    def driver(self) -> str | None:
        """The driver's version, as in 570.86.15."""
        room = ctypes.create_string_buffer(96)
        if self._code is None or self._code.nvmlSystemGetDriverVersion(room, len(room)):
            return None
        return room.value.decode(errors="replace")

    @property
    def reasons(self) -> tuple[str, ...]:
        """What holds the clocks down now."""
        bits = c_ulonglong()
        if self._code is None or self._code.nvmlDeviceGetCurrentClocksThrottleReasons(self._device, byref(bits)):
            return ()
        return tuple(text for bit, text in REASONS.items() if bits.value & bit)

    def _number(self, function: str, *arguments: int) -> int | None:
        value = c_uint()
        if self._code is None or getattr(self._code, function)(self._device, *arguments, byref(value)):
            return None
        return value.value
