"""Memory that chains use again at their next call.

The kernel fills each page with zeros that a process has not had before. Where values between calls take tens of
megabytes, which an allocator gives back at once, that was up to a tenth of a call (docs/decisions/0100).
"""

from __future__ import annotations

import threading

import torch


class Memory:
    """Pieces that nobody uses at the moment: as many as were used at once, each as large as the largest need that it
    has served. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pieces: list[torch.Tensor] = []
        """By size, the smallest first."""

    def take(self, size: int) -> torch.Tensor:
        """A piece of ``size`` bytes or more, with anything in it. Who does not ``give`` it back has it for itself."""
        with self._lock:
            fits = next((at for at, piece in enumerate(self._pieces) if piece.numel() >= size), None)
            if fits is not None:
                return self._pieces.pop(fits)
            # In its place, or small ones would be kept that nobody needs.
            self._pieces[-1:] = []
        return torch.empty(size, dtype=torch.uint8, device="cpu")

    def give(self, piece: torch.Tensor) -> None:
        """For others to use: what ``take`` returned."""
        with self._lock:
            self._pieces.append(piece)
            self._pieces.sort(key=torch.Tensor.numel)

    def release(self) -> None:
        """Free what nobody uses."""
        with self._lock:
            self._pieces.clear()


MEMORY = Memory()
"""Of all chains of the process: of one thread only one is called at a time."""
