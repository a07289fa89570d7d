"""A graph of TorchDynamo compiled by way of the normal form of ``shapewright.models.aten``.

AOTAutograd brings the graph there: what is written in place, transforms, autocast and arguments by keyword are resolved
by the time that anything is lifted. ``Rewritten`` is called with that graph, and hands on one in which PyTorch's own
decompositions have been carried out around the calls of libraries, with the strides that PyTorch's code would see.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx
from torch.fx.experimental.symbolic_shapes import optimization_hint, statically_known_true, sym_or

from shapewright.models.aten import fused
from shapewright.models.fast_paths import spelled_out
from shapewright.models.graph import CannotLift
from shapewright.torch.chains import make_chains
from shapewright.torch.changing import changing_numbers
from shapewright.torch.folding import fold_constants
from shapewright.torch.frozen import compiled_without_constants, name_of
from shapewright.torch.repeats import merge_repeats
from shapewright.torch.rest import is_little

aten = torch.ops.aten
VIEWS = frozenset({aten.view.default, aten._unsafe_view.default})
"""Views that strides may forbid: with other strides than they were traced for they become reshapes."""
LOOK_AT_STRIDES = frozenset({
    aten.as_strided, aten.as_strided_copy, aten.as_strided_scatter, aten.sym_stride, aten.sym_storage_offset,
})  # fmt: skip
"""Operators of ATen whose result depends on how their inputs lie in memory."""
PROBE = "shapewright-probe-vectors"
"""The name of the thread in which Inductor probes the compiler."""

Compiled = Callable[..., Any]


class NothingReplaced(Exception):
    """No part of a graph has a library."""


class Rewritten:
    """What AOTAutograd's graphs go through. ``rewrite(graph, constants)`` changes one in place and says whether it did.

    Raises NothingReplaced.
    """

    def __init__(
        self, rewrite: Callable[[fx.GraphModule, frozenset[str]], bool], table: Mapping[Any, Callable[..., Any]],
        frozen: int,
    ) -> None:  # fmt: skip
        self._rewrite, self._table, self._frozen = rewrite, table, frozen
        self.leaves_little = False
        """Whether little was left of the last one."""

    def __call__(self, graph: fx.Graph) -> None:
        module, constants = graph.owning_module, _constants(graph)
        if not self._rewrite(module, constants):
            raise NothingReplaced
        traced = _traced(module, self._table)
        merge_repeats(traced.graph)
        pairs = zip(_inputs(graph), _inputs(traced.graph), strict=True)
        staying = {again.name: name_of(node) for node, again in pairs if node.name in constants}
        if self._frozen:
            staying |= fold_constants(traced, staying, self._frozen)
        make_chains(traced, staying, self._frozen)
        self.leaves_little = is_little(traced.graph)
        _replace_by(module, traced)


def by_inductor(
    graph: fx.GraphModule, inputs: Sequence[Any], rewrite: Any, mode: str | None, options: Mapping[str, Any],
    frozen: int = 0,
) -> Compiled:  # fmt: skip
    """Compiled by Inductor, as it would compile ``graph`` itself where ``rewrite`` is None."""
    from torch._functorch import config as functorch_config  # noqa: PLC0415 - seconds, for those who compile
    from torch._inductor import config as inductor_config  # noqa: PLC0415
    from torch._inductor import list_mode_options  # noqa: PLC0415
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner  # noqa: PLC0415
    from torch._inductor.custom_graph_pass import get_custom_graph_passes  # noqa: PLC0415
    from torch._inductor.decomposition import select_decomp_table  # noqa: PLC0415

    patches = {**(list_mode_options(mode) if mode else {}), **options}
    if rewrite is None:
        return compile_fx(graph, list(inputs), config_patches=patches)  # type: ignore[no-any-return]
    # Passes of the user's own go first: they see the graph that they would see without this one.
    own = patches.get("joint_custom_pre_pass", inductor_config.joint_custom_pre_pass)
    rewritten, direct = Rewritten(rewrite, select_decomp_table(), frozen), list[Compiled]()
    patches["joint_custom_pre_pass"] = [*get_custom_graph_passes(own), _pass(rewritten)]
    # TorchDynamo's guards have looked at every input before.
    patches.setdefault("size_asserts", False)

    def inner(module: fx.GraphModule, examples: Sequence[Any], **kwargs: Any) -> Any:
        # Whoever has said how many threads there are is to have them.
        is_free = rewritten.leaves_little and inductor_config.cpp.threads < 1
        with inductor_config.patch({"cpp.threads": 1} if is_free else {}):
            if not frozen:
                return compile_fx_inner(module, examples, **kwargs)
            compiled, found = compiled_without_constants(frozen, module, examples, compile_fx_inner, **kwargs)
        direct.extend([found] if found is not None else [])
        return compiled

    # Its cache knows the graph before the pass, and not which libraries there are.
    with spelled_out(graph), functorch_config.patch(enable_autograd_cache=False):
        compiled = compile_fx(graph, list(inputs), inner, config_patches=patches, decompositions=_normal_form())
    return direct[0] if len(direct) == 1 else compiled


@cache
def probe_vectors() -> None:
    """Have Inductor probe, in a thread, which vector instruction sets its compiler and this CPU support: it compiles a
    program for each, and code generation would wait for that where none of them is in its cache."""
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list  # noqa: PLC0415 - seconds, for those who compile

    def find() -> None:
        # What goes wrong here goes wrong again, and is told, where Inductor asks itself.
        with suppress(Exception):
            valid_vec_isa_list()

    threading.Thread(target=find, name=PROBE, daemon=True).start()


def _pass(rewritten: Rewritten) -> Any:
    """``rewritten`` as a pass over Inductor's graphs."""
    from torch._inductor.custom_graph_pass import CustomGraphPass  # noqa: PLC0415

    class Pass(CustomGraphPass):  # type: ignore[misc]
        def __call__(self, graph: fx.Graph) -> None:
            rewritten(graph)

        def uuid(self) -> bytes:
            # Keys of Inductor's cache hold the graph that comes out of this: nothing is to be added.
            return bytes(1)

    return Pass()


def as_it_is(graph: fx.GraphModule, inputs: Sequence[Any], rewrite: Any, frozen: int = 0) -> Compiled:
    """Run operator by operator, as ``graph`` itself would where ``rewrite`` is None."""
    if rewrite is None:
        return graph.forward  # type: ignore[no-any-return]
    from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func  # noqa: PLC0415

    rewritten = Rewritten(rewrite, {}, frozen)

    def compiler(module: fx.GraphModule, _: Sequence[Any]) -> Compiled:
        rewritten(module.graph)
        return make_boxed_func(module.forward)  # type: ignore[no-any-return]

    # TorchDynamo has made a context; AOTAutograd writes down in it which inputs stay.
    context = TracingContext.try_get() or TracingContext(detect_fake_mode(inputs))
    with tracing(context), spelled_out(graph):
        return aot_module_simplified(graph, list(inputs), fw_compiler=compiler, decompositions=_normal_form())  # type: ignore[no-any-return]


def _normal_form() -> dict[Any, Callable[..., Any]]:
    """What AOTAutograd decomposes beside the composite operators."""
    return {**fused(), **changing_numbers()}


def _constants(graph: fx.Graph) -> frozenset[str]:
    """The inputs that stay from call to call: parameters and buffers that nothing writes to, in the graph or behind."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    inputs = _inputs(graph)
    origins = [node.meta.get("desc") for node in inputs]
    kept = {node for node, of in zip(inputs, origins, strict=True) if of and (of.is_param() or of.is_buffer())}
    # TorchDynamo tells their places, which are others where AOTAutograd has put views of one tensor together.
    if metadata is not None and not any(hasattr(of, "base_of") for of in origins):
        kept |= {node for place, node in enumerate(inputs) if place in (metadata.static_input_indices or ())}
    written = {each for node in graph.nodes if _is_mutable(node) for each in node.all_input_nodes}
    known = zip(inputs, metadata.input_info, strict=False) if metadata is not None else ()
    written |= {node for node, info in known if info.mutates_data}
    return frozenset(node.name for node in kept - written)


def _inputs(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _is_mutable(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


# -- traced again ---------------------------------------------------------------------------------------------------
def _traced(module: fx.GraphModule, table: Mapping[Any, Callable[..., Any]]) -> fx.GraphModule:
    """The graph with the decompositions of ``table``, and shapes and strides as they are now."""
    inputs = [node.meta["val"] for node in _inputs(module.graph)]
    mode = detect_fake_mode(inputs)

    def run(*given: Any) -> Any:
        with fx.traceback.preserve_node_meta():
            return _Interpreter(module).run(*given)

    with torch.no_grad(), mode:
        return make_fx(run, decomposition_table=dict(table), _allow_non_fake_inputs=True)(*inputs)


class _Interpreter(fx.Interpreter):  # type: ignore[misc]
    """Runs a graph in which some values have other strides than those that it was traced with."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return super().call_function(aten.reshape.default if target in VIEWS else target, args, kwargs)

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not _looks_at_strides(n):
            return super().fetch_args_kwargs_from_env(n)  # type: ignore[no-any-return]
        known = {node: _with_strides_of(self.env[node], node.meta.get("val")) for node in n.all_input_nodes}
        return fx.map_arg(n.args, known.__getitem__), fx.map_arg(n.kwargs, known.__getitem__)


def _looks_at_strides(node: fx.Node) -> bool:
    """Whether a node's value depends on how its inputs lie in memory: outputs do, and what is not ATen's may."""
    if node.op == "output":
        return True
    if node.op != "call_function" or type(node.target).__module__ == "builtins":
        return False
    if not isinstance(node.target, torch._ops.OpOverload):
        return isinstance(node.target, torch._ops.HigherOrderOperator)
    if node.target.namespace not in ("aten", "prims", "shapewright"):
        return True
    return node.target is aten.view.dtype or node.target.overloadpacket in LOOK_AT_STRIDES


def _with_strides_of(value: Any, before: Any) -> Any:
    """``value`` where it lies as ``before`` does, else a copy that does.

    Raises CannotLift where ``before`` lies in some other way than its axes in another order.
    """
    if not isinstance(value, torch.Tensor) or not isinstance(before, torch.Tensor):
        return value
    if value.layout is not torch.strided or before.layout is not torch.strided:
        return value
    if _is_same(value.shape, value.stride(), before.stride()):
        return value
    order = sorted(range(value.dim()), key=lambda axis: (optimization_hint(before.stride(axis)), -axis))
    # PyTorch's own strides of what may be empty are those of one row, strides of inputs are those that they have.
    for least in (0, 1):
        strides = _strides(value.shape, order, least)
        if _is_same(value.shape, strides, before.stride()):
            return aten.copy.default(value.new_empty_strided(value.shape, strides), value)
    raise CannotLift(f"a value with the strides {before.stride()} cannot be made")


def _strides(sizes: Sequence[Any], order: Sequence[int], least: int) -> list[Any]:
    """Those of axes that lie in ``order``, without gaps; each counts as ``least`` at least.

    Sizes of the trace before are other symbols: strides are made anew of those of this one.
    """
    stride: Any = 1
    strides = [stride] * len(sizes)
    for axis in order:
        strides[axis] = stride
        stride = stride * (torch.sym_max(sizes[axis], least) if least else sizes[axis])
    return strides


def _is_same(sizes: Sequence[Any], strides: Sequence[Any], wanted: Sequence[Any]) -> bool:
    # The strides are of another trace: comparing them is no part of this one.
    with disable_proxy_modes_tracing():
        triples = zip(sizes, strides, wanted, strict=True)
        return all(statically_known_true(sym_or(size <= 1, mine == other)) for size, mine, other in triples)


def _replace_by(module: fx.GraphModule, traced: fx.GraphModule) -> None:
    """The nodes of ``traced`` in the place of the module's own, whose inputs and output stay."""
    graph = module.graph
    inputs = _inputs(graph)
    output = graph.output_node()
    output.args = ((),)
    for node in reversed(graph.nodes):
        if node.op not in ("placeholder", "output"):
            graph.erase_node(node)
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            setattr(module, str(node.target), getattr(traced, str(node.target)))
    known = dict(zip(_inputs(traced.graph), inputs, strict=True))
    with graph.inserting_before(output):
        for node in traced.graph.nodes:
            if node.op == "output":
                output.args = (fx.map_arg(node.args[0], known.__getitem__),)
            elif node not in known:
                known[node] = graph.node_copy(node, known.__getitem__)
    graph.lint()
    module.recompile()
