"""docker-compose.yml: command lines, networks, secrets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from tests.command_lines import parse

ROOT = Path(__file__).parents[1]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
GATE = (ROOT / "deploy" / "gate.cfg").read_text()


def words(value: str | list[str] | None) -> list[str]:
    return shlex.split(value) if isinstance(value, str) else list(value or ())


def lines() -> Iterator[tuple[str, list[str]]]:
    """(service, line) of every command line of the containers."""
    for name, service in SERVICES.items():
        if service.get("image") != "shapewright":
            continue
        line = words(service.get("entrypoint", ["shapewright"])) + words(service.get("command"))
        if line[:2] != ["sh", "-c"]:
            yield name, line
            continue
        for part in line[2].split("&&"):
            yield name, shlex.split(part.strip().removeprefix("exec "))


def networks(name: str) -> set[str]:
    return set(SERVICES[name]["networks"])


def neighbours(name: str) -> set[str]:
    """The services that share a network with one."""
    return {other for other in SERVICES if other != name and networks(name) & networks(other)}


def test_the_containers_run_command_lines_that_parse() -> None:
    assert [(service, parse(line)) for service, line in lines()] == [
        ("migrate", "shapewright db upgrade"),
        ("api", "shapewright serve"),
        ("ray-head", "ray start"),
        ("worker", "ray start"),
        ("worker", "shapewright worker"),
        ("tracker", "shapewright tracker"),
        ("device", "shapewright device serve"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "shapewright worker --trackr tracker:9190",
        "ray start --adress=ray-head:6379",
        "shapewright tracker --prt 9190",
        "sleep infinity",
    ],
)
def test_a_command_line_that_does_not_parse_is_noticed(line: str) -> None:
    with pytest.raises((click.UsageError, SystemExit)):
        parse(shlex.split(line))


def test_every_part_is_there_and_its_health_is_looked_after() -> None:
    assert set(SERVICES) == {"postgres", "migrate", "api", "ray-head", "worker", "tracker", "gate", "device"}
    for name in ("postgres", "api", "ray-head", "tracker"):
        assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"
    for service in SERVICES.values():
        for needed, condition in service.get("depends_on", {}).items():
            healthy = condition["condition"] == "service_healthy"
            assert "healthcheck" in SERVICES[needed] if healthy else needed in ("migrate", "gate")


def test_only_the_api_is_published_and_only_to_this_machine() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"api": ["127.0.0.1:8321:8321"]}
    for name in set(SERVICES) - {"api"}:
        assert all(COMPOSE["networks"][network].get("internal") for network in networks(name))


def test_a_device_meets_nobody_but_the_gate() -> None:
    assert neighbours("device") == {"gate"}
    assert neighbours("gate") == {"device", "tracker", "worker"}
    assert neighbours("ray-head") == {"worker"}
    assert neighbours("postgres") == {"api", "migrate", "worker"}


def test_the_gate_leads_to_the_tracker_and_back_to_the_device() -> None:
    assert re.findall(r"^listen (\w+)\n +bind :(\d+)\n +server \w+ (\S+)$", GATE, re.MULTILINE) == [
        ("tracker", "9190", "tracker:9190"),
        ("device", "9091", "device:9091"),
    ]
    assert len(re.findall(r"^ *(?:server|bind|use_backend|default_backend) ", GATE, re.MULTILINE)) == 4
    command = words(SERVICES["device"]["command"])
    told = dict(pairwise(command))
    assert (told["--tracker"], told["--address"], told["--port"]) == ("gate:9190", "gate", "9091")
    source, target, _ = SERVICES["gate"]["volumes"][0].split(":")
    assert (ROOT / source).read_text() == GATE
    assert target == "/usr/local/etc/haproxy/haproxy.cfg"


def test_every_process_of_ray_wants_the_token_and_nobody_else_has_it() -> None:
    using = {name for name, line in lines() if "ray" in line or "--ray-address" in line}
    assert using == {"ray-head", "worker"}
    assert using == {name for name, service in SERVICES.items() if "ray-token" in service.get("secrets", ())}
    for name in using:
        environment = SERVICES[name]["environment"]
        assert environment["RAY_AUTH_MODE"] == "token"
        (secret,) = SERVICES[name]["secrets"]
        assert environment["RAY_AUTH_TOKEN_PATH"] == f"/run/secrets/{secret}"
        assert COMPOSE["secrets"][secret] == {"environment": "RAY_AUTH_TOKEN"}


def test_the_device_joins_by_a_token_that_nobody_else_has_and_the_worker_wants_one() -> None:
    assert [name for name, service in SERVICES.items() if "device-token" in service.get("secrets", ())] == ["device"]
    told = dict(pairwise(words(SERVICES["device"]["command"])))
    assert told["--token-file"] == "/run/secrets/device-token"
    assert COMPOSE["secrets"]["device-token"] == {"environment": "DEVICE_TOKEN"}
    (line,) = [line for name, line in lines() if "--ray-address" in line]
    assert dict(pairwise(line))["--device-tokens"] == "required"


def test_no_secret_is_baked_in() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    passwords = re.findall(r"PASSWORD: (\S+)", text) + re.findall(r"shapewright:(\S+)@", text)
    assert passwords
    assert all(password.startswith("${POSTGRES_PASSWORD:?") for password in passwords)
    for service in SERVICES.values():
        names = {name for name in service.get("environment", {}) if re.search("KEY|TOKEN|SECRET", name)}
        assert names <= {"RAY_AUTH_TOKEN_PATH"}
