"""Memory that chains use again at their next call.

The allocator unmaps a block of tens of megabytes once it is freed, and the operating system clears every page of the
next one. That took 7 % of a call of ResNet-50 for four images and more (docs/decisions/0100).
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
        """A piece of ``size`` bytes or more, with anything in it. Nobody else gets it until it is given back."""
        with self._lock:
            fits = next((at for at, piece in enumerate(self._pieces) if piece.numel() >= size), None)
            if fits is not None:
                return self._pieces.pop(fits)
            # The new piece replaces the largest one, which was too small: else both would be kept.
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
"""Shared by all chains of the process: a thread calls one chain at a time."""
