"""docs/contract.md and what there is: make, the command line, the API, jobs, the catalogue, the packages."""

from __future__ import annotations

import re

import click
import pytest

import shapewright
from docs.tools.commands import all_commands
from docs.tools.routes import operations
from shapewright.cli.output import ExitCode
from tests.docs.pages import ROOT
from tests.docs.promised import CONTRACT, listed, section
from tuner.program.catalogue import EPILOGUES, OPS
from tuner.program.job.build import OP_FIELDS, PROGRAM_FIELDS
from tuner.program.job.jobspec import FIELDS
from tuner.program.job.policies import POLICIES
from tuner.records import ErrorKind

SHARED = {"--json", "--url", "--key", "--database-url", "--data-dir", "--help"}
"""Options that the page names once, above the list."""


def named(text: str, before: str) -> list[str]:
    """The names of the sentence that begins so."""
    found = re.search(rf"{re.escape(before)}:? (.*?)(?:\.\s|\.$| \(\[)", text, re.DOTALL)
    assert found is not None, before
    return re.findall(r"`([^`]+)`", found[1])


def test_the_command_line_has_every_command_and_option_of_the_contract_and_no_others() -> None:
    there = {
        name: {option for each in command.params if isinstance(each, click.Option) for option in each.opts} - SHARED
        for name, command in all_commands()
    }
    assert {name: set(options) for name, options in listed(section("Command line")).items()} == there


def test_the_exit_codes_are_those_of_the_contract() -> None:
    codes = re.findall(r"^Exit codes: ([\d, ]+)", CONTRACT, re.MULTILINE)
    assert [int(code) for code in codes[0].split(",")] == [code.value for code in ExitCode]


def test_the_api_has_every_route_and_parameter_of_the_contract_and_no_others() -> None:
    there = {
        route: [each["name"] for each in details.get("parameters", ()) if each["in"] == "query"]
        for route, details in operations()
    }
    assert listed(section("HTTP")) == there


def test_a_job_has_the_fields_policies_and_errors_of_the_contract() -> None:
    text = section("A job")
    assert named(text, "Fields") == list(FIELDS)
    assert named(text, "Of an operator") == list(OP_FIELDS)
    assert named(text, "Of a program") == list(PROGRAM_FIELDS)
    assert set(named(text, "Policies")) <= set(POLICIES)
    assert named(text, "Kinds of failed trials") == list(ErrorKind)


def test_the_catalogue_has_what_the_contract_promises() -> None:
    text = section("A job")
    there = {name: [" ".join(op.args), *op.settings] for name, op in OPS.items()}
    assert listed(text) == {name: there.get(name) for name in listed(text)}
    assert set(named(text, "Epilogues")) <= set(EPILOGUES)


def test_the_packages_have_the_names_of_the_contract() -> None:
    from shapewright.torch.backend import OPTIONS  # noqa: PLC0415 - PyTorch, for this test alone

    text = section("Python")
    assert named(text, "Names of `shapewright`") == sorted(shapewright.__all__, key=lambda name: (name.islower(), name))
    assert named(text, "Names of `sw.torch`") == shapewright.torch.__all__
    assert named(text, "Options of the backend") == list(OPTIONS)
    assert named(text, "Names of `sw.relax`") == shapewright.relax.__all__


@pytest.mark.parametrize("target", ["demo", "test", "soak", "install", "serve", "lint", "bench"])
def test_the_makefile_has_the_targets_of_the_contract(target: str) -> None:
    assert f"`make {target}`" in section("Make")
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
