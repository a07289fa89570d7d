"""The build of the distribution: setuptools', of a copy of the tree in which everything is in one package.

The folders `tuner`, `service`, `worker` and `migrations` stand beside `shapewright` in the repository. Installed they
would take four common names of everybody's, so a wheel has them as `shapewright.tuner` and so on: they are copied into
the package, and the import statements of all modules follow. Editable installs and source distributions have the tree
as it is. See docs/decisions/0072-one-package-in-the-wheel.md.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import chdir
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
]

PACKAGE = "shapewright"
MOVED = ("migrations", "service", "tuner", "worker")
PREFIX = f"{PACKAGE}.".encode()
FILES = ("pyproject.toml", "README.md", "LICENSE", "NOTICE")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc")
VERSION = 'attr = "tuner.'
"""Where pyproject.toml says which module has the version."""

NAMED = re.compile(rf"(?:{'|'.join(MOVED)})\.(?:[a-z_]|$)")
"""Begins a text that is the name of a module, or its first part."""
RUN = re.compile(rf"(?:^|\s)(?:-m|from|import)\s+(?:{'|'.join(MOVED)})\b")
"""Code or a command line that names a module."""
TAKES_NAMES = ("files", "find_spec", "getLogger", "import_module", "run_module")
"""Functions to which even a plain word is the name of a module."""


class CannotMove(ValueError):
    """A module names another in a way that does not follow when that one is moved."""


def build_wheel(
    wheel_directory: str, config_settings: Mapping[str, str] | None = None, metadata_directory: str | None = None
) -> str:
    """The hook of PEP 517. Raises CannotMove."""
    target = Path(wheel_directory).absolute()
    with tempfile.TemporaryDirectory(prefix="shapewright-build-") as folder:
        stage(Path(), Path(folder))
        with chdir(folder):
            return str(build_meta.build_wheel(os.fspath(target), config_settings, metadata_directory))


def stage(root: Path, target: Path) -> None:
    """Copy what a wheel is built of from the repository's ``root`` to ``target``. Raises CannotMove."""
    for name in FILES:
        shutil.copy(root / name, target / name)
    project = (target / "pyproject.toml").read_text()
    if project.count(VERSION) != 1:
        raise CannotMove(f"pyproject.toml has {VERSION!r} {project.count(VERSION)} times, not once")
    (target / "pyproject.toml").write_text(project.replace(VERSION, VERSION.replace("tuner.", f"{PACKAGE}.tuner.")))
    package = target / PACKAGE
    shutil.copytree(root / PACKAGE, package, ignore=LEFT_OUT)
    for name in MOVED:
        if (package / name).exists() or (package / f"{name}.py").exists():
            raise CannotMove(f"{PACKAGE} has a module {name} of its own")
        shutil.copytree(root / name, package / name, ignore=LEFT_OUT)
    for file in sorted(package.rglob("*.py")):
        file.write_bytes(moved(file.read_bytes(), os.fspath(file.relative_to(target))))


def moved(source: bytes, name: str) -> bytes:
    """A module whose imports name the modules of MOVED where they are in the wheel; nothing else is changed.

    >>> moved(b"from tuner.errors import InvalidInput", "a.py")
    b'from shapewright.tuner.errors import InvalidInput'

    Raises CannotMove for what would not follow: `import tuner` binds another name then, and a text may name a module.
    """
    nodes = list(ast.walk(ast.parse(source)))
    # Docstrings tell readers of names, and nothing reads them.
    told = {id(each.value) for each in nodes if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)}
    for node in nodes:
        problem = _problem(node) if id(node) not in told else None
        if problem:
            raise CannotMove(f"{name}:{getattr(node, 'lineno', 0)}: {problem}")
    lines = source.splitlines(keepends=True)
    for line, column in sorted(_places(nodes, lines), reverse=True):
        lines[line] = lines[line][:column] + PREFIX + lines[line][column:]
    return b"".join(lines)


def _places(nodes: Iterable[ast.AST], lines: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """(line, column) of each module's name, both from 0, columns in bytes, as the parser counts them."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level == 0 and _is_moved(node.module):
            line = node.lineno - 1
            found = re.compile(rb"from[ \t]+").match(lines[line], node.col_offset)
            assert found is not None, lines[line]
            yield line, found.end()
        elif isinstance(node, ast.Import):
            yield from ((each.lineno - 1, each.col_offset) for each in node.names if _is_moved(each.name))


def _problem(node: ast.AST) -> str | None:
    """Why what ``node`` names cannot follow; None if it can, or names no module that is moved."""
    if isinstance(node, ast.Import):
        bare = [each.name for each in node.names if _is_moved(each.name) and each.asname is None]
        return f"import {bare[0]}: write from ... import, or import ... as" if bare else None
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        named = NAMED.match(node.value) or RUN.search(node.value)
        return f"{node.value[:60]!r} names a module: make it of __name__, __package__ or a module" if named else None
    if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in TAKES_NAMES:
        is_named = any(isinstance(each, ast.Constant) and each.value in MOVED for each in node.args)
        return f"{ast.unparse(node)} names a module: give it the module" if is_named else None
    return None


def _is_moved(module: str | None) -> bool:
    return (module or "").partition(".")[0] in MOVED
