"""A hook of MkDocs: pages link to files of the source tree, which the site does not hold.

On the site such a link is the text alone, with the file's path as its tooltip. Links within ``docs`` are MkDocs' own to
check.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\\.)*)\]\(([^)\s:]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    folder = posixpath.dirname(page.file.src_uri)
    return "".join(
        part if part.startswith("```") else LINK.sub(lambda found: _resolved(found, folder), part)
        for part in FENCE.split(markdown)
    )


def _resolved(link: re.Match[str], folder: str) -> str:
    text, target = link.groups()
    path = posixpath.normpath(posixpath.join("docs", folder, target.partition("#")[0]))
    if path.startswith("docs/") or target.startswith("#"):
        return link[0]
    if not (ROOT / path).exists():
        raise FileNotFoundError(f"docs/{folder}: a page links to {target}, which is no file")
    return f'<span class="source" title="{path}">{text}</span>'

