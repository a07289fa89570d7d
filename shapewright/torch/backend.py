"""The backend of torch.compile: ``torch.compile(model, backend="shapewright", dynamic=True, options={"source": ...})``.

TorchDynamo's graph is lifted into workloads; what has a library is replaced by ``torch.ops.shapewright.call``; the rest
goes to Inductor, or runs as it is. Sizes stay symbolic, so other lengths need no new compilation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from shapewright.sources.finder import finder_of
from shapewright.sources.reports import Report
from shapewright.torch.graphs import constants_of, replace_lifted, with_constant_floats
from shapewright.torch.lowering import register
from shapewright.torch.reports import note_compiled
from tuner.errors import InvalidInput

logger = logging.getLogger(__name__)

OPTIONS = ("source", "strict", "threads", "rest", "inductor", "report")
RESTS = ("inductor", "eager")
TRAINING = "gradients are recorded here, and tuned kernels are for inference: compile under torch.no_grad()"


def shapewright(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of TorchDynamo.

    ``options``: ``source`` (a URL, a directory, a snapshot file, or several; the service of SHAPEWRIGHT_URL if left
    out), ``strict`` (raise where a source is away, or a workload has no library), ``threads`` (of the libraries;
    PyTorch's own number if left out), ``rest`` (``inductor`` or ``eager``: what runs the rest), ``inductor`` (its
    options), ``report`` (a ``Report`` that is filled in). ``mode`` is Inductor's. Raises InvalidInput.
    """
    given = _checked(options or {})
    report: Report = given.get("report") or Report()
    note_compiled(report)
    with_constant_floats(graph)
    trained = [each for each in example_inputs if isinstance(each, torch.Tensor) and each.requires_grad]
    if torch.is_grad_enabled() and trained:
        report.note([TRAINING])
    else:
        threads = given.get("threads") or torch.get_num_threads()
        finder = finder_of(given.get("source"), strict=bool(given.get("strict")), threads=threads)
        replace_lifted(graph, constants_of(graph), finder, report)
        report.note(finder.notes)
    logger.info("%s", report)
    if given.get("rest", "inductor") == "eager":
        return graph.forward  # type: ignore[no-any-return]
    return _inductor(graph, example_inputs, mode, given.get("inductor") or {})


def _checked(options: Mapping[str, Any]) -> Mapping[str, Any]:
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise InvalidInput(f"options.{unknown[0]}", "is no option", f"options: {', '.join(OPTIONS)}")
    if options.get("rest", "inductor") not in RESTS:
        raise InvalidInput("options.rest", f"{options['rest']!r} is not known", f"one of: {', '.join(RESTS)}")
    if not isinstance(options.get("report"), Report | None):
        raise InvalidInput("options.report", "is no report", "a shapewright.torch.Report, which is filled in")
    return options


def _inductor(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any], mode: str | None, options: Mapping[str, Any]
) -> Callable[..., Any]:
    from torch._inductor import list_mode_options  # noqa: PLC0415 - seconds, for those who compile
    from torch._inductor.compile_fx import compile_fx  # noqa: PLC0415

    register()
    patches = {**(list_mode_options(mode) if mode else {}), **options}
    return compile_fx(graph, list(example_inputs), config_patches=patches)  # type: ignore[no-any-return]
