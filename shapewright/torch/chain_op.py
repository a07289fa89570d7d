"""The operator ``torch.ops.shapewright.chain``: calls of tuned libraries one after the other, without Python between.

    chain(Tensor[] tensors, SymInt[] sizes, str plan) -> Tensor[]

``tensors`` are those that the calls read and that none of them makes; ``sizes`` what shapes are made of; ``plan`` says
what is called with what. It is put into graphs behind all derivatives (``shapewright.torch.chains``) and has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shapewright.torch.chain import Chain
from shapewright.torch.frozen import forget_constants
from shapewright.torch.op import NAMESPACE
from shapewright.torch.plan import DTYPES, plan_of
from shapewright.torch.steps import ChainPlan, sizes_of

MOST_CHAINS = 1024
"""Chains that a process keeps, however many models it compiles: one that was dropped is made again at its next call."""

_chains: dict[str, Chain] = {}


def chain_of(text: str) -> Chain:
    """The chain of a plan, its libraries loaded. Raises ShapewrightError."""
    chain = _chains.get(text)
    if chain is None:
        chain = _chains.setdefault(text, Chain(ChainPlan.read(text)))
        # A frozen program needs its own for as long as it lives.
        kept = [each for each, made in list(_chains.items()) if not made.plan.frozen]
        for oldest in kept[:-MOST_CHAINS]:
            _chains.pop(oldest, None)
    return chain


def chains_so_far() -> list[Chain]:
    """The chains that were run in this process."""
    return list(_chains.values())


def forget_program(number: int) -> None:
    """Drop the chains and the constants of a program whose constants are read once (``ChainPlan.frozen``)."""
    forget_constants(number)
    for text, chain in list(_chains.items()):
        if chain.plan.frozen == number:
            _chains.pop(text, None)


def run(tensors: Sequence[torch.Tensor], sizes: Sequence[int], plan: str) -> list[torch.Tensor]:
    """What the operator does on the CPU. Inductor's code calls it past the dispatcher."""
    return chain_of(plan)(tensors, sizes)


def direct(*operands: Any, out: torch.Tensor) -> None:
    """What Inductor's code calls for a chain of one output: the tensors, the sizes, the plan."""
    chain = chain_of(operands[-1])
    chain.into(operands[: chain.inputs], operands[chain.inputs : -1], (out,))


def _fake(tensors: Sequence[torch.Tensor], sizes: Sequence[Any], plan: str) -> list[torch.Tensor]:
    steps = ChainPlan.read(plan)
    made = [(steps.steps[at].sizes, plan_of(steps.steps[at].plan)) for at in steps.outputs]
    return [tensors[0].new_empty(sizes_of(each, sizes), dtype=DTYPES[its.dtype]) for each, its in made]


library = torch.library.Library(NAMESPACE, "FRAGMENT")
library.define("chain(Tensor[] tensors, SymInt[] sizes, str plan) -> Tensor[]")
library.impl("chain", run, "CPU")
torch.library.register_fake(f"{NAMESPACE}::chain", _fake, lib=library)
chain = torch.ops.shapewright.chain.default
# By a name that compiled code which was kept on disk finds again.
torch.ops.shapewright.direct_chain = direct
torch.ops.shapewright.direct_chains = run
