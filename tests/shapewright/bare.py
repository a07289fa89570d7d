"""An interpreter in which nothing is installed but what a device needs."""

from __future__ import annotations

import re
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
assert not {blocked!r} & set(sys.modules), "imported before it could be blocked"
"""
_AT_START = {"_distutils_hack"}
"""Loaded with the interpreter, by the environment's own .pth files."""


def device_requirements() -> list[str]:
    lines = (ROOT / "deploy" / "device-requirements.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def of_a_device() -> frozenset[str]:
    """The distributions that deploy/device-requirements.txt brings."""
    found: set[str] = set()
    waiting = [_name(each) for each in device_requirements()]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [_name(each) for each in requires(name) or () if "extra ==" not in each]
    return frozenset(found)


def blocked() -> set[str]:
    """The modules that every other distribution brings."""
    allowed = of_a_device() | {"shapewright"}
    packages = packages_distributions()
    return {name for name, by in packages.items() if not allowed & set(map(_name, by))} - _AT_START


def python(code: str) -> list[str]:
    """A command line that runs ``code`` without what a device has not."""
    return [sys.executable, "-c", _BLOCK.format(blocked=blocked()) + code]


def shapewright(*arguments: object) -> list[str]:
    return python(f"from shapewright.cli import main\nmain({[str(each) for each in arguments]!r})")


def _name(requirement: str) -> str:
    """As the index has it: in small letters, with dashes."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s;\[=<>!~(]", requirement, maxsplit=1)[0]).lower()
