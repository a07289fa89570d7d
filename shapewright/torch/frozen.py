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

FOLDED = "shapewright_folded"
"""What an attribute of a graph that holds what was computed of constants is marked with: the name of the constant."""

_constants: dict[int, dict[str, torch.Tensor]] = {}
"""By the number of the program, and by their names in its module; what was computed of them has names that no module
has."""
_folded: dict[int, list[object]] = {}
"""What computes these anew, by the number of the program."""


def keep_constants(program: int, module: torch.nn.Module) -> None:
    """Keep the parameters and buffers of a program until ``forget_constants``."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    _constants[program] = dict(named)


def constants_of(program: int, names: Iterable[str]) -> list[torch.Tensor]:
    return [_constants[program][name] for name in names]


def keep_folded(program: int, folded: object, values: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Keep ``values``, which ``folded`` has computed of the constants of a program, as further ones. Returns them by
    the names that they have now."""
    _folded.setdefault(program, []).append(folded)
    own, first = _constants[program], len(_constants[program])
    named = {f"folded {first + number}": value for number, value in enumerate(values)}
    own.update(named)
    return named


def forget_constants(program: int) -> None:
    # What computes others of the constants goes before them.
    _folded.pop(program, None)
    _constants.pop(program, None)


def name_of(placeholder: fx.Node) -> str | None:
    """The name of the parameter or buffer that an input of AOTAutograd's graph is; None for another input."""
    origin = placeholder.meta.get("desc")
    return origin.target if isinstance(origin, ParamAOTInput | BufferAOTInput) else None


class Direct:
    """Compiled code that is called with a program's inputs, past AOTAutograd. Safe to use from several threads."""

    def __init__(self, compiled: Compiled, program: int, origins: Sequence[Any], folded: Sequence[str]) -> None:
        """``origins``: of each argument of ``compiled``, as AOTAutograd describes them; ``folded``: the names of the
        constants behind them."""
        names = [None if isinstance(each, PlainAOTInput) else each.target for each in origins]
        constants = constants_of(program, [*(name for name in names if name is not None), *folded])
        self._compiled, self._constants = compiled, constants
        numbers = iter(range(len(constants)))
        self._places = [
            next(numbers) if name is not None else len(constants) + each.idx
            for name, each in zip(names, origins, strict=True)
        ] + list(numbers)

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
    """Inductor's ``compiler`` run without the parameters and buffers that no node of ``module`` reads, and given what
    was computed of them: attributes would be kept on disk with the code, and be those of another program.

    Returns what AOTAutograd calls, and what a program may call in its place: None where AOTAutograd has more to do.
    """
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    places = [place for place, node in enumerate(inputs) if node.users or name_of(node) is None]
    for place in set(range(len(inputs))) - set(places):
        module.graph.erase_node(inputs[place])
    folded = _folded_as_inputs(module)
    module.recompile()
    static = [number for number, place in enumerate(places) if place in set(static_input_idxs)]
    static += range(len(places), len(places) + len(folded))
    some = [*(examples[place] for place in places), *folded.values()]
    compiled = compiler(module, some, static_input_idxs=static, **options)
    constants = constants_of(program, folded)

    def run(args: list[Any]) -> Any:
        some = [*(args[place] for place in places), *constants]
        args.clear()
        return compiled(some)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run, _direct(compiled, program, [inputs[place] for place in places], list(folded))


def _folded_as_inputs(module: fx.GraphModule) -> dict[str, Any]:
    """Inputs in the place of the attributes that hold what was computed of constants, behind the others; by the names
    of the constants their values in the graph."""
    graph, found = module.graph, dict[str, Any]()
    *_, last = graph.find_nodes(op="placeholder")
    for node in list(graph.find_nodes(op="get_attr")):
        if (name := node.meta.get(FOLDED)) is None:
            continue
        with graph.inserting_after(last):
            last = graph.placeholder(str(node.target))
        last.meta = dict(node.meta)
        node.replace_all_uses_with(last)
        graph.erase_node(node)
        found[name] = last.meta["val"]
    return found


def _direct(compiled: Compiled, program: int, inputs: Sequence[fx.Node], folded: Sequence[str]) -> Direct | None:
    """None where a program writes to its inputs, or its outputs share memory with them or with one another."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    origins = [node.meta.get("desc") for node in inputs]
    is_known = all(isinstance(each, PlainAOTInput) or name_of(node) for each, node in zip(origins, inputs, strict=True))
    if metadata is None or not is_known or torch._C._is_any_autocast_enabled():
        return None
    writes = metadata.num_mutated_inp_runtime_indices or metadata.tokens or metadata.is_rng_op_functionalized
    are_plain = all(each.output_type in PLAIN_OUTPUTS for each in metadata.output_info)
    return Direct(compiled, program, origins, folded) if are_plain and not writes else None
