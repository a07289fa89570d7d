"""What every Storage promises about libraries, workloads, devices, keys and its own state. Runs on each database."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.contract.samples import best_at, job_spec, leased, many_tasks, results, states
from tuner.errors import InvalidInput
from tuner.program.target import Target
from tuner.storage import Artifact, Conflict, JobState, Lease, NewEvent, NotFound
from tuner.storage.sql import Storage
from tuner.storage.trials import TrialQuery

FILES = {"library.so": os.urandom(70_000) + b"\0", "dispatch.json": b"{}", "manifest.json": b"{}"}
TARGET = Target.from_json({"kind": "llvm", "mcpu": "znver4", "num-cores": 4})


def save(storage: Storage, lease: Lease, digest: str, task: int = 0) -> Artifact:
    manifest = {"format": 1, "digest": digest}
    return storage.save_library(lease, lease.tasks[task].id, FILES, manifest, {"format": 1, "kernels": []})


# -- libraries --------------------------------------------------------------------------------------------------------
def test_a_library_comes_back_byte_for_byte(storage: Storage) -> None:
    lease = leased(storage)
    task = lease.tasks[0]
    manifest = {"format": 1, "digest": "d1", "threads": 1}
    dispatch = {"format": 1, "tree": {"kernel": 0}}

    saved = storage.save_library(lease, task.id, FILES, manifest, dispatch, [NewEvent("progress", {"step": "built"})])

    assert saved == storage.latest_artifact(task.workload_key)
    assert (saved.digest, saved.manifest, saved.dispatch) == ("d1", manifest, dispatch)
    assert (saved.workload_key, saved.target_fingerprint) == (task.workload_key, task.target_fingerprint)
    assert (saved.threads, saved.job_id) == (1, lease.job.id)
    assert saved.created_at >= lease.job.created_at
    assert storage.artifact_files("d1") == FILES
    assert storage.search_tasks(lease.job.id)[0].done
    tail = storage.list_events(lease.job.id, after=2)
    assert [(event.seq, event.kind) for event in tail] == [(3, "progress"), (4, "library")]
    assert tail[1].data == {"digest": "d1", "search_task_id": task.id}


def test_a_library_sent_twice_is_stored_once(storage: Storage) -> None:
    lease = leased(storage)

    assert save(storage, lease, "d1") == save(storage, lease, "d1")

    assert len(storage.list_events(lease.job.id)) == 3
    assert storage.artifact_files("d1") == FILES


def test_the_newest_library_that_fits_is_found(storage: Storage) -> None:
    first = leased(storage)
    save(storage, first, "d1")
    second = leased(storage)
    save(storage, second, "d2")
    elsewhere = leased(storage, job_spec(target=TARGET.to_json()))
    save(storage, elsewhere, "d3")
    key = first.tasks[0].workload_key
    here = first.tasks[0].target_fingerprint

    assert storage.latest_artifact(key).digest == "d3"
    assert storage.latest_artifact(key, here).digest == "d2"
    assert storage.latest_artifact(key, TARGET.fingerprint).digest == "d3"
    assert storage.latest_artifact(key, job_id=first.job.id).digest == "d1"
    assert storage.latest_artifact(key, here, digest="d1").job_id == first.job.id


def test_a_library_that_is_not_there_is_not_found(storage: Storage) -> None:
    lease = leased(storage, many_tasks())
    save(storage, lease, "d1")
    key, other = lease.tasks[0].workload_key, lease.tasks[1].workload_key

    for ask in (
        lambda: storage.latest_artifact(other),
        lambda: storage.latest_artifact(key, TARGET.fingerprint),
        lambda: storage.latest_artifact(key, job_id="job-none"),
        lambda: storage.latest_artifact(key, digest="d2"),
        lambda: storage.artifact_files("d2"),
    ):
        with pytest.raises(NotFound, match="no library"):
            ask()


def test_two_jobs_may_build_the_same_library(storage: Storage) -> None:
    first, second = leased(storage), leased(storage)
    save(storage, first, "d1")
    save(storage, second, "d1")

    key = first.tasks[0].workload_key
    assert storage.latest_artifact(key, job_id=first.job.id).job_id == first.job.id
    assert storage.latest_artifact(key, job_id=second.job.id).job_id == second.job.id
    assert storage.artifact_files("d1") == FILES


def test_a_library_without_digest_or_files_is_refused_whole(storage: Storage) -> None:
    lease = leased(storage)

    with pytest.raises(InvalidInput, match=r"manifest\.digest"):
        storage.save_library(lease, lease.tasks[0].id, FILES, {}, {})
    with pytest.raises(InvalidInput, match="files"):
        storage.save_library(lease, lease.tasks[0].id, {}, {"digest": "d1"}, {})

    assert not storage.search_tasks(lease.job.id)[0].done
    assert states(storage, lease.job.id) == ["WAITING", "RUNNING"]


# -- workloads --------------------------------------------------------------------------------------------------------
def test_a_workload_tells_how_much_is_known_about_it(storage: Storage) -> None:
    lease = leased(storage, many_tasks())
    storage.append_results(lease, lease.tasks[0].id, results(3))
    storage.append_results(lease, lease.tasks[2].id, results(2))
    storage.create_job(job_spec(target=TARGET.to_json()))
    key = lease.tasks[0].workload_key

    row = storage.get_workload(key)

    workload = lease.tasks[0].task.workload
    assert (row.workload, row.label) == (workload.canonical, str(workload))
    assert (row.key, row.jobs, row.records) == (key, 2, 5)
    assert row.targets == tuple(sorted([lease.tasks[0].target_fingerprint, TARGET.fingerprint]))
    other = storage.get_workload(lease.tasks[1].workload_key)
    assert (other.jobs, other.records, other.targets) == (1, 0, (lease.tasks[1].target_fingerprint,))
    assert storage.list_workloads().items == (other, row)
    with pytest.raises(NotFound, match="wl-0"):
        storage.get_workload("wl-0")


def test_pages_of_workloads_lose_none(storage: Storage) -> None:
    keys = [storage.search_tasks(storage.create_job(job_spec(k=k))[0].id)[0].workload_key for k in range(1, 6)]

    seen, cursor = [], None
    while True:
        page = storage.list_workloads(cursor, limit=2)
        seen += [row.key for row in page.items]
        if (cursor := page.cursor) is None:
            break

    assert seen == keys[::-1]


def test_the_latest_task_is_one_with_a_library_if_there_is_any(storage: Storage) -> None:
    built = leased(storage)
    key, target = built.tasks[0].workload_key, built.tasks[0].target_fingerprint
    newer = leased(storage)

    assert storage.latest_task(key) == newer.tasks[0]
    save(storage, built, "d1")
    assert storage.latest_task(key) == replace(built.tasks[0], done=True)
    assert storage.latest_task(key, target).job_id == built.job.id
    with pytest.raises(NotFound, match=TARGET.fingerprint):
        storage.latest_task(key, TARGET.fingerprint)
    with pytest.raises(NotFound, match="wl-0"):
        storage.latest_task("wl-0")


# -- devices and keys -------------------------------------------------------------------------------------------------
def test_a_device_registers_and_renews(storage: Storage) -> None:
    other = Target.from_json({"kind": "llvm", "mcpu": "haswell", "num-cores": 1})

    first = storage.register_device("dev-1", "local", TARGET, {"host": "a"})
    storage.register_device("dev-0", "rack", TARGET, {})
    again = storage.register_device("dev-1", "rack", other, {"host": "b"})

    assert (first.id, first.key, first.target, first.description) == ("dev-1", "local", TARGET, {"host": "a"})
    assert (again.key, again.target, again.description) == ("rack", other, {"host": "b"})
    assert again.registered_at == first.registered_at
    assert again.seen_at >= first.seen_at
    assert again.state == first.state == "ready"
    assert [device.id for device in storage.list_devices()] == ["dev-0", "dev-1"]


def test_a_secret_finds_its_key_until_it_is_revoked(storage: Storage) -> None:
    key, secret = storage.create_key("laptop")
    other, _ = storage.create_key("laptop")

    assert secret.startswith("sw_")
    assert storage.find_key(secret) == key
    assert key.revoked_at is None
    assert storage.list_keys() == (key, other)
    for wrong in ("", secret[:-1], secret + "x", "ä\udcff"):
        assert storage.find_key(wrong) is None

    revoked = storage.revoke_key(key.id)

    assert revoked.revoked_at is not None
    assert storage.revoke_key(key.id) == revoked
    assert storage.find_key(secret) is None
    assert storage.list_keys() == (revoked, other)
    with pytest.raises(NotFound, match="key-none"):
        storage.revoke_key("key-none")


def test_a_given_secret_is_taken_once(storage: Storage) -> None:
    key, secret = storage.create_key("up", "sw_mine")

    assert secret == "sw_mine"
    assert storage.find_key("sw_mine") == key
    with pytest.raises(Conflict, match="secret"):
        storage.create_key("up", "sw_mine")


# -- whatever is asked ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["\0", "job-\0", "\udcff", "'; --", "%s", "ä" * 5000])
def test_names_that_nothing_can_have_are_not_found(storage: Storage, name: str) -> None:
    for ask in (
        lambda: storage.get_job(name),
        lambda: storage.list_events(name),
        lambda: storage.get_workload(name),
        lambda: storage.latest_task(name),
        lambda: storage.latest_task("wl-0", name),
        lambda: storage.latest_artifact(name, name, name, name),
        lambda: storage.artifact_files(name),
        lambda: storage.revoke_key(name),
    ):
        with pytest.raises(NotFound):
            ask()
    assert best_at(storage, name, name, name, 1, name) is None
    assert storage.records_of_target(name, 1, name) == ()
    assert storage.lease_job(name, 1.0, [name]) is None


@pytest.mark.parametrize("text", ["\0", "wl\0", "\udcff", "'; --", "%s"])
def test_texts_that_nothing_can_hold_are_found_nowhere(storage: Storage, text: str) -> None:
    [task] = leased(storage).tasks
    for words in (text, f"tag:{text}", f"owner:{text}", f"name:{text}"):
        assert storage.list_jobs(text=words).items == ()
    assert storage.list_workloads(text=text).items == ()
    for query in (TrialQuery(kernel=text), TrialQuery(error=text), TrialQuery(instance=text)):
        assert storage.find_trials(task.id, query).items == ()


@pytest.mark.parametrize("number", [2**63, 10**30, -(10**30)])
def test_numbers_that_no_row_can_have_do_no_harm(storage: Storage, number: int) -> None:
    lease = leased(storage)
    storage.append_results(lease, lease.tasks[0].id, results(1))

    assert len(storage.list_events(lease.job.id, after=number)) == (0 if number > 0 else 2)
    assert len(storage.list_trials(lease.job.id, after=number)) == (0 if number > 0 else 1)
    assert storage.list_trials(lease.job.id, search_task_id=number) == ()
    assert len(storage.list_trials(lease.job.id, limit=abs(number))) == 1


# -- the whole --------------------------------------------------------------------------------------------------------
def test_counts_are_those_of_what_is_stored(storage: Storage) -> None:
    pulse = storage.pulse()
    assert pulse.jobs == dict.fromkeys(map(str, JobState), 0)
    assert (pulse.records, pulse.trials, pulse.events, pulse.devices) == (0, 0, 0, ())
    lease = leased(storage)
    storage.append_results(lease, lease.tasks[0].id, results(3))
    storage.create_job(job_spec())
    storage.register_device("dev-1", "local", TARGET, {})

    pulse = storage.pulse()

    assert pulse.jobs == dict.fromkeys(map(str, JobState), 0) | {"RUNNING": 1, "WAITING": 1}
    assert (pulse.records, pulse.trials, pulse.events, len(pulse.devices)) == (3, 3, 3, 1)


def test_a_migrated_database_passes_the_check(storage: Storage) -> None:
    storage.check()
    storage.close()
    # Connections come back when they are needed.
    storage.check()
