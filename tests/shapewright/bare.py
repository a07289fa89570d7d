"""An interpreter in which nothing is installed but what a device needs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
    return closure(device_requirements())


def closure(requirements: Iterable[str]) -> frozenset[str]:
    """The distributions that these bring here."""
    found: set[str] = set()
    waiting = [Requirement(each) for each in requirements]
    while waiting:
        wanted = waiting.pop()
        name = distribution(wanted.name)
        if name not in found:
            found.add(name)
            needed = [Requirement(each) for each in requires(name) or ()]
            waiting += [each for each in needed if _applies(each, wanted.extras)]
    return frozenset(found)


def _applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def blocked(allowed: frozenset[str] | None = None) -> set[str]:
    """The modules that every distribution brings but ``allowed``, which are those of a device if not given."""
    allowed = (of_a_device() if allowed is None else allowed) | {"shapewright"}
    packages = packages_distributions()
    return {name for name, by in packages.items() if not allowed & set(map(distribution, by))} - _AT_START


def python(code: str, allowed: frozenset[str] | None = None) -> list[str]:
    """A command line that runs ``code`` without what a device has not, or with ``allowed`` alone."""
    return [sys.executable, "-c", _BLOCK.format(blocked=blocked(allowed)) + code]


def shapewright(*arguments: object) -> list[str]:
    return python(f"from shapewright.cli import main\nmain({[str(each) for each in arguments]!r})")


def distribution(name: str) -> str:
    """As the index has it: in small letters, with dashes."""
    return canonicalize_name(name)
