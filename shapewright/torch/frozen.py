"""Programs whose constants are read once (``compile_exported(..., freeze=True)``).

Kernels push everything else out of the caches, so that a call pays for each object of Python that it touches. The
constants that chains alone read are no inputs of a frozen graph: they stay here, and the chain asks for them when it
packs them. Of what AOTAutograd does around a graph nothing is left but to record no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import BufferAOTInput, ParamAOTInput, PlainAOTInput
from torch._functorch._aot_autograd.schemas import OutputType
from torch._guards import TracingContext

Compiled = Callable[..., Any]
PLAIN_OUTPUTS = (OutputType.non_alias, OutputType.unsafe_view_alias)
"""Outputs that go to the caller as the graph gives them."""

_constants: dict[int, dict[str, torch.Tensor]] = {}
"""By the number of the program, and by their names in its module."""


def keep_constants(program: int, module: torch.nn.Module) -> None:
    """Keep the parameters and buffers of a program until ``forget_constants``."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    _constants[program] = dict(named)


def constants_of(program: int, names: Iterable[str]) -> list[torch.Tensor]:
    return [_constants[program][name] for name in names]


def forget_constants(program: int) -> None:
    _constants.pop(program, None)


def name_of(placeholder: fx.Node) -> str | None:
    """The name of the parameter or buffer that an input of AOTAutograd's graph is; None for another input."""
    origin = placeholder.meta.get("desc")
    return origin.target if isinstance(origin, ParamAOTInput | BufferAOTInput) else None


class Direct:
    """Compiled code that is called with a program's inputs, past AOTAutograd. Safe to use from several threads."""

    def __init__(self, compiled: Compiled, program: int, origins: Sequence[Any]) -> None:
        """``origins``: of each argument of ``compiled``, as AOTAutograd describes them."""
        names = [None if isinstance(each, PlainAOTInput) else each.target for each in origins]
        constants = constants_of(program, (name for name in names if name is not None))
        self._compiled, self._constants = compiled, constants
        numbers = iter(range(len(constants)))
        self._places = [
            next(numbers) if name is not None else len(constants) + each.idx
            for name, each in zip(names, origins, strict=True)
        ]

    def __call__(self, *inputs: Any) -> Any:
        given = [*self._constants, *inputs]
        is_recording = torch.is_grad_enabled()
        try:
            if is_recording:
                torch._C._set_grad_enabled(False)
            return self._compiled([given[place] for place in self._places])
        finally:
            if is_recording:
                torch._C._set_grad_enabled(True)


def compiled_without_constants(
    program: int, module: fx.GraphModule, examples: Sequence[Any], compiler: Compiled, static_input_idxs: Sequence[int],
    **options: Any,
) -> tuple[Compiled, Direct | None]:  # fmt: skip
    """Inductor's ``compiler`` run without the parameters and buffers that no node of ``module`` reads.

    Returns what AOTAutograd calls, and what a program may call in its place: None where AOTAutograd has more to do.
    """
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    places = [place for place, node in enumerate(inputs) if node.users or name_of(node) is None]
    for place in set(range(len(inputs))) - set(places):
        module.graph.erase_node(inputs[place])
    module.recompile()
    static = [number for number, place in enumerate(places) if place in set(static_input_idxs)]
    some = [examples[place] for place in places]
    compiled = compiler(module, some, static_input_idxs=static, **options)

    def run(args: list[Any]) -> Any:
        some = [args[place] for place in places]
        args.clear()
        return compiled(some)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run, _direct(compiled, program, [inputs[place] for place in places])


def _direct(compiled: Compiled, program: int, inputs: Sequence[fx.Node]) -> Direct | None:
    """None where a program writes to its inputs, or its outputs share memory with them or with one another."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    origins = [node.meta.get("desc") for node in inputs]
    is_known = all(isinstance(each, PlainAOTInput) or name_of(node) for each, node in zip(origins, inputs, strict=True))
    if metadata is None or not is_known or torch._C._is_any_autocast_enabled():
        return None
    writes = metadata.num_mutated_inp_runtime_indices or metadata.tokens or metadata.is_rng_op_functionalized
    are_plain = all(each.output_type in PLAIN_OUTPUTS for each in metadata.output_info)
    return Direct(compiled, program, origins) if are_plain and not writes else None
