"""The API against its own OpenAPI document (Schemathesis): whatever is sent, the answer is one that is documented.

A few requests of each kind here, a hundred in ``make soak``, others in each run; on both databases.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance

from service.app import create_app
from service.settings import Settings
from tests.serving import JOB, lease, register_local, store_library
from tests.shares import chosen
from tuner.program.job.jobspec import parse_job
from tuner.program.target import native
from tuner.storage.sql import Storage

SETTINGS = Settings(event_poll_s=0.01, event_stream_s=0.1, attempt_rate="", request_rate="", change_rate="")
# What a job may hold depends on the program in it, which no schema says: a refusal with 422 is documented.
EXCLUDED = [positive_data_acceptance]

load_all_checks()
# Records are imported as JSON lines: any text, here.
schemathesis.serializer.alias("application/jsonl", "text/plain")


@pytest.fixture
def app(storage: Storage) -> Iterator[FastAPI]:
    """A service that knows a device, a job and a library."""
    register_local(storage)
    yield create_app(storage, settings=SETTINGS)


@pytest.fixture
def known(storage: Storage, app: FastAPI) -> dict[str, str]:
    """Names that are there, by the path parameters that take them."""
    job, _ = storage.create_job(parse_job(JOB).on(native()))
    artifact = store_library(storage, lease(storage))
    return {"job_id": job.id, "key": artifact.workload_key, "name": "search_progress"}


def ask_everything(
    app: FastAPI, storage: Storage, known: dict[str, str], examples: int, *, others: bool = False
) -> int:
    """Ask each operation that often, with names that are there and others; how many operations there are.

    ``others``: what is asked is drawn anew in each run.
    """
    headers = {"Authorization": f"Bearer {storage.create_key('tests')[1]}"}
    schema = schemathesis.openapi.from_asgi("/v1/openapi.json", app, headers=headers)
    operations = [cast(Any, result).ok() for result in schema.get_all_operations()]
    for operation in operations:
        check_operation(operation, headers, known, examples, others)
    return len(operations)


def check_operation(
    operation: Any, headers: dict[str, str], known: dict[str, str], examples: int, others: bool
) -> None:
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=not others,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(), there=st.booleans())
    def check(case: Any, there: bool) -> None:
        if there:
            for name in case.path_parameters or {}:
                case.path_parameters[name] = known.get(name, case.path_parameters[name])
        case.call_and_validate(headers=headers, excluded_checks=EXCLUDED)

    check()


@pytest.mark.parametrize("database_url", chosen(["sqlite"], ["sqlite", "postgresql"]), indirect=True)
def test_every_answer_is_as_documented(app: FastAPI, storage: Storage, known: dict[str, str]) -> None:
    assert ask_everything(app, storage, known, 2) == sum(len(each) for each in app.openapi()["paths"].values())


@pytest.mark.soak
def test_every_answer_is_as_documented_however_often_one_asks(
    app: FastAPI, storage: Storage, known: dict[str, str]
) -> None:
    ask_everything(app, storage, known, 100, others=True)
