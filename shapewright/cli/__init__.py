"""The command line. ``main`` is the entry point; a file for each group of commands."""

from __future__ import annotations

from shapewright.cli.main import main

__all__ = ["main"]
