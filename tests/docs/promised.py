"""docs/contract.md, read."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tests.docs.pages import DOCS

CONTRACT = (DOCS / "contract.md").read_text()


def section(title: str) -> str:
    return CONTRACT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def listed(text: str) -> Mapping[str, list[str]]:
    """The items of a list: the first name of each, and those behind it."""
    items = re.findall(r"^- (.*(?:\n  .*)*)", text, re.MULTILINE)
    names = [re.findall(r"`([^`]+)`", item) for item in items]
    return {first: rest for first, *rest in names}
