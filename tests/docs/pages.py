"""The pages of the documents, their links and their blocks of code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
FENCE = re.compile(
    r"^(?:<!-- (?P<marker>[^\n]*) -->\n)?```(?P<language>\S*)(?P<rest>[^\n]*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    """A block of code. ``marker`` is the comment in the line above it, if any; ``rest`` what follows the language."""

    page: Path
    line: int
    language: str
    rest: str
    marker: str
    text: str

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start("text"))
        yield Block(page, line, found["language"], found["rest"].strip(), found["marker"] or "", found["text"])


def blocks_of(*languages: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.language in languages]


def without_code(text: str) -> str:
    """A page's text whose blocks of code are left out: links in them are none."""
    return FENCE.sub("", text)
