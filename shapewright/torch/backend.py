"""The backend of torch.compile: ``torch.compile(model, backend="shapewright", dynamic=True, options={"source": ...})``.

TorchDynamo's graph is brought to ATen's functional form and lifted into workloads; what has a library is replaced by
``torch.ops.shapewright.call``; the rest goes to Inductor, or runs as it is. Sizes stay symbolic, so other lengths need
no new compilation. Where anything goes wrong on the way, the graph is PyTorch's alone.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._dynamo.exc import RestartAnalysis, SkipFrame

from shapewright.sources.finder import Finder, finder_of
from shapewright.sources.reports import NotReplaced, Replaced
from shapewright.torch.devices import allows_tf32, target_of
from shapewright.torch.floats import read_as_constants
from shapewright.torch.graphs import replace_lifted
from shapewright.torch.lowering import register
from shapewright.torch.normal_form import Compiled, NothingReplaced, as_it_is, by_inductor, probe_vectors
from shapewright.torch.reports import Report, note_compiled
from tuner.errors import InvalidInput

logger = logging.getLogger(__name__)

OPTIONS = ("source", "strict", "threads", "rest", "inductor", "report")
INDUCTOR = "inductor"
RESTS = (INDUCTOR, "eager")
TRAINING = "gradients are recorded here, and tuned kernels are for inference: compile under torch.no_grad()"


def shapewright(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of TorchDynamo, or of ``torch.export`` without its guards.

    ``options``: ``source`` (a URL, a directory, a snapshot file, or several; the service of SHAPEWRIGHT_URL if left
    out), ``strict`` (raise where a source is away, or a workload has no library), ``threads`` (of the libraries;
    PyTorch's own number if left out), ``rest`` (``inductor`` or ``eager``: what runs the rest), ``inductor`` (its
    options), ``report`` (a ``Report`` that is filled in). ``mode`` is Inductor's. Raises InvalidInput for options;
    whatever else goes wrong leaves the graph to PyTorch, with a warning and a reason in the report, but for ``strict``.
    """
    return compile_graph(graph, example_inputs, checked_options(options or {}), mode)


def compile_graph(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any], given: Mapping[str, Any], mode: str | None = None,
    frozen: int = 0,
) -> Callable[..., Any]:  # fmt: skip
    """As ``shapewright``, for ``given`` options. ``frozen``: of ``ChainPlan``."""
    report: Report = given.get("report") or Report()
    note_compiled(report)
    target = target_of(example_inputs)
    if given.get("rest", INDUCTOR) == INDUCTOR and not isinstance(target, str) and target.gpu is None:
        probe_vectors()
    compiler = _compiler(given, mode, frozen)
    trained = [each for each in example_inputs if isinstance(each, torch.Tensor) and each.requires_grad]
    if torch.is_grad_enabled() and trained:
        report.note([TRAINING])
        return compiler(graph, example_inputs, None)
    if isinstance(target, str):
        report.note([target])
        return compiler(graph, example_inputs, None)
    try:
        threads = given.get("threads") or (torch.get_num_threads() if target.gpu is None else 1)
        finder = finder_of(
            given.get("source"), strict=bool(given.get("strict")), threads=threads, target=target,
            tf32=allows_tf32(target),
        )  # fmt: skip
    except InvalidInput:
        raise
    except Exception as error:
        return _left(compiler, graph, example_inputs, given, report, error)
    try:
        with read_as_constants(graph):
            return _compiled(graph, example_inputs, finder, report, compiler)
    except (RestartAnalysis, SkipFrame):
        # TorchDynamo's own: it traces again, with what it has learned.
        raise
    except Exception as error:
        return _left(compiler, graph, example_inputs, given, report, error)
    finally:
        logger.info("%s", report)


def checked_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise InvalidInput(f"options.{unknown[0]}", "is no option", f"options: {', '.join(OPTIONS)}")
    if options.get("rest", INDUCTOR) not in RESTS:
        raise InvalidInput("options.rest", f"{options['rest']!r} is not known", f"one of: {', '.join(RESTS)}")
    if not isinstance(options.get("report"), Report | None):
        raise InvalidInput("options.report", "is no report", "a shapewright.torch.Report, which is filled in")
    return options


def _compiler(options: Mapping[str, Any], mode: str | None, frozen: int) -> Callable[..., Compiled]:
    if options.get("rest", INDUCTOR) != INDUCTOR:
        return partial(as_it_is, frozen=frozen)
    register()
    return partial(by_inductor, mode=mode, options=options.get("inductor") or {}, frozen=frozen)


def _compiled(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    finder: Finder,
    report: Report,
    compiler: Callable[..., Compiled],
) -> Compiled:
    replaced: list[Replaced] = []

    def rewrite(module: torch.fx.GraphModule, constants: frozenset[str]) -> bool:
        found = replace_lifted(module, constants, finder)
        report.kept += found.kept
        report.note([*found.notes, *finder.notes])
        replaced[:] = found.replaced
        return bool(replaced)

    try:
        compiled = compiler(graph, example_inputs, rewrite)
    except NothingReplaced:
        return compiler(graph, example_inputs, None)
    # Only now is it known that they are called.
    report.replaced += replaced
    return compiled


def _left(
    compiler: Callable[..., Compiled],
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    options: Mapping[str, Any],
    report: Report,
    error: Exception,
) -> Compiled:
    """PyTorch's own, since ``error`` came up on the way to ours. Raises it again where ``strict`` is set."""
    if options.get("strict"):
        raise error
    # PyTorch's first: what it refuses itself is no fault of ours, and comes out as it always does.
    compiled = compiler(graph, example_inputs, None)
    first, *_ = str(error).splitlines() or [""]
    reason = f"{type(error).__name__}: {first}"
    report.kept.append(NotReplaced("the whole graph", "a graph", reason))
    logger.warning("a graph is left to PyTorch", exc_info=error)
    warnings.warn(f"shapewright: a graph is left to PyTorch: {reason}", stacklevel=2)
    return compiled
