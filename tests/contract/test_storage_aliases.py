"""What every Storage promises about names of libraries. Runs on each database."""

from __future__ import annotations

import pytest

from tests.contract.served_samples import Saved, new_library, won
from tuner.errors import InvalidInput
from tuner.program.target import Target
from tuner.storage import Action, AliasQuery, Comparison, Conflict, LibraryQuery, NotFound, PromotionOrder
from tuner.storage.sql import Storage
from tuner.storage.sql.aliases import MAX_ALIASES

OTHER = Target.from_json({"kind": "llvm", "mcpu": "znver4", "num-cores": 4})
ADA = PromotionOrder("ada", "it looks good")


def named(like: Saved, name: str | None = "production", **place: object) -> AliasQuery:
    return AliasQuery(like.key, name, **place)  # type: ignore[arg-type]


def digests(storage: Storage, like: Saved) -> dict[str, str]:
    return {alias.name: alias.library.digest for alias in storage.list_aliases(named(like, None))}


def history(storage: Storage, like: Saved, name: str | None = "production") -> list[tuple[str, str | None, str | None]]:
    """(action, digest, digest before), the oldest first."""
    entries = storage.list_promotions(named(like, name), limit=100).items
    return [(entry.action.value, entry.digest, entry.previous) for entry in reversed(entries)]


# -- by hand ----------------------------------------------------------------------------------------------------------
def test_a_name_stands_for_a_library_whatever_is_served(storage: Storage) -> None:
    first = new_library(storage)
    alias = storage.promote(named(first), first.digest, ADA)
    second = new_library(storage, comparison=won(first))

    assert (alias.name, alias.library.digest, alias.promoted_by, alias.reason, alias.at_least_percent) == (
        "production",
        first.digest,
        "ada",
        "it looks good",
        None,
    )
    assert alias.library.aliases == ("production",)
    assert storage.serve(LibraryQuery(first.key)).digest == second.digest
    assert storage.serve(LibraryQuery(first.key, alias="production")).digest == first.digest
    assert storage.served(LibraryQuery(first.key, alias="production")).library.aliases == ("production",)
    with pytest.raises(NotFound, match="alias 'candidate'"):
        storage.serve(LibraryQuery(first.key, alias="candidate"))


def test_a_name_moves_on_and_its_history_tells(storage: Storage) -> None:
    first, second = new_library(storage), new_library(storage)
    storage.promote(named(first), first.digest, ADA)
    storage.promote(named(first), second.digest, PromotionOrder("bob"))
    # The same again is nothing new.
    storage.promote(named(first), second.digest, PromotionOrder("eve"))

    page = storage.list_promotions(named(first), limit=1)
    (newest,) = page.items
    (oldest,) = storage.list_promotions(named(first), page.cursor, limit=1).items

    assert (newest.name, newest.by, newest.digest, newest.previous) == (
        "production",
        "bob",
        second.digest,
        first.digest,
    )
    assert (oldest.by, oldest.reason, oldest.digest, oldest.previous) == ("ada", ADA.reason, first.digest, None)
    assert (newest.target_fingerprint, newest.threads) == (first.target, 1)
    assert oldest.at <= newest.at
    assert storage.list_aliases(named(first))[0].promoted_by == "bob"


def test_names_are_each_targets_and_each_number_of_threads_own(storage: Storage) -> None:
    one = new_library(storage)
    four = new_library(storage, threads=4)
    elsewhere = new_library(storage, target=OTHER.to_json())
    for each in (one, four, elsewhere):
        storage.promote(named(each), each.digest, ADA)

    def alias(**place: object) -> str:
        return storage.serve(LibraryQuery(one.key, alias="production", **place)).digest  # type: ignore[arg-type]

    assert alias(target_fingerprint=one.target) == one.digest
    assert alias(target_fingerprint=one.target, threads=4) == four.digest
    assert alias(target_fingerprint=OTHER.fingerprint) == elsewhere.digest
    assert len(storage.list_aliases(named(one))) == 3
    assert [entry.digest for entry in storage.list_promotions(named(one, threads=4)).items] == [four.digest]
    with pytest.raises(NotFound):
        storage.promote(named(one, threads=2), one.digest, ADA)


def test_a_name_for_a_range_that_its_library_does_not_cover_is_not_found(storage: Storage) -> None:
    small = new_library(storage, 1, 16)
    storage.promote(named(small), small.digest, ADA)

    with pytest.raises(NotFound, match=r"covers m=16\.\.272; covered: m=16\.\.256"):
        storage.serve(LibraryQuery(small.key, ranges={"m": (16, 272)}, alias="production"))


@pytest.mark.parametrize("name", ["", "Production", "-x", "a b", "ä", "a/b", "x" * 65, "\0", None])
def test_a_name_that_is_none_is_refused(storage: Storage, name: str | None) -> None:
    saved = new_library(storage)
    with pytest.raises(InvalidInput) as promoted:
        storage.promote(named(saved, name), saved.digest, ADA)
    with pytest.raises(InvalidInput) as rolled_back:
        storage.roll_back(named(saved, name), ADA)
    assert promoted.value.field == rolled_back.value.field == "alias"
    assert storage.list_aliases(named(saved, None)) == ()


@pytest.mark.parametrize(
    ("order", "field"),
    [
        (PromotionOrder("ada", "x" * 501), "reason"),
        (PromotionOrder("ada", at_least_percent=-1.0), "at_least_percent"),
        (PromotionOrder("ada", at_least_percent=float("nan")), "at_least_percent"),
        (PromotionOrder("ada", at_least_percent=1e9), "at_least_percent"),
    ],
)
def test_an_order_out_of_bounds_is_refused(storage: Storage, order: PromotionOrder, field: str) -> None:
    saved = new_library(storage)
    with pytest.raises(InvalidInput) as caught:
        storage.promote(named(saved), saved.digest, order)
    assert caught.value.field == field


def test_what_is_not_there_is_not_found_and_names_are_bounded(storage: Storage) -> None:
    saved = new_library(storage)
    with pytest.raises(NotFound, match="digest"):
        storage.promote(named(saved), "0" * 64, ADA)
    with pytest.raises(NotFound, match="production"):
        storage.roll_back(named(saved), ADA)
    for number in range(MAX_ALIASES):
        storage.promote(named(saved, f"n{number}"), saved.digest, ADA)
    with pytest.raises(InvalidInput, match="names already"):
        storage.promote(named(saved, "one-more"), saved.digest, ADA)
    storage.promote(named(saved, "n0"), saved.digest, ADA)


# -- back -------------------------------------------------------------------------------------------------------------
def test_a_roll_back_goes_one_step_further_each_time(storage: Storage) -> None:
    a, b, c = (new_library(storage) for _ in range(3))
    for each in (a, b, a, c):
        storage.promote(named(a), each.digest, ADA)

    seen = []
    while True:
        try:
            seen.append(storage.roll_back(named(a), PromotionOrder("bob", "slow")).library.digest)
        except Conflict as error:
            assert "before" in str(error)
            break

    assert seen == [a.digest, b.digest, a.digest]
    assert history(storage, a)[-1] == ("rolled_back", a.digest, b.digest)
    storage.promote(named(a), c.digest, ADA)
    assert storage.roll_back(named(a), ADA).library.digest == a.digest
    assert digests(storage, a) == {"production": a.digest}


def test_a_roll_back_of_names_in_several_places_asks_which(storage: Storage) -> None:
    made = [[new_library(storage, threads=threads) for _ in range(2)] for threads in (1, 4)]
    for each in (library for pair in made for library in pair):
        storage.promote(named(each), each.digest, ADA)

    with pytest.raises(Conflict, match="number of threads"):
        storage.roll_back(named(made[0][0]), ADA)

    assert storage.roll_back(named(made[0][0], threads=4), ADA).library.digest == made[1][0].digest
    assert storage.serve(LibraryQuery(made[0][0].key, threads=1, alias="production")).digest == made[0][1].digest


# -- by rule ----------------------------------------------------------------------------------------------------------
def ruled(storage: Storage, percent: float, *names: str) -> Saved:
    """A library that has these names, which move on to one that is so much better."""
    saved = new_library(storage)
    for name in names or ("production",):
        storage.promote(named(saved, name), saved.digest, PromotionOrder("ada", at_least_percent=percent))
    return saved


def test_a_library_that_fulfils_the_rule_takes_the_name(storage: Storage) -> None:
    first = ruled(storage, 10.0)
    storage.promote(named(first, "pinned"), first.digest, ADA)
    second = new_library(storage, comparison=won(first, ratio=1.25))

    assert digests(storage, first) == {"pinned": first.digest, "production": second.digest}
    alias = storage.list_aliases(named(first))[0]
    assert (alias.promoted_by, alias.at_least_percent) == ("rule", 10.0)
    assert "25.0 % faster, verified" in alias.reason
    assert history(storage, first)[-1] == (Action.BY_RULE.value, second.digest, first.digest)
    (event,) = [event for event in storage.list_events(second.job_id) if event.kind == "library"]
    assert event.data["aliases"] == ["production"]


@pytest.mark.parametrize(
    "comparison",
    [{"ratio": 1.09}, {"ratio": 1.5, "verified": False}, {"ratio": 1.5, "noise": 0.6}],
)
def test_a_library_that_does_not_fulfil_it_does_not(storage: Storage, comparison: dict[str, float]) -> None:
    first = ruled(storage, 10.0)
    new_library(storage, comparison=won(first, **comparison))
    new_library(storage)

    assert digests(storage, first) == {"production": first.digest}


def test_a_library_that_covers_less_does_not_take_the_name(storage: Storage) -> None:
    first = ruled(storage, 0.0)
    new_library(storage, 1, 64, comparison=won(first, ratio=2.0))

    assert digests(storage, first) == {"production": first.digest}


def test_small_gains_add_up_to_the_rule(storage: Storage) -> None:
    first = ruled(storage, 10.0, "production", "candidate")
    second = new_library(storage, comparison=won(first, ratio=1.06))
    assert digests(storage, first)["production"] == first.digest
    third = new_library(storage, comparison=won(second, ratio=1.06))

    assert digests(storage, first) == {"production": third.digest, "candidate": third.digest}
    assert "12.4 % faster" in storage.list_aliases(named(first))[0].reason


def test_comparisons_that_lead_elsewhere_fulfil_no_rule(storage: Storage) -> None:
    first = ruled(storage, 1.0)
    lone = new_library(storage)
    new_library(storage, comparison=won(lone, ratio=3.0))
    new_library(storage, comparison=Comparison("0" * 64, 3.0, 0.01, True))

    assert digests(storage, first) == {"production": first.digest}


def test_what_was_rolled_back_does_not_come_again_by_itself(storage: Storage) -> None:
    first = ruled(storage, 5.0)
    second = new_library(storage, comparison=won(first))

    back = storage.roll_back(named(first), PromotionOrder("bob"))
    new_library(storage, comparison=won(second))

    assert (back.library.digest, back.at_least_percent) == (first.digest, None)
    assert digests(storage, first) == {"production": first.digest}


def test_a_rule_can_be_changed_for_the_same_library(storage: Storage) -> None:
    first = ruled(storage, 5.0)

    alias = storage.promote(named(first), first.digest, PromotionOrder("ada"))

    assert alias.at_least_percent is None
    assert len(history(storage, first)) == 1
