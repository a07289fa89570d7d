"""How fast memory can be read and written here: as many bytes as a workload's operands have, by PyTorch's vector code.

Every output byte is written once and every input byte read once, at the same sizes as the workload's, so that the same
caches serve both. Writes read their lines first, as those of ordinary kernels do.
"""

from __future__ import annotations

import torch

from benchmarks.harness.calls import Call

FLOAT_BYTES = 4


def stream(read_bytes: int, written_bytes: int) -> Call:
    """Reads and writes so many bytes, rounded to whole floats.

    The output is the sum of two inputs; inputs that are left over are summed up, an output that is left over is filled.
    """
    reads, writes = max(2, read_bytes // FLOAT_BYTES), max(1, written_bytes // FLOAT_BYTES)
    moved = min(writes, reads // 2)
    first, second, out = torch.ones(moved), torch.ones(moved), torch.empty(writes)
    rest, ahead, behind = torch.ones(reads - 2 * moved), out[:moved], out[moved:]

    def call() -> None:
        torch.add(first, second, out=ahead)
        if len(behind):
            behind.fill_(1.0)
        if len(rest):
            rest.sum()

    return call
