"""Messages on their way: to a real receiver on this machine, which sometimes does not want them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from service.app import DEFAULTS
from service.settings import Settings
from service.webhooks.sender import RETRIES_S, Sender
from tests.contract.samples import job_spec
from tests.serving import serving
from tuner.storage import Delivery
from tuner.storage.sql import Storage
from tuner.storage.webhooks import webhook_secret

LIMIT_S = 20.0


class Receiver(ThreadingHTTPServer):
    """Answers each message with the next of ``statuses``, the last one again and again."""

    def __init__(self, *statuses: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.statuses = list(statuses)
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.arrived = threading.Event()

    @property
    def url(self) -> str:
        return f"http://localhost:{self.server_port}/hook?x=1"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
        statuses = self.server.statuses
        status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
        self.send_response(status)
        self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.end_headers()
        self.server.arrived.set()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def receiver(request: pytest.FixtureRequest) -> Iterator[Receiver]:
    result = Receiver(*getattr(request, "param", (204,)))
    thread = threading.Thread(target=result.serve_forever, daemon=True)
    thread.start()
    yield result
    result.shutdown()
    thread.join(LIMIT_S)
    result.server_close()


def ended_job(storage: Storage, url: str) -> tuple[str, str]:
    """A job that has ended and wants this told; its id and the secret of its key."""
    key, secret = storage.create_key("ci")
    job, _ = storage.create_job(job_spec(webhook={"url": url}), key.owner, actor=key.id)
    storage.request_cancel(job.id)
    return job.id, secret


def test_a_message_is_signed_and_sent_once(storage: Storage, receiver: Receiver) -> None:
    job_id, secret = ended_job(storage, receiver.url)
    sender = Sender(storage, private=True)

    assert asyncio.run(sender.send_next())
    assert not asyncio.run(sender.send_next())

    [(headers, body)] = receiver.got
    assert headers["host"] == f"localhost:{receiver.server_port}"
    assert headers["content-type"] == "application/json"
    message = json.loads(body)
    assert (message["type"], message["data"]["id"]) == ("job.cancelled", job_id)
    # As a receiver checks it, with what `keys create` printed.
    key = base64.b64decode(webhook_secret(secret).removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"


@pytest.mark.parametrize("receiver", [(503, 302, 200)], indirect=True)
def test_a_message_that_is_not_accepted_is_sent_again(storage: Storage, receiver: Receiver) -> None:
    ended_job(storage, receiver.url)
    sender = Sender(storage, private=True, retries_s=(0.0, 0.0, 0.0))

    assert [asyncio.run(sender.send_next()) for _ in range(4)] == [True, True, True, False]

    ids = {headers["webhook-id"] for headers, _ in receiver.got}
    assert len(receiver.got) == 3
    assert len(ids) == 1, "it is the same message, and a redirect is not followed"


@pytest.mark.parametrize("receiver", [(500,)], indirect=True)
def test_a_message_that_nobody_wants_is_given_up(storage: Storage, receiver: Receiver) -> None:
    ended_job(storage, receiver.url)
    sender = Sender(storage, private=True, retries_s=(0.0,))

    assert [asyncio.run(sender.send_next()) for _ in range(3)] == [True, True, False]
    assert len(receiver.got) == 2


def test_nothing_is_sent_inside(storage: Storage, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    ended_job(storage, receiver.url)
    told: list[str] = []

    def sent(delivery: Delivery) -> None:
        raise AssertionError("it was sent")

    def refused(delivery: Delivery, error: str, after_s: float | None) -> None:
        told.append(error)
        assert after_s == RETRIES_S[0]

    monkeypatch.setattr(storage, "finish_delivery", sent)
    monkeypatch.setattr(storage, "retry_delivery", refused)

    assert not DEFAULTS.webhook_private
    assert asyncio.run(Sender(storage).send_next())

    assert receiver.got == []
    assert "not a public address" in told[0]


def black_hole(stack: ExitStack) -> str:
    """The URL of a receiver that takes connections and says nothing."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    return f"http://127.0.0.1:{listener.getsockname()[1]}/hook"


@pytest.mark.parametrize("hosts", [1, 12], ids=["one host, many keys", "one key, many hosts"])
def test_receivers_that_never_answer_keep_no_other_waiting(storage: Storage, receiver: Receiver, hosts: int) -> None:
    """Each of them takes ten seconds."""
    with ExitStack() as stack:
        urls = [black_hole(stack) for _ in range(hosts)]
        key, _ = storage.create_key("ci")
        for number in range(30):
            actor = key.id if hosts > 1 else storage.create_key(f"ci-{number}")[0].id
            job, _ = storage.create_job(job_spec(webhook={"url": urls[number % hosts]}), key.owner, actor=actor)
            storage.request_cancel(job.id)
        ended_job(storage, receiver.url)
        with serving(storage, Settings(webhook_private=True)):
            assert receiver.arrived.wait(LIMIT_S)


def test_the_address_that_was_checked_is_the_one_connected_to(storage: Storage, receiver: Receiver) -> None:
    """A name may lead elsewhere a moment later."""
    ended_job(storage, f"http://rebound.example:{receiver.server_port}/hook")
    asked: list[str] = []

    def look_up(host: str, port: int, *, private: bool) -> str:
        asked.append(host)
        return "127.0.0.1"

    assert asyncio.run(Sender(storage, look_up=look_up).send_next())
    assert asked == ["rebound.example"]
    assert receiver.got[0][0]["host"] == f"rebound.example:{receiver.server_port}"


def test_the_service_sends_while_it_runs(storage: Storage, receiver: Receiver) -> None:
    with serving(storage, Settings(webhook_private=True)):
        job_id, _ = ended_job(storage, receiver.url)
        assert receiver.arrived.wait(LIMIT_S)
    assert json.loads(receiver.got[0][1])["data"]["id"] == job_id
