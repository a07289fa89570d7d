"""The OpenAPI document and the page that shows it."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.jobs.job_schema import EXAMPLE, JOB
from tuner.program.job.jobspec import FIELDS, parse_job


@pytest.fixture
def document(api: TestClient) -> dict[str, Any]:
    answer: dict[str, Any] = api.get("/v1/openapi.json").json()
    return answer


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(method, path, each) for path, of in document["paths"].items() for method, each in of.items()]


def test_every_error_is_a_problem(document: dict[str, Any]) -> None:
    for _, _, operation in operations(document):
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                assert set(answer["content"]) == {"application/problem+json"}
                assert answer["content"]["application/problem+json"]["schema"]["$ref"].endswith("/Problem")
    assert not {"HTTPValidationError", "ValidationError"} & document["components"]["schemas"].keys()


def test_what_every_route_can_answer_is_told(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        statuses = set(operation["responses"])
        assert statuses >= {"500", "503"}
        assert (statuses >= {"401", "403", "429"}) is bool(operation.get("security"))
        if "{" in path:
            assert "404" in statuses
        if method == "post":
            assert statuses >= {"408", "413"}
    submit = document["paths"]["/v1/jobs"]["post"]
    assert set(submit["responses"]) >= {"201", "415", "422"}
    assert "409" in document["paths"]["/v1/jobs/{job_id}/cancel"]["post"]["responses"]
    assert "304" in document["paths"]["/v1/jobs/{job_id}"]["get"]["responses"]


def test_every_operation_has_a_tag_that_is_described_and_a_text(document: dict[str, Any]) -> None:
    described = {tag["name"] for tag in document["tags"]}
    for _, _, operation in operations(document):
        assert set(operation["tags"]) <= described


def test_the_job_of_the_document_has_every_field_and_its_example_is_one() -> None:
    assert set(JOB["properties"]) == set(FIELDS)
    assert parse_job(EXAMPLE).tasks


def test_the_page_shows_every_operation_and_loads_nothing_from_elsewhere(
    api: TestClient, document: dict[str, Any]
) -> None:
    page = api.get("/docs")
    assert page.status_code == 200
    for method, path, _ in operations(document):
        assert f"<code>{method.upper()} {path}</code>" in page.text
    assert "scope admin" in page.text
    loaded = re.findall(r'(?:src|href|action)="([^"]*)"', page.text)
    assert loaded
    assert all(address.startswith(("/", "#")) and not address.startswith("//") for address in loaded)


def test_the_page_has_schemas_examples_and_requests_to_try(api: TestClient, document: dict[str, Any]) -> None:
    page = api.get("/docs").text
    for name in document["components"]["schemas"]:
        assert f'id="schema-{name}"' in page
    targets = set(re.findall(r'href="#([^"]*)"', page))
    assert targets <= set(re.findall(r'id="([^"]*)"', page)), "a link leads nowhere"
    submit = page[page.index('data-method="POST" data-path="/v1/jobs"') :].split("</form>")[0]
    assert parse_job(json.loads(html.unescape(submit.split("<textarea")[1].split(">", 1)[1].split("</textarea>")[0])))
    assert page.count('class="try"') == len(operations(document))
    forms = re.findall(r'data-method="GET" data-path="/v1/jobs/\{job_id\}/trials/table">.*?</form>', page, re.DOTALL)
    assert "<option>crash</option>" in forms[0]
    assert api.get("/").text.count('href="/docs"') == 1
