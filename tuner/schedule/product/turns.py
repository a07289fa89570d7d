"""Turns of the loop over k that the compiler spills: those of which the machine code was looked at.

LLVM 22 schedules loads of a whole turn ahead of their use, and keeps accumulators on the stack for them: a third of the
speed, or three quarters. See docs/decisions/0053 for the tiles that were compiled, for 16 and 32 registers.
"""

from __future__ import annotations

from tuner.errors import IllegalKernel
from tuner.program.target import Hardware
from tuner.schedule.space import MicroKernel

SPARE_REGISTERS = 8
"""Beside the accumulators, for a turn of two steps."""
LONG_TURN = 4
"""Steps of a turn from which on two of them between two prefetches are too many."""


def check_turns(kernel: MicroKernel, hardware: Hardware) -> None:
    """Raises IllegalKernel for turns whose accumulators go through the stack.

    They do in turns of two steps, where few registers are left beside the accumulators, if a step loads an odd number
    of vectors or prefetches; and where two turns of four steps or more go by between two prefetches, if a step loads
    an even number.
    """
    mr, nv, ku, ahead = kernel["mr"], kernel["nv"], kernel["ku"], kernel["ahead"]
    is_short = max(ku, ahead) == 2 and mr * nv > hardware.vector_registers - SPARE_REGISTERS
    if is_short and (ahead or nv % 2):
        text = f"mr={mr} nv={nv} leaves {hardware.vector_registers - mr * nv} registers in turns of two steps"
        raise IllegalKernel(f"{text}, which need {SPARE_REGISTERS}: ku=1 or 4, another ahead")
    if ku >= LONG_TURN and ahead == 2 * ku and nv % 2 == 0:
        raise IllegalKernel(f"ahead={ahead} ku={ku} nv={nv} spills accumulators: ahead={ku} or {4 * ku}")
