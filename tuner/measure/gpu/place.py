"""Candidates on a GPU: operands are made on the host and copied, a library's own launcher calls its kernels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tuner.errors import GpuFailed
from tuner.library.package import ENTRY
from tuner.measure.gpu.clocks import Clocks, drop_of
from tuner.measure.gpu.driver import Driver
from tuner.measure.gpu.facts import L2_BYTES, SMS
from tuner.measure.gpu.spin import Spin
from tuner.measure.gpu.timing import Events, GpuTiming
from tuner.measure.tensors import gpu_tensor
from tuner.measure.timing.baselines import MakeArray
from tuner.measure.timing.caches import flushed_inputs
from tuner.measure.timing.protocol import Flush, Timer
from tuner.measure.timing.turns import Contender
from tuner.measure.timing.waiting import never
from tuner.measure.verification.guarded import ALIGNMENT, Array, Guarded
from tuner.program.job.cache import Cache
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.program.target.calibration import Levels
from tuner.program.target.cuda import Gpu
from tuner.records import Baselines, Roof

log = logging.getLogger(__name__)

FLUSHED = 2
"""How many times the bytes of L2 are written to bring everything else out of it."""
COPIED = 8
"""How many times the bytes of L2 are copied for the rate of the memory."""
LEAST_L2 = 2**20
WAKE_S = 0.2
"""Work for a GPU that may have been idle, whose clocks are low."""


class GpuPlace:
    """A ``Place`` (tuner.measure.device.place) on a GPU of this machine, by its number. Raises GpuFailed.

    ``tensor``: makes of dtype, shape, number of the GPU and address what a candidate takes."""

    alignment = 16

    def __init__(self, task: SearchTask, number: int, gpu: Gpu, tensor: Callable[..., Any] = gpu_tensor) -> None:
        self._task, self._number, self._gpu, self._make_tensor = task, number, gpu, tensor
        self._driver = Driver()
        device = self._driver.device(number)
        self._driver.use(device)
        self._l2_bytes = max(LEAST_L2, self._driver.attribute(device, L2_BYTES))
        self._clocks = Clocks(self._driver.text("cuDeviceGetPCIBusId", device))
        self._spin, self._events = Spin(self._driver, self._driver.attribute(device, SMS)), Events(self._driver)
        self._buffer: int | None = None
        self._kept: dict[int, tuple[Array, int]] = {}
        """By id of an array the array, and the address of its copy."""
        self._mhz: int | None = None
        woken_s = 0.0
        while woken_s < WAKE_S:
            # As long again comes before what is timed.
            woken_s += 2 * self._spin.seconds()

    def anchor(self) -> float:
        self._watch_clock()
        return self._spin.seconds()

    def waited(self) -> float:
        """Nothing: candidates run on the GPU."""
        return never()

    def run(self, call: Callable[..., object], operands: Sequence[Guarded]) -> None:
        with ExitStack() as held:
            places = [held.enter_context(self._copied(each)) for each in operands]
            call(*(tensor for tensor, _ in places))
            self._driver.finish()
            for operand, (_, address) in zip(operands, places, strict=True):
                self._driver.read(operand.region.ctypes.data, address, operand.region.nbytes)

    def timing(self, module: Any, arrays: Mapping[str, Array]) -> GpuTiming:
        self._mhz = None
        call = module[ENTRY]
        operands = [self._tensor(each, self._on_gpu(each)) for each in arrays.values()]
        return GpuTiming(self._driver, self._spin, self._events, lambda: call(*operands), self._flush_of(arrays))

    def numpy(self, dims: Mapping[str, int], array: MakeArray) -> Contender | None:
        """None: it runs on another processor."""
        return None

    def blas(self) -> None:
        """None, as above."""

    def baselines(self, instances: Sequence[WorkloadInstance], module: Any, array: MakeArray) -> Baselines:
        """The roof: what the memory copies, as measured, and what the units of this product do at their clock."""
        size = COPIED * self._l2_bytes
        source, target = self._driver.allocate(size), self._driver.allocate(size)
        try:
            timing = GpuTiming(
                self._driver, self._spin, self._events, lambda: self._driver.copy(target, source, size), None
            )
            timed = Timer(self.anchor).best(timing.call, timing.sample)
        finally:
            self._driver.release(source)
            self._driver.release(target)
        # Each byte is read and written.
        return Baselines((), Roof(self._peak_flops_s(), 2 * size / timed.latency_s, timed.anchor_s))

    def levels(self, module: Any, timer: Timer) -> Levels:
        raise GpuFailed("levels of memory are read on CPUs alone")

    def is_lost(self) -> bool:
        return not self._driver.is_well()

    def _peak_flops_s(self) -> float:
        dtypes = {tensor.dtype for tensor in self._task.workload.inputs}
        # float32 is three products of TF32, or FMA.
        rates = [self._gpu.tensor_flops_s("tf32") / 3 if each == "float32" else self._gpu.tensor_flops_s(each)
                 for each in dtypes]  # fmt: skip
        return max(self._gpu.fma_flops_s(), *rates)

    def _watch_clock(self) -> None:
        """The anchors tell of a clock that is held down; why, only NVML knows."""
        mhz = self._clocks.mhz
        if drop := drop_of(self._mhz, mhz, self._clocks.reasons):
            log.warning("%s", drop)
        self._mhz = mhz

    # -- memory -------------------------------------------------------------------------------------------------------
    @contextmanager
    def _copied(self, operand: Guarded) -> Iterator[tuple[Any, int]]:
        """A tensor over a copy of an operand in the middle of what surrounds it, and the address of all that."""
        region = operand.region
        base = self._driver.allocate(region.nbytes + ALIGNMENT)
        try:
            # As far from the alignment as it is here.
            address = base + region.ctypes.data % ALIGNMENT
            self._driver.write(address, region.ctypes.data, region.nbytes)
            yield self._tensor(operand.array, address + operand.array.ctypes.data - region.ctypes.data), address
        finally:
            if self._driver.is_well():
                self._driver.release(base)

    def _on_gpu(self, array: Array) -> int:
        """The address of a copy, which is kept as long as the array is."""
        if id(array) not in self._kept:
            address = self._driver.allocate(array.nbytes)
            self._kept[id(array)] = array, address
            self._driver.write(address, array.ctypes.data, array.nbytes)
        return self._kept[id(array)][1]

    def _tensor(self, array: Array, address: int) -> Any:
        return self._make_tensor(array.dtype.name, array.shape, self._number, address)

    def _flush_of(self, arrays: Mapping[str, Array]) -> Flush | None:
        """What comes before every call, by the state of the caches that the task asks for."""
        flushed = flushed_inputs(self._task)
        if not flushed:
            return None
        size = FLUSHED * self._l2_bytes
        if self._buffer is None:
            self._buffer = self._driver.allocate(size)
        buffer = self._buffer
        warm = [] if self._task.cache is Cache.COLD else [name for name in arrays if name not in flushed]
        read = [(self._on_gpu(arrays[name]), min(arrays[name].nbytes, size)) for name in warm]

        def flush() -> None:
            self._driver.fill(buffer, size)
            for address, share in read:
                self._driver.copy(buffer, address, share)

        return flush
