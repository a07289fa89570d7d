"""The names of the Python packages, with signatures and docstrings; kinds of errors."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from docs.tools.markdown import code, prose, sentence, table
from shapewright.steps import each, request
from tuner import errors
from tuner.records import DISQUALIFYING, ErrorKind

KINDS = {
    ErrorKind.BUILD: "the compiler refused the kernel, or there is no linker",
    ErrorKind.BUILD_TIMEOUT: "the build took too long",
    ErrorKind.CRASH: "the kernel ended its process, or broke a bound of its session",
    ErrorKind.WRONG: "an element is further from the reference than its error bound, or a guard region was touched",
    ErrorKind.RUN_TIMEOUT: "the kernel ran too long",
    ErrorKind.DEVICE: "the device did not answer",
    ErrorKind.MACHINE: "the machine failed, not the kernel: no memory, no room on a disk, a device that was restarted",
}


def python() -> str:
    return _package("shapewright", "sw")


def torch() -> str:
    return _package("shapewright.torch", "sw.torch", level="###")


def relax() -> str:
    return _package("shapewright.relax", "sw.relax", level="###")


def torch_options() -> str:
    """What the docstring of the backend says of its options, each of OPTIONS among them."""
    backend = importlib.import_module("shapewright.torch.backend")
    text = prose(backend.shapewright.__doc__)
    assert all(f"`{name}`" in text for name in backend.OPTIONS), "an option of the backend is not in its docstring"
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n\n", 1)[1].splitlines())


def error_kinds() -> str:
    rows = [(code(kind), KINDS[kind], "yes" if kind in DISQUALIFYING else "") for kind in ErrorKind]
    return table(("kind", "means", "the kernel is never chosen again"), rows)


def exceptions() -> str:
    found = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, Exception)]
    return table(("exception", "is"), [(code(each.__name__), sentence(each.__doc__)) for each in found])


def _package(name: str, short: str, level: str = "##") -> str:
    package = importlib.import_module(name)
    members = sorted(package.__all__, key=lambda each: (each.islower(), each))
    return "\n\n".join(_member(short, each, getattr(package, each), level) for each in members)


def _member(short: str, name: str, value: Any, level: str) -> str:
    title = f"{level} {short}.{name}"
    if isinstance(value, ModuleType):
        return f"{title}\n\n{prose(value.__doc__)}"
    parts = [title, f"```text\n{short}.{name}{_signature(value)}\n```", prose(inspect.getdoc(value))]
    if inspect.isclass(value):
        rows = [(code(f"{each}{shape}"), text) for each, shape, text in _methods(value)]
        parts += [table(("member", "is"), rows)] if rows else []
    return "\n\n".join(filter(None, parts))


def _methods(value: type) -> Iterator[tuple[str, str, str]]:
    """Public members with a docstring, of the class and of those of ours that it inherits from."""
    members: dict[str, Any] = {}
    for base in reversed(value.__mro__):
        if base.__module__.startswith(("shapewright.", "tuner.")):
            members |= vars(base)
    for name, member in members.items():
        plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        is_own = not name.startswith("_") or name == "__call__"
        if is_own and isinstance(plain, property) and plain.__doc__:
            yield name, "", sentence(plain.__doc__)
            continue
        function = plain.__get__(None, value) if isinstance(plain, request | each) else plain
        if is_own and inspect.isfunction(function) and function.__doc__:
            yield name, _signature(function), sentence(function.__doc__)


def _signature(value: Any) -> str:
    try:
        text = str(inspect.signature(value))
    except ValueError:
        return "(...)"
    text = text.replace("self, ", "").replace("(self)", "()")
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    return re.sub(r"<built-in function (\w+)>", r"\1", text)
