"""docs/contract.md and what there is: make, the command line, the API, the catalogue, the names of the package."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

import shapewright
from service.app import create_app
from shapewright.cli.main import cli
from tuner.program.catalogue import OPS
from tuner.program.job.build import PROGRAM_FIELDS, make_workload
from tuner.program.job.jobspec import FIELDS, POLICIES, parse_job
from tuner.program.language.workload import Workload
from tuner.storage.sql import open_storage, upgrade

CONTRACT = (Path(__file__).parents[1] / "docs" / "contract.md").read_text()
SHARED = {"--json", "--url", "--key", "--database-url", "--data-dir", "-o", "--output"}
"""Options that the page explains once, above the table, and the short form of one."""
PARTS = "serve|calibrate|upgrade|create|list|revoke|backup|restore|stale|remeasure|prune"
"""The second words of commands that have two."""


def section(title: str) -> str:
    return CONTRACT.split(f"\n## {title}")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of every row of the tables in a text, without heads."""
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in cells] for cells in lines]


def commands(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def test_the_command_line_has_every_command_and_option_of_the_contract_and_no_others() -> None:
    told = {}
    for usage in (usage for first, *_ in rows(section("Command line")) for usage in re.findall(r"`(.*?)`", first)):
        (name,) = re.findall(rf"^[a-z][a-z-]*(?: (?:{PARTS}))?", usage)
        told[name] = {f"--{option}" for option in re.findall(r"--([a-z-]+)", usage)} - SHARED
    there = {
        name: {option for each in command.params if isinstance(each, click.Option) for option in each.opts} - SHARED
        for name, command in commands(cli)
    }
    assert told == there


def test_the_api_has_every_route_of_the_contract_and_no_others(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tuning.db"
    upgrade(url)
    storage = open_storage(url)
    paths = create_app(storage).openapi()["paths"]
    storage.close()
    there = {f"{method.upper()} {path}": details for path, each in paths.items() for method, details in each.items()}
    told = {first.strip("`"): second for first, second in rows(section("HTTP"))}
    assert sorted(told) == sorted(there)
    for route, details in there.items():
        for parameter in details.get("parameters", ()):
            if parameter["in"] == "query":
                assert re.search(rf"`{parameter['name']}\b", told[route]), f"{route}: {parameter['name']}"


def test_the_package_has_the_names_of_the_contract() -> None:
    names = re.search(r"^Names: (.*?)\.$", section("Python"), re.DOTALL | re.MULTILINE)
    assert names is not None
    assert re.findall(r"`(\w+)`", names.group(1)) == sorted(shapewright.__all__, key=_as_told)


def test_the_integration_of_pytorch_has_the_names_and_options_of_the_contract() -> None:
    from shapewright.torch.backend import OPTIONS  # noqa: PLC0415 - PyTorch, for this test alone

    text = section("Python")
    names, options = (
        re.search(pattern, text, re.DOTALL)
        for pattern in (r"Names of `sw\.torch`: (.*?)\.", r"Options of the backend: (.*?)\n\w")
    )
    assert names is not None
    assert options is not None
    assert re.findall(r"`(\w+)`", names.group(1)) == shapewright.torch.__all__
    assert set(re.findall(r"`(\w+)`", options.group(1))) >= set(OPTIONS)


def test_the_integration_of_relax_has_the_names_of_the_contract() -> None:
    names = re.search(r"Names of `sw\.relax`: (.*?)\.", section("Python"), re.DOTALL)
    assert names is not None
    assert re.findall(r"`(\w+)`", names.group(1)) == shapewright.relax.__all__


def _as_told(name: str) -> tuple[bool, str]:
    return name.islower(), name


def test_the_catalogue_is_that_of_the_contract() -> None:
    told = {}
    for first, second, third in rows(section("A job")):
        args, settings = re.findall(r"^`([a-z ]+)`(?:, )?(.*)$", second)[0]
        for name in re.findall(r"`(\w+)`", first):
            told[name] = (tuple(args.split()), tuple(settings.split()))
            _check_operands(make_workload(name, dict.fromkeys(args.split(), 6)), third)
    assert told == {name: (op.args, tuple(op.settings)) for name, op in OPS.items()}


def _check_operands(workload: Workload, text: str) -> None:
    """Either the program is spelled out, or its operands stand there in order; constants are marked."""
    if " = " in text:
        assert f"`{workload.program}`" in text
    else:
        assert re.findall(r"`(\w+)\[[^]]*\]`", text) == [operand.name for operand in workload.operands]
    constants = re.findall(r"(\w+)(?:\[[^]]*\]`)? constant", text)
    assert tuple(constants) == workload.constants


def test_the_jobs_of_the_contract_are_jobs_with_every_field() -> None:
    first, second = (
        yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", CONTRACT, re.DOTALL | re.MULTILINE)
    )
    for job in (first, second):
        assert parse_job(job).tasks
    assert {*first, "workloads", "targets"} == set(FIELDS)
    assert {*second["workload"], "epilogue"} == set(PROGRAM_FIELDS)
    assert all(policy in section("A job") for policy in POLICIES)


@pytest.mark.parametrize("target", ["demo", "test", "soak", "install", "serve", "lint", "bench"])
def test_the_makefile_has_the_targets_of_the_contract(target: str) -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    assert f"`make {target}`" in section("Make")
    assert re.search(rf"^{target}:", makefile, re.MULTILINE)
