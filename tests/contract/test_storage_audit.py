"""What every Storage promises about the audit trail: whatever was done is in it, and nothing that was not."""

from __future__ import annotations

import pytest

from tests.contract.samples import job_spec
from tuner.errors import InvalidInput
from tuner.program.target import Target
from tuner.storage import Conflict, NewKey, Scope
from tuner.storage.sql import Storage


def told(storage: Storage, subject: str | None = None) -> list[tuple[str, str, str]]:
    """Actor, action and subject of every entry, oldest first."""
    return [(entry.actor, entry.action, entry.subject) for entry in storage.list_audit(subject=subject).items][::-1]


def test_jobs_name_who_submitted_cancelled_and_resumed_them(storage: Storage) -> None:
    job, _ = storage.create_job(job_spec(), "ada", actor="key-a")
    storage.request_cancel(job.id, "key-b")
    storage.resume_job(job.id, "key-c")

    wanted = [("key-a", "job.create", job.id), ("key-b", "job.cancel", job.id), ("key-c", "job.resume", job.id)]
    assert told(storage) == wanted
    first = storage.list_audit().items[-1]
    assert first.detail == {"name": "qkv", "owner": "ada"}
    assert first.at.endswith("Z")


def test_what_did_not_happen_is_not_told(storage: Storage) -> None:
    job, _ = storage.create_job(job_spec(), "ada", "k1", actor="a")
    storage.create_job(job_spec(), "ada", "k1", actor="a")
    with pytest.raises(Conflict):
        storage.resume_job(job.id, "a")
    storage.request_cancel(job.id, "a")
    with pytest.raises(Conflict):
        storage.request_cancel(job.id, "a")

    assert [action for _, action, _ in told(storage)] == ["job.create", "job.cancel"]


def test_keys_name_who_made_and_revoked_them_and_hold_no_secret(storage: Storage) -> None:
    key, secret = storage.create_key("ci", made=NewKey((Scope.READ,), "ada"), actor="cli root")
    storage.revoke_key(key.id, "cli root")
    storage.revoke_key(key.id, "cli other")

    assert told(storage) == [("cli root", "key.create", key.id), ("cli root", "key.revoke", key.id)]
    made = storage.list_audit().items[-1]
    assert made.detail == {"name": "ci", "scopes": ["read"], "owner": "ada", "expires_at": None, "quota": None}
    assert secret not in str(storage.list_audit())


def test_a_login_tells_of_the_key_that_came_of_it(storage: Storage) -> None:
    redeemed = storage.redeem_login(storage.create_login("browser", 60.0))
    assert redeemed is not None
    key = redeemed[0].id
    storage.end_login(key)

    assert told(storage) == [("login", "key.create", key), (key, "key.revoke", key)]


def test_devices_are_told_of_when_they_change(storage: Storage) -> None:
    one, other = (Target.from_json({"kind": "llvm", "mcpu": f"x86-64-v{n}", "num-cores": 2}) for n in (3, 4))
    for target in (one, one, other, other):
        storage.register_device("d0", "local", target, {})

    assert told(storage) == [("worker", "device.register", "d0"), ("worker", "device.change", "d0")]


def test_pages_go_from_the_newest_to_the_oldest(storage: Storage) -> None:
    made = [storage.create_key(f"k{n}")[0].id for n in range(5)]

    seen, cursor = [], None
    while True:
        page = storage.list_audit(cursor, limit=2)
        seen += [entry.subject for entry in page.items]
        if (cursor := page.cursor) is None:
            break

    assert seen == made[::-1]
    assert told(storage, subject=made[2]) == [("", "key.create", made[2])]
    with pytest.raises(InvalidInput):
        storage.list_audit("nonsense")
