"""Exports of PyTorch in half of the time, and its compiler without a profile, for tests of hundreds of small graphs.

Each export looks through all operators that were ever registered for what is composite, once for each namespace, and
overrides ten thousand kernels, of which each evaluates the annotations of a nested function. None of it depends on the
graph. Dynamo flushes the caches of the CPU after each graph, to log how long its guards take: 40 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import guards
from torch._export import utils


def install() -> None:
    """From now on in this process: look again only where operators were registered since, override at once, and time no
    guards."""
    if torch._ops.OperatorBase.py_impl is not _py_impl:
        torch._ops.OperatorBase.py_impl = _py_impl
        guards.profile_guard_manager = lambda *_: 0.0
        _look_once()


_every_py_impl = torch._ops.OperatorBase.py_impl
_KEY, _PYTHON = torch._C.DispatchKey, torch._C.DispatchKey.Python


def _py_impl(operator: Any, key: Any) -> Callable[[Any], Any]:
    if type(key) is not _KEY or key == _PYTHON or key in operator.py_kernels:
        return _every_py_impl(operator, key)  # type: ignore[no-any-return]

    def register(kernel: Any) -> Any:
        operator.py_kernels[key] = kernel
        operator._dispatch_cache.clear()
        return kernel

    return register


def _look_once() -> None:
    look, of_aten = utils._materialize_cpp_cia_ops, utils._collect_all_valid_cia_ops_for_aten_namespace
    seen = set[tuple[str, ...]]()

    def of_aten_once() -> Any:
        """That of ATen is asked for once by each export."""
        registered = tuple(torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd"))
        if registered not in seen:
            look()
            seen.add(registered)
        return of_aten()

    utils._materialize_cpp_cia_ops = lambda: None
    utils._collect_all_valid_cia_ops_for_aten_namespace = of_aten_once
