"""JSON columns that hold what cannot be read, as a faulty disk or hand leaves them: only their own rows are harmed."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from fastapi.routing import iter_route_contexts
from fastapi.testclient import TestClient

from service.app import create_app
from tests.searched import searched, submitted
from tests.serving import register_local
from tuner.storage import AliasQuery, JobState, NewKey, PromotionOrder, Quota
from tuner.storage.sql import Storage, open_storage
from tuner.storage.sql.columns import Json
from tuner.storage.sql.schema import metadata

COLUMNS = [
    (table.name, column.name) for table in metadata.sorted_tables for column in table.c if isinstance(column.type, Json)
]
SETS = 4
"""`make test` spoils each column together with others, of as many tables as there are."""
CUT = '{"x'
OTHERS = {
    "null": "null",
    "empty text": "",
    "array": "[1, [2]]",
    "object": '{"a": {"b": []}}',
    "number": "17",
    "text": '"text"',
    "huge": '{"tasks": 1e999, "budget": ' + "9" * 5000 + "}",
    "deep": "[" * 2000 + "]" * 2000,
    "rather deep": '{"a":' * 240 + "1" + "}" * 240,
    "surrogate": '{"name": "\\ud800\\u0000"}',
    "not UTF-8": b'{"name": "\xff\xfe',
}
UNANSWERED = {"/v1/jobs/{job_id}/events", "/login"}
"""The stream of a job that goes on does not end; it has a test of its own."""
OF_NO_ROWS = {"/v1/openapi.json", "/docs"}
"""What is said of the API itself, half a second for each application."""


Filled = tuple[Path, dict[str, str], list[str]]


@pytest.fixture(scope="module")
def filled(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """A database with something in every JSON column, what the routes' paths name there, and these paths."""
    file = tmp_path_factory.mktemp("filled") / "filled.db"
    shutil.copy(sqlite_template, file)
    with closing(open_storage(f"sqlite:///{file}")) as storage:
        key, secret = storage.create_key("tests", None, NewKey(quota=Quota(open_jobs=1000)))
        register_local(storage)
        done = searched(storage, webhook={"url": "https://example.org/hook"})
        row = storage.search_tasks(done.id)[0]
        library = storage.latest_artifact(row.workload_key)
        storage.promote(AliasQuery(row.workload_key, name="production"), library.digest, PromotionOrder(key.id))
        kernel = str(library.dispatch["kernels"][0]["id"])
        for name in ("waits", "waits too"):
            submitted(storage, name=name, webhook={"url": "https://example.org/hook"})
        names = {
            "secret": secret,
            "job_id": done.id,
            "key": row.workload_key,
            "kernel_id": kernel,
            "digest": library.digest,
            "device_id": "local-0",
            "name": "latency_by_shape",
        }
        return file, names, get_paths(storage, names)


@pytest.fixture
def database(filled: Filled, tmp_path: Path) -> Path:
    return Path(shutil.copy(filled[0], tmp_path / "tuning.db"))


def spoil(database: Path, table: str, column: str, text: str | bytes) -> int:
    """Put the text into every row; how many there were."""
    with closing(sqlite3.connect(database)) as connection, connection:
        value = "CAST(? AS TEXT)"
        return connection.execute(f"UPDATE {table} SET {column} = {value}", (text,)).rowcount


def get_paths(storage: Storage, names: dict[str, str]) -> list[str]:
    """Of every route that answers GET, of the API and of the dashboard, what is there."""
    app = create_app(storage)
    known = {path for path, methods in app.openapi()["paths"].items() if "get" in methods}
    others = {str(each.path) for each in iter_route_contexts(list(app.routes)) if "GET" in (each.methods or ())}
    templates = (known | others) - UNANSWERED - OF_NO_ROWS
    asked = {path.replace(":path}", "}").format(**names) for path in templates}
    job = names["job_id"]
    queries = ("jobs/new?from={0}", "compare?a={0}&b={0}", "v1/compare/figures/latency_by_shape?a={0}&b={0}", "?q=wait")
    return sorted({*asked, *(f"/{query.format(job)}" for query in queries)})


def assert_all_answer(storage: Storage, names: dict[str, str], paths: list[str]) -> None:
    app = create_app(storage)
    with TestClient(app, raise_server_exceptions=False) as api:
        api.headers["Authorization"] = f"Bearer {names['secret']}"
        statuses = {path: api.get(path).status_code for path in paths}
    assert len(statuses) > 45
    assert {path: status for path, status in statuses.items() if status >= 500} == {}
    assert statuses["/healthz"] == 200
    if storage.find_key(names["secret"]).scopes:  # type: ignore[union-attr]
        lists = ("/", "/v1/jobs", "/workloads", "/v1/workloads", "/devices", "/v1/devices", "/v1/audit", "/v1/records")
        assert {path: statuses[path] for path in lists} == dict.fromkeys(lists, 200)


def assert_queue_goes_on(storage: Storage) -> None:
    """Every job that waits is leased, or fails with a reason; a new one is searched to its end."""
    new = submitted(storage, name="new")
    ended = []
    for _ in range(8):
        if (held := storage.lease_job("w1", 60.0)) is not None:
            ended.append(storage.finish_job(held, JobState.COMPLETED).id)
    assert new.id in ended
    for job in storage.list_jobs().items:
        assert job.state is JobState.COMPLETED or (job.state is JobState.FAILED and "cannot be read" in job.error)


def check(filled: Filled, database: Path, columns: Sequence[tuple[str, str]], text: str | bytes) -> None:
    assert all(spoil(database, *column, text) > 0 for column in columns)
    with closing(open_storage(f"sqlite:///{database}")) as storage:
        assert_all_answer(storage, *filled[1:])
        assert_queue_goes_on(storage)


@pytest.mark.parametrize("number", range(SETS))
def test_columns_that_are_no_json_harm_their_own_rows_alone(filled: Filled, database: Path, number: int) -> None:
    check(filled, database, COLUMNS[number::SETS], CUT)


@pytest.mark.soak
@pytest.mark.parametrize("column", COLUMNS, ids=".".join)
def test_a_column_that_is_no_json_harms_its_own_rows_alone(
    filled: Filled, database: Path, column: tuple[str, str]
) -> None:
    check(filled, database, [column], CUT)


@pytest.mark.soak
@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_a_column_of_another_form_harms_its_own_rows_alone(
    filled: Filled, database: Path, table: str, column: str, text: str | bytes
) -> None:
    check(filled, database, [(table, column)], text)
