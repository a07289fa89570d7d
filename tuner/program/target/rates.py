"""What a core does in a cycle, as far as theory needs it and the description of the hardware does not say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from tuner.program.target import Hardware


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of one core, in cycles of ``clock_hz`` and bytes per cycle unless said otherwise.

    The defaults were fitted to one core of a Sapphire Rapids server, with products of matrices alone
    (docs/decisions/0007), ``near_exposed``, ``asked`` and ``single`` to one of an AMD EPYC (Zen 4), ``ahead_exposed``
    chosen on a Xeon with AMX (docs/decisions/0116); ``operation``, ``function``, ``l1_bytes``, ``memory_bytes``,
    ``drained``, ``steady`` and ``fork`` are round figures, fitted to nothing; ``tile_rows`` ranks 280 kernels of dense
    layers in bfloat16 best on a Xeon with AMX (docs/decisions/0111): tiles that L1 holds are loaded twice as fast,
    those of L2 more slowly. A calibrated device has rates of its own
    (tuner/calibration). What theory makes of either the learned residual corrects.
    """

    clock_hz: float = 3.94e9
    multiply_adds: float = 1.0
    """Multiply-adds in a cycle, over those that the description of the hardware says (``fma_per_cycle``)."""
    fma_latency: float = 4.0
    """The latency of a multiply-add, before the next one to the same accumulator."""
    loads: float = 1.95
    """Vectors, or elements that are broadcast, in a cycle."""
    decode: float = 3.83
    """Instructions in a cycle."""
    operation: float = 0.5
    """The cost of an elementwise operation on one vector."""
    function: float = 12.0
    """The cost of a transcendental function of one vector."""
    l1_bytes: float = 64.0
    l2_bytes: float = 36.3
    l3_bytes: float = 9.7
    memory_bytes: float = 4.0
    l2_exposed: float = 0.11
    """The share of a panel's reads from L2 that computing does not hide."""
    stream_exposed: float = 0.51
    """The share of a stream from L3 that computing does not hide, if nothing is prefetched."""
    near_exposed: float = 0.15
    """... if it is, or is several streams, which the core follows by itself."""
    ahead_exposed: float = 0.2
    """... if the tiles over the panel before have prefetched it."""
    too_soon: float = 0.29
    """The additional cost of a stream for each panel that is prefetched further ahead than the next one."""
    asked: float = 0.1
    """The additional cost of several streams that are prefetched without need: the core follows them by itself."""
    single: float = 0.3
    """The additional cost of one stream beside many. Of several streams each has its part of it."""
    steady: float = 0.15
    """... of one stream from memory that goes on from one panel to the next, where libraries keep what they pack."""
    tile: float = 0.8
    """The cost of each tile and chunk, beside its steps."""
    turn: float = 0.018
    """The cost of each iteration of an inner loop."""
    store: float = 0.83
    """The cost of each vector of the output."""
    again: float = 6.6
    """The cost of each vector of the output that a further chunk of k reads and writes again."""
    fetched: float = 2.5
    """The cost of a store whose line was prefetched, as a share."""
    copy: float = 0.28
    """The cost of each element that is packed row by row."""
    transpose: float = 0.2
    dot: float = 5.0
    """The cost of each element of the output that is added up across a vector."""
    tile_rows: float = 0.9
    """Rows of tiles that a matrix unit loads in a cycle."""
    drained: float = 2.0
    """The cost of a row of sums that leaves a matrix unit through memory."""
    call: float = 148.0
    block: float = 26.0
    """The cost of each panel of each block and chunk."""
    fork: float = 12_000.0
    """The cost of waking the threads of a parallel loop."""
    issue: tuple[tuple[str, float], ...] = ()
    """The time of each instruction that was measured (of a matrix unit a multiplication of tiles) over that of a
    multiply-add of one vector, by name. Others have theirs from the table of instructions."""

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
        left out. Raises TypeError, ValueError for anything else."""
        if not isinstance(data, Mapping):
            raise TypeError(f"rates are a mapping, got {data!r}")
        known = positive_numbers({name: data[name] for name in NUMBERS if name in data})
        return Rates(**known, issue=tuple(sorted(positive_numbers(data.get("issue", {})).items())))


def positive_numbers(data: object) -> dict[str, float]:
    """Numbers by name, as JSON has them. Raises TypeError, ValueError for anything else."""
    if not isinstance(data, Mapping):
        raise TypeError(f"a mapping of names to numbers is needed, got {data!r}")
    numbers = {str(name): float(value) for name, value in data.items()}
    if not all(0 < value < math.inf for value in numbers.values()):
        raise ValueError(f"rates are positive and finite, got {data}")
    return numbers


NUMBERS = tuple(each.name for each in fields(Rates) if each.name != "issue")
TYPICAL = Rates()
