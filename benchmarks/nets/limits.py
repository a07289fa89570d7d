"""What the machine does at best, as contenders of ``benchmarks.models``: in turns with the others, since a core whose
clock moves, and memory that neighbours read, have no one rate."""

from __future__ import annotations

import torch

from benchmarks.harness.turns import once_awake, sampler
from benchmarks.nets.zoo import MODELS
from tuner.measure.roof import peak_call, peak_work, read_bytes, read_call
from tuner.measure.roof.kernels import loaded_roof
from tuner.program.target import native

PEAK, STREAM = "peak", "stream"
"""Multiply-adds of float32 in registers; and reading memory."""


def limits_of(model: str, threads: int) -> list[str]:
    """Those that are known of a model on so many threads."""
    if not MODELS[model].is_step:
        return [PEAK] if MODELS[model].dtype == torch.float32 else []
    # What several threads read of the stream's buffer stays in part in the cache that they share.
    return [STREAM] if threads == 1 else []


class Limit:
    """``sample`` tells the seconds that a call of a model takes at least: of PEAK, what its multiply-adds take; of
    STREAM, what reading the weights, keys and values of a decoder's step takes."""

    def __init__(self, name: str, model: str, threads: int) -> None:
        target, zoo = native(), MODELS[model]
        module, self._step = loaded_roof(target, threads), zoo.build() if name == STREAM else None
        make, work = (peak_call, peak_work) if name == PEAK else (read_call, read_bytes)
        self._call, self._work, self._needed = make(module, target, threads), work(target, threads), 0

    def prepare(self, length: int, flops: int) -> None:
        """For a call at a length, of so many floating-point operations."""
        self._needed = flops if self._step is None else self._step.bytes_read(length)

    def sample(self, number: int) -> float:
        return once_awake(sampler(self._call), number) * self._needed / self._work
