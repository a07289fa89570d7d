"""What every Storage promises about webhooks: a message for every end of a job, which one sender at a time has."""

from __future__ import annotations

import time
from functools import partial

import pytest

from tests.contract.samples import job_spec, take
from tests.contract.test_storage_at_once import at_once, connections
from tuner.storage import Delivery, JobState
from tuner.storage.access import hash_of
from tuner.storage.sql import Storage
from tuner.storage.webhooks import signing_key

HOOK = {"url": "https://ci.example/hook"}
HOLD_S = 60.0


def claim(storage: Storage) -> Delivery:
    result = storage.claim_delivery(HOLD_S)
    assert result is not None
    return result


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED])
def test_the_end_of_a_job_is_a_message(storage: Storage, state: JobState) -> None:
    key, secret = storage.create_key("ci")
    job, _ = storage.create_job(job_spec(webhook=HOOK), "ada", actor=key.id)
    lease = take(storage)
    assert storage.claim_delivery(HOLD_S) is None

    ended = storage.finish_job(lease, state, "no room" if state is JobState.FAILED else "")

    result = claim(storage)
    assert (result.job_id, result.url, result.attempts) == (job.id, HOOK["url"], 1)
    assert result.signing_key == signing_key(hash_of(secret))
    assert result.payload["type"] == f"job.{state.value.lower()}"
    assert result.payload["timestamp"] == ended.ended_at
    data = result.payload["data"]
    assert (data["id"], data["state"], data["error"]) == (job.id, state.value, ended.error)


def test_a_job_cancelled_while_it_waits_is_told_of_too(storage: Storage) -> None:
    job, _ = storage.create_job(job_spec(webhook=HOOK))
    storage.request_cancel(job.id)

    assert claim(storage).payload["type"] == "job.cancelled"


def test_a_job_without_a_webhook_tells_nobody(storage: Storage) -> None:
    storage.request_cancel(storage.create_job(job_spec())[0].id)

    assert storage.claim_delivery(HOLD_S) is None


def test_a_job_that_ends_twice_is_told_of_twice(storage: Storage) -> None:
    job, _ = storage.create_job(job_spec(webhook=HOOK))
    for _ in range(2):
        storage.request_cancel(job.id)
        storage.finish_delivery(claim(storage))
        storage.resume_job(job.id)

    assert storage.claim_delivery(HOLD_S) is None


def test_a_claimed_message_is_nobody_elses_until_it_is_due_again(storage: Storage) -> None:
    storage.request_cancel(storage.create_job(job_spec(webhook=HOOK))[0].id)

    first = storage.claim_delivery(0.001)
    time.sleep(0.01)
    second = claim(storage)

    assert first is not None
    assert (second.id, second.attempts) == (first.id, 2)
    assert storage.claim_delivery(HOLD_S) is None
    # The first sender is late: what it says no longer counts.
    storage.retry_delivery(first, "late", 0.0)
    assert storage.claim_delivery(HOLD_S) is None


def test_a_message_that_failed_is_due_again_or_given_up(storage: Storage) -> None:
    storage.request_cancel(storage.create_job(job_spec(webhook=HOOK))[0].id)

    storage.retry_delivery(claim(storage), "503", 0.0)
    again = claim(storage)
    assert again.attempts == 2
    storage.retry_delivery(again, "503", None)

    assert storage.claim_delivery(0.0) is None


def test_of_many_senders_at_once_one_gets_a_message(database_url: str) -> None:
    with connections(database_url, 4) as storages:
        for _ in range(6):
            storages[0].request_cancel(storages[0].create_job(job_spec(webhook=HOOK))[0].id)

            claimed = at_once([partial(storage.claim_delivery, HOLD_S) for storage in storages])

            assert sum(each is not None for each in claimed) == 1


def test_keys_and_hosts_with_enough_under_way_are_passed_over(storage: Storage) -> None:
    keys = [storage.create_key(name)[0] for name in ("a", "b")]
    urls = ["https://one.example/x", "https://ONE.example?y", "https://one.example.org/z", "https://two.example:81/"]
    for key in keys:
        for url in urls:
            storage.request_cancel(storage.create_job(job_spec(webhook={"url": url}), actor=key.id)[0].id)

    def claimed(*hosts: str) -> list[tuple[str, str]]:
        result = iter(lambda: storage.claim_delivery(HOLD_S, [keys[0].id], hosts), None)
        return [(each.api_key_id, each.host) for each in result]

    assert claimed("https://one.example", "https://two.example:81") == [(keys[1].id, "https://one.example.org")]
    assert claimed() == [(keys[1].id, host) for host in ["https://one.example"] * 2 + ["https://two.example:81"]]
