"""README.md, the links of all pages and the index of decisions: jobs that are jobs, programs that are programs, files
that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tuner.program.job.jobspec import parse_job
from tuner.program.language.program import Program

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_and_files_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if not link.startswith("http") and not (page.parent / link).exists()]
    assert missing == []


def test_every_decision_is_in_the_index_under_its_number_and_title() -> None:
    folder = ROOT / "docs" / "decisions"
    row = r"^\| (\d+) \| \[(.+?)\]\((\S+?)\) \| .+ \| .+ \|$"
    told = re.findall(row, (folder / "README.md").read_text(), re.MULTILINE)
    there = []
    for page in sorted(folder.glob("[0-9]*.md")):
        number, title = page.read_text().splitlines()[0].removeprefix("# ").split(". ", 1)
        assert page.name.startswith(f"{int(number):04d}-")
        there.append((number, title, page.name))
    assert told == there


def test_the_jobs_of_the_readme_are_jobs() -> None:
    dense, capsule = (
        parse_job(yaml.safe_load(block))
        for block in re.findall(r"^```yaml\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    )
    assert [tensor.name for tensor in dense.tasks[0].workload.operands] == ["x", "w", "bias", "out"]
    assert [tensor.name for tensor in capsule.tasks[0].workload.operands] == ["a", "w", "c"]


def test_the_programs_of_the_pitch_are_programs() -> None:
    block = re.search(r"^```\n(softmax.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert block is not None
    programs = dict(line.split(maxsplit=1) for line in block.group(1).splitlines())
    assert {name: len(Program.parse(text).inputs) for name, text in programs.items()} == {
        "softmax": 1,
        "moe": 3,
        "conv": 2,
    }
