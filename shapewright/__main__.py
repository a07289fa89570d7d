"""``python -m shapewright`` is the same as `shapewright`."""

from __future__ import annotations

from shapewright.cli import main

main()
