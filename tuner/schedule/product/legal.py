"""What the hardware cannot carry of a product's kernels: the checks behind the axes (axes.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tuner.errors import IllegalKernel
from tuner.program.target import Hardware
from tuner.schedule.product.atom import Atom, registers_of
from tuner.schedule.product.axes import IN_PLACE, WIDE, atom_of, forced, of_unit, parts_of_k
from tuner.schedule.space import MicroKernel

if TYPE_CHECKING:
    from tuner.schedule.product.product import Product

MAX_BODY = 768
"""Fused multiply-adds in the unrolled code of one kernel, all its ragged variants together: bounds compile time and
keeps the loops in the instruction cache."""
MAX_PACKED_ROWS = 512
LOOP_ADDRESSES = 5
"""Registers of the stack, the panel, the output and the loop's counters."""


def check(
    kernel: MicroKernel, product: Product, atoms: Mapping[int, Atom], threads: int, hardware: Hardware, copies: int = 1
) -> None:
    """Raises IllegalKernel for what the hardware cannot carry. ``atoms``: the product's; ``copies``: how often all of
    the code is written."""
    values, atom, constant = dict(kernel.values), atom_of(kernel, atoms), product.right.is_packed_ahead
    if atom.unit is not None:
        _check_unit(values, atom, product, hardware)
    else:
        _check_size(kernel, hardware, copies)
        if "k" in product.dynamic:
            _check_addresses(kernel, hardware)
    mr, mb, ku, ahead = values["mr"], values["mb"], values["ku"], values["ahead"]
    if values["rows"] and mb * mr > MAX_PACKED_ROWS:
        raise IllegalKernel(f"mb={mb} mr={mr} packs {mb * mr} rows, limit {MAX_PACKED_ROWS}")
    if atom.group > 1 and not constant and values["pack"] == IN_PLACE and product.pack_of_dots != IN_PLACE:
        raise IllegalKernel(f"group={atom.depth} multiplies words: needs the panels packed")
    for name, value, text in forced(values, product, atom):
        if values[name] != value:
            raise IllegalKernel(text.format(**values))
    if 0 < ahead < ku:
        raise IllegalKernel(f"ahead={ahead} needs whole turns of ku={ku} steps")
    parts = parts_of_k(values)
    if threads % (values["tb"] * values["tn"] * parts):
        split = f" split_k={parts}" if parts > 1 else ""
        raise IllegalKernel(f"tb={values['tb']} tn={values['tn']}{split} do not divide {threads} threads")


def _check_unit(values: Mapping[str, int], atom: Atom, product: Product, hardware: Hardware) -> None:
    for name, value in of_unit(values, atom, product).items():
        if values[name] != value:
            raise IllegalKernel(f"{atom.name} needs {name}={value}, got {values[name]}")
    *_, need = registers_of(atom, hardware.lanes(), values["mr"], values["nv"])
    assert atom.unit is not None
    if need > atom.unit.registers:
        text = f"mr={values['mr']} nv={values['nv']} needs {need} registers of {atom.name}"
        raise IllegalKernel(f"{text}, there are {atom.unit.registers}")


def _check_size(kernel: MicroKernel, hardware: Hardware, copies: int) -> None:
    mr, nv, ku, edge = kernel["mr"], kernel["nv"], kernel["ku"], kernel["edge"] == 1
    # Every accumulator and one row of the right operand are live at once, and a broadcast beside them.
    need = mr * nv + nv + 1
    if need > hardware.vector_registers:
        raise IllegalKernel(f"mr={mr} nv={nv} needs {need} vector registers, there are {hardware.vector_registers}")
    # The compiler loads rows of an unrolled loop ahead of their use: too many and it spills accumulators.
    if ku * nv > hardware.vector_registers:
        raise IllegalKernel(f"ku={ku} nv={nv} load {ku * nv} vectors in a turn, limit {hardware.vector_registers}")
    body = ku * mr * nv
    body = body * (mr + 1) // 2 if kernel["tail"] else 2 * body
    body = body * (nv + 3) // 2 if edge else body
    limit = MAX_BODY * (2 if edge or copies > 1 else 1)
    is_plain = copies > 1 and (ku, kernel["tail"], edge) == (1, 0, 0)
    if body * copies > limit and not is_plain:
        body, text = body * copies, f"ku={ku} tail={kernel['tail']} edge={kernel['edge']}"
        raise IllegalKernel(f"{text} unroll {body} operations, limit {limit}")


def _check_addresses(kernel: MicroKernel, hardware: Hardware) -> None:
    """Rows that are read in place, a distance apart that is not known when code is generated.

    Each has an address of its own. With more than there are registers for, the compiler loads an address once in a
    turn, the row's elements of all its steps with it, and spills accumulators for these: half the speed.
    """
    mr, nv, steps = kernel["mr"], kernel["nv"], max(kernel["ku"], kernel["ahead"])
    if kernel["rows"] or steps == 1 or mr <= hardware.address_registers - LOOP_ADDRESSES:
        return
    need = mr * nv + nv + mr
    if need > hardware.vector_registers:
        text = f"mr={mr} nv={nv} rows=0 holds {need} vectors in a turn of {steps} steps"
        remedy = "rows a dynamic distance apart need turns of one step (ku=1 ahead=0 or 1), or rows=1"
        raise IllegalKernel(f"{text}, limit {hardware.vector_registers}: {remedy}")


SPARE_REGISTERS = 8
"""Beside the accumulators, for a turn of two steps."""
LONG_TURN = 4
"""Steps of a turn from which on two of them between two prefetches are too many."""


def check_turns(kernel: MicroKernel, atom: Atom, hardware: Hardware) -> None:
    """Raises IllegalKernel for turns whose accumulators go through the stack. Those of a matrix unit do not.

    They do in turns of two steps, where few registers are left beside the accumulators, if a step loads an odd number
    of vectors or prefetches; and where two turns of four steps or more go by between two prefetches, if a step loads
    an even number, or from several panels.
    """
    if atom.unit is not None:
        return
    mr, nv, ku, ahead = kernel["mr"], kernel["nv"], kernel["ku"], kernel["ahead"]
    spare = hardware.vector_registers - mr * nv
    if max(ku, ahead) == 2 and spare < SPARE_REGISTERS and (ahead or nv % 2):
        text = f"mr={mr} nv={nv} leaves {spare} registers in turns of two steps"
        raise IllegalKernel(f"{text}, which need {SPARE_REGISTERS}: ku=1 or 4, another ahead")
    if ku >= LONG_TURN and ahead == 2 * ku and (nv % 2 == 0 or kernel.get("panel") != WIDE):
        where = "" if nv % 2 == 0 else f" where panel={kernel.get('panel')}"
        raise IllegalKernel(f"ahead={ahead} ku={ku} nv={nv} spills accumulators{where}: ahead={ku} or {4 * ku}")
