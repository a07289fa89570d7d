"""What every Storage promises about the state of the caches that searches time calls in: nothing is ever mixed. Runs on
each database."""

from __future__ import annotations

import pytest

from tests.contract.samples import job_spec, kernel, leased, results
from tests.contract.served_samples import Saved, new_library, won
from tuner.program.job.cache import Cache
from tuner.records import Phase
from tuner.storage import Action, AliasQuery, JobState, LibraryQuery, LookupScope, NotFound, PromotionOrder
from tuner.storage.sql import Storage

SECONDS = {Cache.WARM: 1.0, Cache.COLD: 3.0, Cache.STREAMED: 2.0}


def stored_in_each(storage: Storage) -> LookupScope:
    """Kernel 0 takes other times in each state, by a job of its own; where."""
    for cache, seconds in SECONDS.items():
        lease = leased(storage, job_spec(cache=cache.value))
        row = lease.tasks[0]
        storage.append_results(lease, row.id, results(1, latency_s=seconds, phase=Phase.FINAL))
        storage.finish_job(lease, JobState.COMPLETED)
    return LookupScope(row.workload_key, row.target_fingerprint)


def scope(like: LookupScope, cache: Cache) -> LookupScope:
    return LookupScope(like.workload_key, like.target_fingerprint, 1, None, cache)


def test_latencies_of_one_state_of_the_caches_say_nothing_of_another(storage: Storage) -> None:
    here = stored_in_each(storage)

    asked = [(scope(here, cache), "m=80") for cache in SECONDS]
    known = storage.look_up(asked)

    assert [each.best and (each.best.latency_s, each.best.readings) for each in known] == [
        (seconds, 1) for seconds in SECONDS.values()
    ]
    assert [each and each.latency_s for each in storage.latencies([(*one, kernel(0).id) for one in asked])] == [
        *SECONDS.values()
    ]
    assert storage.measured_instances([one for one, _ in asked]) == (("m=80",),) * 3
    tasks = storage.newest_tasks([one for one, _ in asked])
    assert [task and storage.tasks([task.number])[task.number].cache for task in tasks] == list(SECONDS)


def test_a_search_starts_from_records_of_its_own_state_alone(storage: Storage) -> None:
    here = stored_in_each(storage)
    target = here.target_fingerprint or ""

    for cache, seconds in SECONDS.items():
        (record,) = storage.prior_records(here.workload_key, target, 1, cache)
        assert record.result.latency_s == seconds
        assert record.protocol == ("v3" if cache is Cache.WARM else f"v3-{cache.value}")
        ((_, other),) = storage.records_of_target(target, 1, kernel(0).rule, cache)
        assert other.seq == record.seq
    assert storage.stale_knowledge() == (), "all of them are measured as this version does"


def test_records_keep_their_state_in_an_export(storage: Storage) -> None:
    stored_in_each(storage)
    told = {shared.record.protocol: shared.record.result.latency_s for shared in storage.export_records()}
    assert told == {"v3": 1.0, "v3-cold": 3.0, "v3-streamed": 2.0}


def libraries(storage: Storage) -> tuple[Saved, Saved]:
    warm = new_library(storage, measured_s={1: 1e-3, 128: 1e-3})
    return warm, new_library(storage, measured_s={1: 2e-3, 128: 2e-3}, cache="streamed")


def test_libraries_compete_within_one_state_of_the_caches(storage: Storage) -> None:
    warm, streamed = libraries(storage)

    assert storage.serve(LibraryQuery(warm.key)).digest == warm.digest, "warm, unless it is said"
    found = storage.served(LibraryQuery(warm.key, cache=Cache.STREAMED))
    assert (found.library.digest, found.library.cache, found.alternatives) == (streamed.digest, Cache.STREAMED, ())
    assert found.expected_s == pytest.approx(2e-3), "by its own readings"
    with pytest.raises(NotFound, match="caches cold: there are libraries for caches streamed, warm"):
        storage.serve(LibraryQuery(warm.key, cache=Cache.COLD))
    ranges = warm.ranges
    kept = storage.incumbent(warm.key, warm.target, 1, ranges, Cache.STREAMED)
    assert kept is not None
    assert (kept.digest, kept.cache) == (streamed.digest, Cache.STREAMED)
    assert storage.incumbent(warm.key, warm.target, 1, ranges, Cache.COLD) is None
    listed = storage.list_libraries(LibraryQuery(warm.key, cache=Cache.WARM)).items
    assert [library.digest for library in listed] == [warm.digest]


def test_the_only_state_that_there_is_needs_no_name(storage: Storage) -> None:
    streamed = new_library(storage, cache="streamed")

    assert storage.serve(LibraryQuery(streamed.key)).digest == streamed.digest
    with pytest.raises(NotFound, match="caches warm: there are libraries for caches streamed"):
        storage.serve(LibraryQuery(streamed.key, cache=Cache.WARM))


def test_a_name_stands_for_a_library_of_each_state(storage: Storage) -> None:
    warm, streamed = libraries(storage)
    ada = PromotionOrder("ada", at_least_percent=5.0)
    for library in (warm, streamed):
        storage.promote(AliasQuery(warm.key, "production"), library.digest, ada)

    query = AliasQuery(warm.key, "production")
    assert [alias.library.digest for alias in storage.list_aliases(query)] == [streamed.digest, warm.digest]
    named = LibraryQuery(warm.key, alias="production", cache=Cache.STREAMED)
    assert storage.serve(named).digest == streamed.digest

    better = new_library(storage, comparison=won(streamed), cache="streamed")

    assert storage.serve(named).digest == better.digest
    assert storage.serve(LibraryQuery(warm.key, alias="production")).digest == warm.digest
    newest = storage.list_promotions(query).items[0]
    assert (newest.action, newest.cache, newest.previous) == (Action.BY_RULE, Cache.STREAMED, streamed.digest)
