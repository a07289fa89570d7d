"""A kernel whose time depends on the clock of the multiprocessors alone: the fixed piece of work of a GPU, and what
keeps a stream busy while calls are put behind it."""

from __future__ import annotations

import math
from ctypes import c_uint, c_uint64

from tuner.measure.gpu.driver import Driver

LOOPS = 4096
"""Turns of the loop that are timed: some 0.1 ms."""
THREADS = 128
HOLD_S = 0.02
"""The longest that a stream is held."""
PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry spin(.param .u64 out, .param .u32 loops)
{
  .reg .pred %p<3>;
  .reg .b32 %r<3>;
  .reg .f32 %f<2>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [out];
  ld.param.u32 %r1, [loops];
  mov.f32 %f1, 0f3F800000;
  mov.u32 %r2, 0;
again:
  fma.rn.f32 %f1, %f1, 0f3F000000, 0f3F000000;
  fma.rn.f32 %f1, %f1, 0f3F000000, 0f3F000000;
  fma.rn.f32 %f1, %f1, 0f3F000000, 0f3F000000;
  fma.rn.f32 %f1, %f1, 0f3F000000, 0f3F000000;
  fma.rn.f32 %f1, %f1, 0f3F000000, 0f3F000000;
  fma.rn.f32 %f1, %f1, 0f3F000000, 0f3F000000;
  fma.rn.f32 %f1, %f1, 0f3F000000, 0f3F000000;
  fma.rn.f32 %f1, %f1, 0f3F000000, 0f3F000000;
  add.u32 %r2, %r2, 1;
  setp.lt.u32 %p1, %r2, %r1;
  @%p1 bra again;
  setp.eq.f32 %p2, %f1, 0f40000000;
  @%p2 st.global.f32 [%rd1], %f1;
  ret;
}
\0"""
"""Each step needs the one before it. One stays one; nothing is stored, but the compiler cannot know that."""


class Spin:
    """``seconds()`` is an anchor: see tuner.measure.timing.protocol. One block for each of ``sms``."""

    def __init__(self, driver: Driver, sms: int) -> None:
        self._driver, self._sms = driver, sms
        self._function = driver.function(PTX, "spin")
        self._out = c_uint64(driver.allocate(256))
        self._first, self._second = driver.event(), driver.event()
        self._loop_s = 0.0

    def seconds(self) -> float:
        """The time of LOOPS turns, just now. As many before them keep the stream busy: an event on an idle stream is
        over before this process has put the kernel behind it."""
        self._launch(LOOPS)
        self._driver.record(self._first)
        self._launch(LOOPS)
        self._driver.record(self._second)
        taken = self._driver.seconds(self._first, self._second)
        self._loop_s = taken / LOOPS
        return taken

    def hold(self, seconds: float) -> None:
        """Keep the stream busy for about so long, HOLD_S at most, and return at once."""
        if not self._loop_s:
            self.seconds()
        self._launch(max(1, math.ceil(min(seconds, HOLD_S) / max(self._loop_s, 1e-12))))

    def _launch(self, loops: int) -> None:
        self._driver.launch(self._function, self._sms, THREADS, self._out, c_uint(loops))
