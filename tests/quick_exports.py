"""Exports of PyTorch in half of the time, for the tests of hundreds of small graphs.

Each export looks through all operators that were ever registered for what is composite, once for each namespace, and
evaluates the annotations of a nested function for each of ten thousand overrides. Neither depends on the graph.
"""

from __future__ import annotations

import typing

import torch
from torch._export import utils


def install() -> None:
    """From now on in this process: look again only where operators were registered since, and remember types."""
    if torch._ops.Callable is typing.Callable:
        return
    # Those of collections.abc are made anew whenever they are subscripted.
    torch._ops.Callable = typing.Callable
    look, seen = utils._materialize_cpp_cia_ops, set[tuple[str, ...]]()

    def look_once() -> None:
        registered = tuple(torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd"))
        if registered not in seen:
            look()
            seen.add(registered)

    utils._materialize_cpp_cia_ops = look_once
