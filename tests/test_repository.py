"""The files that a repository is judged by: licence, versions, workflows, forms, hooks."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version

import shapewright as sw
import tuner
from shapewright.cli.main import cli

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = {path.stem: yaml.load(path.read_text(), yaml.BaseLoader) for path in (ROOT / ".github/workflows").iterdir()}
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""SHA-256 of the standard text."""


def lines_of(workflow: str) -> list[str]:
    return [step["run"] for job in WORKFLOWS[workflow]["jobs"].values() for step in job["steps"] if "run" in step]


def test_pages_at_the_top_are_those_that_readers_look_for_there() -> None:
    assert {page.name for page in ROOT.glob("*.md")} == {"CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"}


def test_the_licence_is_the_standard_text_and_the_distribution_names_it() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert {"LICENSE", "NOTICE"} == set(PROJECT["project"]["license-files"])


def test_the_version_stands_in_one_place_and_others_repeat_it() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "tuner.__version__"}
    assert sw.__version__ == tuner.__version__ == str(Version(tuner.__version__))
    number, when = re.findall(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert number == citation["version"] == tuner.__version__
    assert date.fromisoformat(when) == citation["date-released"]
    assert citation["license"] == PROJECT["project"]["license"]


def test_the_command_tells_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["--version"], prog_name="shapewright", standalone_mode=False)
    assert capsys.readouterr().out.split() == ["shapewright", tuner.__version__]


def test_continuous_integration_runs_its_script() -> None:
    assert "bash .ci/run" in lines_of("ci")
    assert set(WORKFLOWS["ci"]["on"]) >= {"push", "pull_request"}
    for workflow in WORKFLOWS.values():
        assert workflow["permissions"]["contents"] in ("read", "write")
        assert all(int(job["timeout-minutes"]) <= 90 for job in workflow["jobs"].values())


def test_a_release_is_made_of_a_tag_that_is_the_version() -> None:
    assert WORKFLOWS["release"]["on"] == {"push": {"tags": ["v*"]}}
    check = lines_of("release")[0]
    for tag, status in ((f"v{tuner.__version__}", 0), ("v9.9.9", 1)):
        # The interpreter of the tests stands for the workflow's.
        line = ["bash", "-c", check.replace("$(python ", f"$({sys.executable} ")]
        ran = subprocess.run(line, cwd=ROOT, env={"GITHUB_REF_NAME": tag}, timeout=60, check=False)
        assert ran.returncode == status
    targets = re.findall(r"make (\w+)", "\n".join(lines_of("release")))
    assert set(targets) <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("form", [each for each in FORMS if each.name != "config.yml"], ids=lambda each: each.stem)
def test_a_form_is_one_that_github_shows(form: Path) -> None:
    read = yaml.safe_load(form.read_text())
    assert {"name", "description", "body"} <= set(read)
    ids = [field["id"] for field in read["body"]]
    assert len(ids) == len(set(ids))
    for field in read["body"]:
        assert field["type"] in ("textarea", "input", "dropdown", "checkboxes", "markdown")
        assert field["attributes"]["label"]


def test_the_hooks_are_the_linters_of_the_makefile() -> None:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local"
    hooks = {hook["entry"].removeprefix(".venv/bin/").split()[0] for hook in local["hooks"]}
    makefile = (ROOT / "Makefile").read_text()
    lint = makefile[makefile.index("\nlint:") :].split("\n\n")[0]
    assert hooks == set(re.findall(r"\$\(BIN\)/(\S+)", lint))
