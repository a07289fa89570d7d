"""docs/reference/programs.md: every example in its tables is what the page says."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.docs.pages import DOCS
from tuner.errors import InvalidInput
from tuner.program.job.build import workload_from_json
from tuner.program.language import expr, notation
from tuner.program.language import program as programs
from tuner.program.language.dtypes import DTYPES
from tuner.program.language.program import Program

PAGE = (DOCS / "reference" / "programs.md").read_text()
ACCEPTED, REFUSED = PAGE.split("## What is refused")
CELLS = re.findall(r"^\|.*\| `([a-z]+\[[^`]*\] = [^`]*)`(?:, with `shapes: (\{[^`]*\})`)?", ACCEPTED, re.M)
STAGES = re.findall(r"^\| `(.*?)` \|", REFUSED, re.M)


def test_the_page_has_examples() -> None:
    assert (len(CELLS), len(STAGES)) == (18, 9)


@pytest.mark.parametrize(("text", "shapes"), CELLS)
def test_examples_are_accepted(text: str, shapes: str) -> None:
    program = Program.parse(text)
    data: dict[str, Any] = {"program": text, "extents": dict.fromkeys(program.axes, 8)}
    data["dtype"] = dict.fromkeys(re.findall(r"(\w+)\[[^]]*\] >>", text), "int8")
    data["shapes"] = yaml.safe_load(shapes) if shapes else {}
    assert workload_from_json(data).program == program


@pytest.mark.parametrize("text", STAGES)
def test_what_is_refused_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Program.parse(text)
    assert caught.value.problem.startswith("line 1, column ")
    assert caught.value.remedy


def test_the_message_on_the_page_is_what_a_user_sees() -> None:
    with pytest.raises(InvalidInput) as caught:
        Program.parse("top[m] = max(n) x[m, n]\nout[m] = x[m, n] - top[m]")
    assert f"```text\n{caught.value}\n```" in REFUSED


def test_functions_dtypes_and_limits_on_the_page_are_those_of_the_code() -> None:
    for name in (*expr.FUNCTIONS, *expr.REDUCERS, *DTYPES, "cast", "extent"):
        assert re.search(rf"\b{name}\b", ACCEPTED), name
    limits = (
        f"{notation.MAX_TEXT} characters, {notation.MAX_STAGES} stages, {programs.MAX_TENSORS} tensors, "
        f"{programs.MAX_SIZES} axes ({programs.MAX_AXES} in a stage), {notation.MAX_NODES} operations and operands, "
        f"expressions of {notation.MAX_DEPTH} levels"
    )
    assert limits in REFUSED.replace("\n", " ")


def test_operators_bind_as_the_table_says() -> None:
    rows = re.findall(r"^\| (`a .*?) \| ", PAGE[PAGE.index("| | binds |") :].split("\n\n")[0], re.M)
    levels = [[cell.split()[1].replace("\\", "") for cell in re.findall(r"`([^`]*)`", row)] for row in rows]
    by_level: dict[int, set[str]] = {}
    for operator, level in expr.PRECEDENCE.items():
        by_level.setdefault(level, set()).add(operator)
    assert [set(row) for row in levels] == [by_level[level] for level in sorted(by_level, reverse=True)]
