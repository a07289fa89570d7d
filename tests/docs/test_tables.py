"""Tables of the reference that are written by hand: they have a line for everything that there is, and no other."""

from __future__ import annotations

import re

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from service.metrics import Metrics
from tests.docs.pages import DOCS, ROOT, blocks
from tuner.errors import InvalidInput
from tuner.program.job.jobspec import parse_job
from tuner.program.job.policies import POLICIES
from tuner.schedule import RULES
from tuner.storage import Pulse

REFERENCE = DOCS / "reference"
INTERNAL = {"SHAPEWRIGHT_DEVICE_SIGNER", "SHAPEWRIGHT_TVM_WITHOUT_TORCH", "SHAPEWRIGHT_UP_ID"}
"""Variables by which processes of ours tell each other something; nobody else sets them."""

NOTHING = Pulse({}, 0.0, 0, 0, 0, {}, (), {})


def first_cells(page: str) -> list[str]:
    return re.findall(r"^\| `([^`{]+)", (REFERENCE / page).read_text(), re.MULTILINE)


def test_every_rule_is_on_its_page() -> None:
    assert set(first_cells("rules.md")) == {rule.name for rule in RULES}


def test_advice_is_on_policies_that_there_are() -> None:
    advice = re.findall(r"^\| (`.*?) \|", (DOCS / "howto" / "choose-a-policy.md").read_text(), re.MULTILINE)
    advised = {name for cell in advice for name in re.findall(r"`(\w+)`", cell)}
    assert set() < advised <= set(POLICIES)


def test_every_variable_of_the_environment_is_on_its_page() -> None:
    sources = [file for name in ("shapewright", "service", "worker", "tuner") for file in (ROOT / name).rglob("*.py")]
    there = {name for file in sources for name in re.findall(r"SHAPEWRIGHT_[A-Z_]+[A-Z]", file.read_text())}
    told = {name for name in first_cells("environment.md") if name.startswith("SHAPEWRIGHT_")}
    assert told == there - INTERNAL


def test_every_metric_is_on_its_page() -> None:
    metrics = Metrics()
    metrics.answered("GET", "/v1/jobs", 200, 0.1)
    metrics.looked_up("exact")
    there = {family.name for family in text_string_to_metric_families(metrics.text(NOTHING, 0))}
    assert {name.removesuffix("_total") for name in first_cells("metrics.md")} == there


def test_a_refused_job_is_refused_as_the_page_says() -> None:
    job = yaml.safe_load(next(each.text for each in blocks(REFERENCE / "job.md") if each.language == "yaml"))
    job["workload"]["args"]["m"] = "16*S"
    with pytest.raises(InvalidInput) as refusal:
        parse_job(job)
    assert f"shapewright: {refusal.value}\n" in (REFERENCE / "job.md").read_text()
