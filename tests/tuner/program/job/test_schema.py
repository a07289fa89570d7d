"""The JSON schema of job files: what it takes, what it marks, and that the file in the package is it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from docs.tools.generate import schema_file
from tests.tuner.program.job.jobs import JOBS
from tuner.program.catalogue import OPS
from tuner.program.job import build, jobspec
from tuner.program.job.jobspec import parse_job
from tuner.program.job.schema import (
    FILE_MATCH,
    JOB_FIELDS,
    OPERATOR_FIELDS,
    PROGRAM_FIELDS,
    job_schema,
    schema_text,
)

SCHEMA = job_schema()
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)
JOB: dict[str, Any] = {
    "workload": {"op": "dense", "args": {"m": "16*T", "n": 1024, "k": 512}},
    "shape_vars": {"T": {"min": 1, "max": 64}},
    "budget": {"trials": 8},
}
EXAMPLES = sorted(Path("examples").rglob("*.yaml"))


def test_the_file_in_the_package_is_the_schema_of_this_version() -> None:
    assert schema_text() == schema_file(), "run make reference"


def test_it_is_a_schema_in_the_form_of_schemastore() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert SCHEMA["$id"].startswith("https://www.schemastore.org/")
    assert SCHEMA["title"]
    howto = Path("docs/howto/edit-job-files.md").read_text()
    assert all(name.rpartition(".")[0] in howto for name in FILE_MATCH)


def test_every_field_is_described() -> None:
    assert set(JOB_FIELDS) == set(jobspec.FIELDS) == set(SCHEMA["properties"])
    operator, program = SCHEMA["definitions"]["JobWorkload"]["oneOf"]
    assert set(operator["properties"]) == set(OPERATOR_FIELDS) | set(build.COMMON_FIELDS)
    assert set(operator["properties"]) == {*build.OP_FIELDS, *build.COMMON_FIELDS}
    assert set(program["properties"]) == {*build.PROGRAM_FIELDS, *build.COMMON_FIELDS}
    assert set(PROGRAM_FIELDS) == set(build.PROGRAM_FIELDS)


@pytest.mark.parametrize("path", EXAMPLES, ids=str)
def test_the_job_files_of_the_examples_are_valid(path: Path) -> None:
    data = yaml.safe_load(path.read_text())
    if isinstance(data, dict) and "budget" in data:
        VALIDATOR.validate(data)


@pytest.mark.parametrize("op", sorted(OPS))
def test_every_operator_with_its_args_is_valid(op: str) -> None:
    args = dict.fromkeys(OPS[op].args, 8) | {name: 3 for name in "rst" if name in OPS[op].args}
    VALIDATOR.validate(JOB | {"workload": {"op": op, "args": args}})
    assert not VALIDATOR.is_valid(JOB | {"workload": {"op": op, "args": args | {"nonsense": 1}}})


@pytest.mark.parametrize("job", JOBS)
def test_what_a_job_may_be_is_valid(job: dict[str, Any]) -> None:
    whole = JOB | job
    whole = {name: value for name, value in whole.items() if value is not ...}
    parse_job(json.loads(json.dumps(whole)))
    VALIDATOR.validate(whole)


@pytest.mark.parametrize(
    "wrong",
    [{"budgets": {}}, {"budget": {}}, {"workload": {"op": "linear", "args": {}}}, {"policy": "best"},
     {"workload": {"op": "dense", "args": {"m": 1, "n": 2}}}, {"shape_vars": {"T": {"min": 1}}}, {"threads": 0},
     {"workload": {"op": "dense", "args": JOB["workload"]["args"], "program": "x"}}, {"target": "haswell"}],
)  # fmt: skip
def test_what_is_plainly_wrong_is_marked(wrong: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid(JOB | wrong)
