"""What a core does in a cycle, as far as theory wants to know it and the description of the hardware does not say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from tuner.program.target import Hardware


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one core, in cycles of ``clock_hz`` and bytes per cycle unless said otherwise.

    The defaults were fitted to one core of a Sapphire Rapids server, with products of matrices alone
    (docs/decisions/0007); ``operation``, ``function``, ``l1_bytes``, ``memory_bytes`` and ``fork`` are round figures,
    fitted to nothing. A calibrated device has rates of its own (tuner/calibration). What theory makes of either the
    learned residual corrects.
    """

    clock_hz: float = 3.94e9
    multiply_adds: float = 1.0
    """In a cycle, over those that the description of the hardware says (``fma_per_cycle``)."""
    fma_latency: float = 4.0
    """Of a multiply-add, before the next one to the same accumulator."""
    loads: float = 1.95
    """Vectors, or elements that are broadcast, in a cycle."""
    decode: float = 3.83
    """Instructions in a cycle."""
    operation: float = 0.5
    """Of an elementwise operation on one vector."""
    function: float = 12.0
    """Of a transcendental function of one vector."""
    l1_bytes: float = 64.0
    l2_bytes: float = 36.3
    l3_bytes: float = 9.7
    memory_bytes: float = 4.0
    l2_exposed: float = 0.11
    """The share of a panel's reads from L2 that computing does not hide."""
    stream_exposed: float = 0.51
    """The share of a stream from L3 that computing does not hide, if nothing is prefetched."""
    near_exposed: float = 0.45
    ahead_exposed: float = 0.33
    too_soon: float = 0.29
    """What a stream costs more for each panel that is prefetched further ahead than the next one."""
    tile: float = 0.8
    """For each tile and chunk, beside its steps."""
    turn: float = 0.018
    """For each turn of an inner loop."""
    store: float = 0.83
    """For each vector of the output."""
    again: float = 6.6
    """For each vector of the output that a further chunk of k reads and writes again."""
    fetched: float = 2.5
    """The cost of a store whose line was prefetched, as a share."""
    copy: float = 0.28
    """For each element packed row by row."""
    transpose: float = 0.2
    dot: float = 5.0
    """For each element of the output that is added up across a vector."""
    call: float = 148.0
    block: float = 26.0
    """For each panel of each block and chunk."""
    fork: float = 12_000.0
    """Of waking the threads of a parallel loop."""
    issue: tuple[tuple[str, float], ...] = ()
    """By the name of an instruction (of a matrix unit a multiplication of tiles) its time over that of a multiply-add
    of one vector, where it was measured. Of others the table of instructions tells."""

    def fma_per_cycle(self, hardware: Hardware) -> float:
        """Multiply-adds of vectors in a cycle."""
        return hardware.fma_per_cycle * self.multiply_adds

    def of_instruction(self, name: str) -> float | None:
        """The time of an instruction over that of a multiply-add of one vector; None where it was not measured."""
        return dict(self.issue).get(name)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"issue": dict(self.issue)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Rates:
        """Read what ``to_json`` wrote, in this version or another: what is not there is typical, what is not known is
        left out. Raises TypeError, ValueError, AttributeError for anything else."""
        known = {name: float(data[name]) for name in NUMBERS if name in data}
        issue = {str(name): float(value) for name, value in data.get("issue", {}).items()}
        if not all(0 < value < math.inf for value in (*known.values(), *issue.values())):
            raise ValueError(f"rates are positive and finite, got {data}")
        return Rates(**known, issue=tuple(sorted(issue.items())))


NUMBERS = tuple(each.name for each in fields(Rates) if each.name != "issue")
TYPICAL = Rates()
