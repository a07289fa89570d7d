"""Copies of models of PyTorch that share their tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from tuner.errors import InvalidInput

Note = Callable[[str, Any, Exception], None]
"""Told of an attribute or a module that has no copy: its name, what it is, and why."""


def copied(model: nn.Module, note: Note, replaced: Mapping[int, nn.Module] | None = None) -> nn.Module:
    """A copy of the modules of ``model``, which shares its tensors, and what cannot be copied. ``replaced``: what takes
    the place of a module, by its id. Raises InvalidInput."""
    shared: dict[int, Any] = {
        id(leaf): leaf
        for module in model.modules()
        for leaf in tree_leaves(vars(module))
        if isinstance(leaf, torch.Tensor) or (isinstance(leaf, torch.jit.ScriptModule) and leaf is not model)
    }
    shared.update(replaced or {})
    try:
        return copy.deepcopy(model, dict(shared))
    except Exception:
        _share_others(model, shared, note)
    try:
        return copy.deepcopy(model, shared)
    except Exception as error:
        raise InvalidInput("model", f"cannot be copied ({error})", "a model that copy.deepcopy copies") from error


def _share_others(model: nn.Module, shared: dict[int, Any], note: Note) -> None:
    """Add to ``shared`` what has no copy: attributes of modules, or modules, of whose parts none is to blame."""
    others = {**{id(each): each for each in model.modules()}, **shared}
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if (error := _no_copy(value, dict(others))) is not None:
                shared[id(value)] = others[id(value)] = value
                note(f"{name}.{attribute}".lstrip("."), value, error)
        alone = {key: value for key, value in others.items() if value is not module}
        if module is not model and (error := _no_copy(module, alone)) is not None:
            shared[id(module)] = module
            note(name, module, error)


def _no_copy(value: Any, memo: dict[int, Any]) -> Exception | None:
    try:
        copy.deepcopy(value, memo)
    except Exception as error:
        return error
    return None
