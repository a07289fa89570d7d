"""Records that may not be compared with today's: of another protocol, or not measured here."""

from __future__ import annotations

from sqlalchemy import update

from tests.contract.samples import leased, results
from tuner.storage.sql import Storage, open_storage
from tuner.storage.sql.schema import kernel_latencies, tuning_records


def counted(storage: Storage, place: tuple[str, str]) -> dict[str, int]:
    """How many records each question finds."""
    return {
        "task": len(storage.records_of_task(1)),
        "workload": len(storage.prior_records(*place, 1)),
        "target": len(storage.records_of_target(place[1], 1, "x86_contraction")),
    }


def test_what_was_not_measured_here_and_in_this_way_decides_nothing(database_url: str) -> None:
    storage = open_storage(database_url)
    lease = leased(storage)
    task = lease.tasks[0]
    place = (task.workload_key, task.target_fingerprint)
    storage.append_results(lease, task.id, results(2))
    assert counted(storage, place) == {"task": 2, "workload": 2, "target": 2}

    with storage._database.write() as connection:
        connection.execute(update(tuning_records).values(provenance="imported"))
    assert counted(storage, place) == {"task": 2, "workload": 2, "target": 0}
    assert {record.provenance for record in storage.prior_records(*place, 1)} == {"imported"}

    with storage._database.write() as connection:
        connection.execute(update(tuning_records).values(provenance="measured", protocol="v0"))
        connection.execute(update(kernel_latencies).values(protocol="v0"))
    assert counted(storage, place) == {"task": 2, "workload": 0, "target": 0}
    storage.close()
