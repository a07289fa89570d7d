"""Fills the generated parts of docs/reference, and writes the JSON schema of job files into the package:
``python -m docs.tools.generate`` (``make reference``).

A part is what stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``. A test compares every page with what
this gives.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from docs.tools import catalogue, commands, names, routes
from tuner.program.job import schema

REFERENCE = Path(__file__).parents[1] / "reference"
PARTS: Mapping[str, Callable[[], str]] = {
    "commands": commands.commands,
    "exit-codes": commands.exit_codes,
    "make": commands.make_targets,
    "problems": commands.problems,
    "routes": routes.routes,
    "operators": catalogue.operators,
    "epilogues": catalogue.epilogues,
    "job-fields": catalogue.job_fields,
    "operator-fields": catalogue.operator_fields,
    "program-fields": catalogue.program_fields,
    "job-bounds": catalogue.job_bounds,
    "policies": catalogue.policies,
    "error-kinds": names.error_kinds,
    "exceptions": names.exceptions,
    "python": names.python,
    "torch": names.torch,
    "torch-options": names.torch_options,
    "relax": names.relax,
}
PART = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """A page with its generated parts as they are now."""
    return PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n\n{found[3]}", text)


def schema_file() -> str:
    """The JSON schema of job files as it is now."""
    return json.dumps(schema.job_schema(), indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    for page in sorted(REFERENCE.glob("*.md")):
        page.write_text(filled(page.read_text()))
    (Path(schema.__file__).parent / schema.FILE).write_text(schema_file())


if __name__ == "__main__":
    main()
