"""A client and a service of an earlier release, which does not know what the caches hold when a call is timed: it
refuses the field in bodies, takes no notice of it in URLs, and says nothing of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from shapewright.client import Client, Refused
from shapewright.snapshot.service import served_offers
from shapewright.sources.service import Service
from tests.serving import JOB, lease, store_library
from tests.shapewright.cli_bed import Bed
from tuner.errors import InvalidInput
from tuner.program.job.build import make_workload
from tuner.program.job.jobspec import parse_job
from tuner.program.job.task import SearchTask
from tuner.program.target import native

PROBLEM = {"title": "Invalid", "field": "cache", "problem": "'warm' is not valid", "remedy": "not permitted",
           "detail": "cache: 'warm' is not valid (not permitted)"}  # fmt: skip


def _without_caches(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_caches(each) for name, each in value.items() if name != "cache"}
    return [_without_caches(each) for each in value] if isinstance(value, list) else value


class Earlier(httpx.BaseTransport):
    """Between a client and a service of today."""

    def __init__(self, today: httpx.BaseTransport) -> None:
        self._today = today

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        body = request.read()
        if request.url.path == "/v1/lookup":
            # Queries in bulk are refused one by one, without the others.
            queries = json.loads(body)["queries"]
            body = json.dumps({"queries": [{"unknown": 1} if "cache" in each else each for each in queries]}).encode()
        elif b'"cache"' in body:
            return httpx.Response(422, json=PROBLEM)
        url = request.url.copy_remove_param("cache")
        headers = {name: each for name, each in request.headers.items() if name != "content-length"}
        answer = self._today.handle_request(httpx.Request(request.method, url, headers=headers, content=body))
        content = answer.read()
        if "json" in answer.headers["content-type"]:
            content = json.dumps(_without_caches(json.loads(content))).encode()
        kept = ("content-type", "content-digest", "etag")
        headers = {name: value for name, value in answer.headers.items() if name in kept}
        return httpx.Response(answer.status_code, headers=headers, content=content)


@pytest.fixture
def client(bed: Bed) -> Iterator[Client]:
    with Client(bed.url) as client:
        client._http._transport = Earlier(client._http._transport)
        yield client


@pytest.fixture
def task(bed: Bed, client: Client) -> SearchTask:
    """A task that the service has a library for."""
    client.submit({**JOB, "target": native().to_json()})
    store_library(bed.storage, lease(bed.storage))
    return parse_job(JOB).tasks[0].on(native())


def test_a_task_of_warm_caches_is_submitted_and_its_library_found(client: Client, task: SearchTask) -> None:
    assert client.submit(task)["state"] == "WAITING"
    served = client.served(task)
    assert served["cache"] == "warm"
    assert client.served(task.workload.key, cache="warm")["digest"] == served["digest"]
    assert client.best(task, {"T": 5})["digest"] == served["digest"]
    assert client.promote(task, None, "production")["library"]["digest"] == served["digest"]


@pytest.mark.parametrize("cache", ["cold", "streamed"])
def test_what_it_cannot_know_is_refused_with_what_to_do(client: Client, task: SearchTask, cache: str) -> None:
    key = task.workload.key
    client.promote(key, None, "production")
    for asked in (
        lambda: client.served(key, cache=cache),
        lambda: client.pull(key, cache=cache),
        lambda: client.best(key, "m=80", cache=cache),
        lambda: client.promote(key, None, "production", cache=cache),
        lambda: client.roll_back(key, "production", cache=cache),
    ):
        with pytest.raises(InvalidInput) as refused:
            asked()
        assert refused.value.field == "cache"
        assert "earlier release" in str(refused.value)
        assert "upgrade the service" in refused.value.remedy
    with pytest.raises(Refused, match="cache"):
        client.submit({**JOB, "cache": cache})


def test_its_libraries_are_offered_to_snapshots_and_serve_models(client: Client, task: SearchTask) -> None:
    (offer,) = served_offers(client)
    assert offer.entry.cache == "warm"
    source = Service("http://earlier", native(), client)
    assert source._served(task.workload, 1) == (task.workload.key, offer.entry.digest)
    one_shape = make_workload("dense", {"m": 80, "n": 2304, "k": 768})
    assert source._served(one_shape, 1) == (task.workload.key, offer.entry.digest)
    assert "no library" in str(source.find(make_workload("dense", {"m": 3, "n": 5, "k": 7}), 1))
