"""What holds for every route: keys, problem documents, health, and what the service keeps out of its process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from tests.serving import JOB, assert_problem, register_local, without_table
from tuner.program.target import native
from tuner.storage.sql import Storage, open_storage, upgrade

CLOSED = ["/v1/jobs", "/v1/workloads", "/v1/devices", "/metrics", "/v1/metrics", "/v1/openapi.json", "/", "/nowhere"]


@pytest.fixture
def stranger(storage: Storage) -> Iterator[TestClient]:
    with TestClient(create_app(storage), raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize("path", CLOSED)
def test_nothing_is_told_without_a_key(stranger: TestClient, path: str) -> None:
    answer = stranger.get(path)
    assert_problem(answer, 401)
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize("header", ["Bearer wrong", "Basic abc", "Bearer", "Bearer ", "Bearer \xff\xfe"])
def test_a_wrong_key_is_refused(stranger: TestClient, header: str) -> None:
    answer = stranger.post("/v1/jobs", json=JOB, headers={"Authorization": header.encode("latin-1")})
    assert_problem(answer, 401)
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/v1/healthz", "/v1/readyz"])
def test_health_is_open(stranger: TestClient, path: str) -> None:
    assert stranger.get(path).status_code == 200


def test_ready_needs_the_database_and_alive_does_not(stranger: TestClient, database: Path) -> None:
    with without_table(database, "alembic_version"):
        answer = stranger.get("/readyz")
        assert_problem(answer, 503)
        assert str(database) not in answer.text
        assert stranger.get("/healthz").status_code == 200
    assert stranger.get("/readyz").status_code == 200


def test_ready_waits_for_the_parts_that_the_service_was_started_with(storage: Storage, tmp_path: Path) -> None:
    settings = Settings(ready_file=str(tmp_path / "ready"))
    client = TestClient(create_app(storage, settings=settings), raise_server_exceptions=False)
    for path in ("/readyz", "/v1/readyz"):
        answer = client.get(path)
        assert_problem(answer, 503)
        assert int(answer.headers["Retry-After"]) > 0
    assert client.get("/healthz").status_code == 200
    (tmp_path / "ready").touch()
    assert client.get("/readyz").status_code == 200


def test_the_figures_are_prometheus_text(api: TestClient) -> None:
    api.post("/v1/jobs", json=JOB)
    answer = api.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'shapewright_jobs{state="WAITING"} 1.0' in answer.text.splitlines()
    assert "shapewright_open_event_streams 0.0" in answer.text.splitlines()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", "body"),
        (b'{"note": }', "body"),
        (b"\xff", "body"),
        (b'{"note": ' + b"9" * 5000 + b"}", "body"),
        (b"[" * 100_000, "body"),
        (b'{"\\ud800": 1}', "request"),
        (b'{"note": "\\ud800"}', "note"),
        (b'{"note": ' + b"[" * 500 + b"]" * 500 + b"}", "note"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_with_what_is_wrong(api: TestClient, body: bytes, field: str) -> None:
    path = f"/v1/jobs/{api.post('/v1/jobs', json=JOB).json()['id']}"
    answer = api.patch(path, content=body, headers={"Content-Type": "application/json"})
    assert_problem(answer, 422)
    assert answer.json()["field"] == field
    assert answer.json()["problem"]
    assert answer.json()["remedy"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs?cursor=&state=&q=",
        "/v1/workloads?cursor=&q=",
        "/v1/workloads/{key}/best?shape=T=5&target=&threads=&cache=&job=",
        "/v1/workloads/{key}/libraries?cursor=&target=&threads=&cache=",
        "/v1/workloads/{key}/aliases?target=&threads=&cache=",
        "/v1/workloads/{key}/history?alias=&cursor=&target=&threads=&cache=",
        "/v1/jobs/{job}/trials/table?cursor=&error=&kernel=&instance=&phase=",
        "/v1/jobs/{job}/logs?since=",
        "/v1/devices/activity?key=",
        "/v1/audit?cursor=&subject=&actor=&action=",
    ],
)
def test_a_blank_parameter_is_as_good_as_none(api: TestClient, path: str) -> None:
    job = api.post("/v1/jobs", json=JOB).json()
    named = path.format(job=job["id"], key=job["workload_keys"][0])
    bare = "&".join(each for each in named.partition("?")[2].split("&") if not each.endswith("="))
    blank, without = api.get(named), api.get(f"{named.partition('?')[0]}?{bare}")
    assert (blank.status_code, without.status_code) == (200, 200), blank.text
    if "activity" not in path:
        assert blank.json() == without.json()


def test_a_route_that_is_not_there_is_a_problem(api: TestClient) -> None:
    for path in ("/nothing", "/v1/nothing", "/v1/jobs/"):
        assert_problem(api.get(path), 404)


def test_a_method_that_is_not_there_is_a_problem(api: TestClient) -> None:
    answer = api.delete("/v1/devices")
    assert_problem(answer, 405)
    assert answer.headers["Allow"] == "GET"


def test_a_defect_is_a_problem_that_tells_nothing(storage: Storage, key: str) -> None:
    app = create_app(storage)

    @app.get("/v1/broken")
    def broken() -> None:
        raise ZeroDivisionError("a secret")

    client = TestClient(app, headers={"Authorization": f"Bearer {key}"}, raise_server_exceptions=False)
    answer = client.get("/v1/broken")
    assert_problem(answer, 500)
    assert "secret" not in answer.text


def test_devices_are_listed(api: TestClient) -> None:
    [device] = api.get("/v1/devices").json()["items"]
    assert (device["id"], device["key"]) == ("local-0", "local")
    assert device["target_fingerprint"].startswith("llvm-")


@pytest.mark.parametrize("name", ["rack1/board 7", "/lead", "host:key", "</script>"])
def test_a_device_may_have_any_id(api: TestClient, storage: Storage, name: str) -> None:
    storage.register_device(name, "odd", native(), {})
    path = f"/v1/devices/{quote(name, safe='')}"
    assert api.get(path).json()["device"]["id"] == name
    assert api.post(f"{path}/quarantine").json()["state"] == "quarantined"
    assert api.post(f"{path}/release").json()["state"] == "ready"
    assert api.get(f"/devices/{quote(name, safe='')}").status_code == 200
    assert api.get("/v1/devices/activity").status_code == 200
    assert api.get("/v1/devices/figures/drift").status_code == 200


def test_a_device_is_quarantined_and_released(api: TestClient) -> None:
    answer = api.post("/v1/devices/local-0/quarantine", json={"reason": "its fan is loud"}).json()
    assert (answer["state"], answer["reason"], answer["quarantined_until"]) == ("quarantined", "its fan is loud", None)
    assert ">quarantined<" in api.get("/devices").text
    assert api.post("/v1/devices/local-0/release").json()["state"] == "ready"
    assert api.post("/v1/devices/local-0/quarantine").json()["reason"].startswith("quarantined by ")
    api.post("/v1/devices/local-0/release")
    assert_problem(api.post("/v1/devices/moon/quarantine"), 404)


def test_while_the_database_is_away_clients_are_told_to_come_back(tmp_path: Path) -> None:
    """The service starts before its database can be reached, and works once it can."""
    path = tmp_path / "later" / "tuning.db"
    storage = open_storage(f"sqlite:///{path}")
    client = TestClient(create_app(storage), raise_server_exceptions=False)
    for answer in (
        client.get("/readyz"),
        client.get("/v1/jobs", headers={"Authorization": "Bearer any"}),
        client.post("/v1/jobs", json=JOB, headers={"Authorization": "Bearer any"}),
    ):
        assert_problem(answer, 503)
        assert int(answer.headers["Retry-After"]) > 0
    path.parent.mkdir()
    upgrade(f"sqlite:///{path}")
    register_local(storage)
    headers = {"Authorization": f"Bearer {storage.create_key('tests')[1]}"}
    assert client.get("/readyz").status_code == 200
    assert client.post("/v1/jobs", json=JOB, headers=headers).status_code == 201
    storage.close()


def test_a_database_that_goes_away_comes_back(api: TestClient, database: Path) -> None:
    made = api.post("/v1/jobs", json=JOB).json()
    with without_table(database, "jobs"):
        answer = api.get(f"/v1/jobs/{made['id']}")
        assert_problem(answer, 503)
        assert int(answer.headers["Retry-After"]) > 0
    assert api.get(f"/v1/jobs/{made['id']}").json() == made


USES_THE_SERVICE = """
import sys
import service.run
from fastapi.testclient import TestClient
from service.app import create_app
from service.settings import Settings
from tests.serving import JOB, lease, store_library
from tuner.storage.sql import open_storage

storage = open_storage(sys.argv[1])
client = TestClient(create_app(storage), headers={"Authorization": f"Bearer {sys.argv[2]}"})
workload = "/v1/workloads/" + client.post("/v1/jobs", json=JOB).json()["workload_keys"][0]
client.get(f"{workload}/best?shape=T=5").raise_for_status()
store_library(storage, lease(storage))
for what in ("best?shape=T=5", "dispatcher", "library"):
    client.get(f"{workload}/{what}").raise_for_status()
print(sorted({name.partition(".")[0] for name in sys.modules} & {"tvm", "tvm_ffi", "ray", "xgboost", "torch"}))
"""


def test_neither_compiler_nor_cluster_is_ever_imported(database: Path, key: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", USES_THE_SERVICE, f"sqlite:///{database}", key]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
