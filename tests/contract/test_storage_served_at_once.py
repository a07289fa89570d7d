"""What every Storage promises about libraries and their names when several threads work at once. Runs on each
database."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.contract.samples import leased
from tests.contract.served_samples import new_library, won
from tests.contract.test_storage_at_once import at_once, connections
from tuner.storage import AliasQuery, LibraryQuery, PromotionOrder

THREADS = 4


def test_of_several_that_beat_a_library_at_once_exactly_one_replaces_it(database_url: str) -> None:
    with connections(database_url, THREADS) as storages:
        old = new_library(storages[0])
        held = [leased(storages[0]) for _ in range(THREADS)]
        calls = [
            partial(
                storage.save_library,
                lease,
                lease.tasks[0].id,
                {"library.so": b"so"},
                {"digest": f"d{number}"},
                {},
                comparison=won(old),
            )
            for number, (storage, lease) in enumerate(zip(storages, held, strict=True))
        ]

        at_once(calls)

        rows = storages[0].list_libraries(LibraryQuery(old.key)).items
        verdicts = [row.comparison["verdict"] for row in rows if row.comparison is not None]
        assert sorted(verdicts) == ["kept"] * (THREADS - 1) + ["replaces"]
        assert [row.digest for row in rows if row.superseded_by] == [old.digest]


def test_promotions_at_once_leave_a_history_without_gaps(database_url: str) -> None:
    with connections(database_url, THREADS) as storages:
        made = [new_library(storages[0]) for _ in range(THREADS)]
        query = AliasQuery(made[0].key, "production")
        calls = [
            partial(storage.promote, query, saved.digest, PromotionOrder(f"n{number}"))
            for number, (storage, saved) in enumerate(zip(storages, made, strict=True))
        ]

        at_once(calls)

        entries = storages[0].list_promotions(query).items[::-1]
        (alias,) = storages[0].list_aliases(query)
        assert [entry.previous for entry in entries] == [None, *(entry.digest for entry in entries[:-1])]
        assert sorted(entry.digest or "" for entry in entries) == sorted(saved.digest for saved in made)
        assert alias.library.digest == entries[-1].digest


def test_a_rule_and_a_hand_that_promote_at_once_are_both_in_the_history(database_url: str) -> None:
    with connections(database_url, 2) as storages:
        first = new_library(storages[0])
        query = AliasQuery(first.key, "production")
        storages[0].promote(query, first.digest, PromotionOrder("ada", at_least_percent=1.0))
        other = new_library(storages[0])
        held = leased(storages[0])
        save = partial(storages[0].save_library, held, held.tasks[0].id, {"library.so": b"so"}, {"digest": "n"}, {})

        by_hand = partial(storages[1].promote, query, other.digest, PromotionOrder("bob", at_least_percent=1.0))
        calls: list[Callable[[], object]] = [partial(save, comparison=won(first)), by_hand]

        at_once(calls)

        entries = storages[0].list_promotions(query).items[::-1]
        assert [entry.previous for entry in entries] == [None, *(entry.digest for entry in entries[:-1])]
        # Whoever came second found what the first had left: the rule compares with nothing but what it names.
        assert [entry.by for entry in entries] in (["ada", "rule", "bob"], ["ada", "bob"])
