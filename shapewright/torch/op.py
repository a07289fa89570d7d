"""The operator ``torch.ops.shapewright.call``: a tuned library in a graph of PyTorch.

    call(Tensor[] operands, SymInt[] sizes, str plan) -> Tensor

``operands`` are tensors of the model, weights as they are; ``sizes`` those of the output; ``plan`` says which library
runs and how tensors are viewed (``shapewright.torch.plan``). It is registered through ``Library.impl``, for the CPU and
for fake tensors, whose symbolic sizes it keeps. It is for inference: it has no derivative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shapewright.torch.plan import Call, output_of, plan_of

NAMESPACE = "shapewright"

_calls: dict[str, Call] = {}


def prepared(text: str) -> Call:
    """The call of a plan, its library loaded. Raises ShapewrightError."""
    call = _calls.get(text)
    if call is None:
        # Of two threads that come here at once both make one; either serves.
        call = _calls.setdefault(text, Call(plan_of(text)))
    return call


def run(operands: Sequence[torch.Tensor], sizes: Sequence[int], plan: str) -> torch.Tensor:
    """What the operator does on the CPU."""
    return (_calls.get(plan) or prepared(plan))(operands, sizes)


def direct(*operands: Any, out: torch.Tensor) -> None:
    """What Inductor's code calls, past the dispatcher: the operands as ``Call.direct`` has them, then the plan."""
    plan = operands[-1]
    (_calls.get(plan) or prepared(plan)).direct(operands, out)


def _fake(operands: Sequence[torch.Tensor], sizes: Sequence[Any], plan: str) -> torch.Tensor:
    return output_of(plan_of(plan), sizes, operands[0])


library = torch.library.Library(NAMESPACE, "DEF")
library.define("call(Tensor[] operands, SymInt[] sizes, str plan) -> Tensor")
library.impl("call", run, "CPU")
torch.library.register_fake(f"{NAMESPACE}::call", _fake, lib=library)

call = torch.ops.shapewright.call.default
# By a name that compiled code which was kept on disk finds again.
torch.ops.shapewright.direct = direct
