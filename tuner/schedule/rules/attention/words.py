"""Instructions on several neighbouring elements in both products of attention, as the table of atoms has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from tuner.program.job.task import SearchTask
from tuner.program.language.rounding import rounded_weights
from tuner.program.language.workload import Workload
from tuner.program.target import Hardware
from tuner.schedule.access import stride
from tuner.schedule.product.atom import Atom, Words, allowed
from tuner.schedule.product.atoms import atoms_of
from tuner.schedule.rules.attention.chain import DTYPE, Chain
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import TirExpr, tirx
from tuner.schedule.vector.dtypes import vector_type
from tuner.schedule.vector.memory import Vectors


def atoms_of_scores(workload: Workload, chain: Chain, hardware: Hardware) -> Mapping[int, Atom]:
    """By depth the instructions that multiply q and k: one element deep where q does not lie along d, of which a word
    is neighbouring elements. Matrix units are for both products or none."""
    found = _atoms(workload, chain.q.tensor, chain.k.tensor, hardware)
    if stride(chain.q, "d") != 1:
        return {depth: atom for depth, atom in found.items() if depth == 1}

    def is_for_both(depth: int) -> bool:
        return atom_of_values(workload, chain, depth, hardware) is not None

    return {depth: atom for depth, atom in found.items() if atom.unit is None or is_for_both(depth)}


def atom_of_values(workload: Workload, chain: Chain, depth: int, hardware: Hardware) -> Atom | None:
    """The instruction so deep that multiplies exponentials and v, if the first ones may be rounded for it."""
    dtypes = {name: tensor.dtype for name, tensor in workload.tensors.items()}
    if depth == 1 or not rounded_weights(workload.program, dtypes):
        return None
    return _atoms(workload, chain.v.tensor, chain.v.tensor, hardware).get(depth)


def _atoms(workload: Workload, left: str, right: str, hardware: Hardware) -> Mapping[int, Atom]:
    tensors = workload.tensors
    return atoms_of(tensors[left].dtype, tensors[right].dtype, DTYPE, hardware)


def words_of(task: SearchTask, chain: Chain, kernel: MicroKernel) -> tuple[Words | None, Words | None]:
    """What a kernel takes at a step of each product; None for single elements as float32."""
    depth, hardware, workload = kernel.get("group"), task.known_target.hardware, task.workload
    if depth == 1:
        return None, None
    vectors, dtypes = Vectors(hardware.lanes()), workload.tensors
    q, k, v = (dtypes[read.tensor].dtype for read in (chain.q, chain.k, chain.v))
    mixing = atom_of_values(workload, chain, depth, hardware)
    scored = Words(atoms_of_scores(workload, chain, hardware)[depth], q, k, vectors)
    return scored, None if mixing is None else Words(mixing, v, v, vectors)


@contextmanager
def using(scored: Words | None, mixing: Words | None) -> Iterator[None]:
    """What is written inside may use the instructions of both products."""
    atoms = {each.atom.name: each.atom for each in (scored, mixing) if each}
    with ExitStack() as stack:
        for atom in atoms.values():
            stack.enter_context(allowed(atom))
        yield


def products(words: Words, total: TirExpr, left: TirExpr, right: TirExpr) -> TirExpr:
    """``total`` after one step. ``left``: its word in every lane; ``right``: the words of all lanes."""
    lanes = words.vectors.lanes
    elements = tirx.reinterpret(vector_type(words.atom.element, lanes * words.atom.group), right)
    return words.atom.products(total, left, elements)
