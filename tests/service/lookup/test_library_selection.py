"""The library that answers a lookup is the one that is served for that shape."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient

from tests.contract.served_samples import Saved, found_wrong, new_library, won
from tuner.storage import LibraryQuery
from tuner.storage.sql import Storage


def consulted(api: TestClient, library: Saved, m: int) -> str:
    query = {"workload_key": library.key, "shape": {"m": m}, "target": library.target}
    (answer,) = api.post("/v1/lookup", json={"queries": [query]}).json()["answers"]
    digest: str = answer["best"]["digest"]
    return digest


def assert_served(api: TestClient, storage: Storage, library: Saved, m: int) -> None:
    """``library`` answers for m, and is what a range of m alone is served by."""
    assert consulted(api, library, m) == library.digest
    assert storage.serve(LibraryQuery(library.key, library.target, ranges={"m": (m, m)})).digest == library.digest


def test_an_older_library_that_is_faster_answers(api: TestClient, storage: Storage) -> None:
    old = new_library(storage, measured_s={5: 1e-3}, predicted_s={5: 1e-3, 6: 1e-3})
    new_library(storage, measured_s={5: 2e-3}, predicted_s={5: 2e-3, 6: 2e-3})
    assert_served(api, storage, old, 80)
    assert_served(api, storage, old, 96)


def test_what_won_in_turns_answers_whatever_is_recorded(api: TestClient, storage: Storage) -> None:
    old = new_library(storage, measured_s={5: 1e-3})
    new = new_library(storage, measured_s={5: 2e-3}, comparison=won(old))
    assert_served(api, storage, new, 80)


def test_a_narrow_library_answers_inside_of_its_range_alone(api: TestClient, storage: Storage) -> None:
    wide = new_library(storage, 1, 128, predicted_s={1: 2e-3, 128: 2e-3})
    narrow = new_library(storage, 1, 16, predicted_s={1: 1e-3, 16: 1e-3})
    assert_served(api, storage, narrow, 16)
    assert_served(api, storage, wide, 16 * 17)


def test_what_was_made_for_a_shape_answers_before_what_has_it_between_two_of_its_own(
    api: TestClient, storage: Storage
) -> None:
    eights: dict[str, Any] = {"shape_vars": {"T": {"min": 8, "max": 128, "step": 8}}, "instances": [{"T": 8}]}
    stepped = new_library(storage, predicted_s={8: 1e-3, 16: 1e-3}, **eights)
    assert consulted(api, stepped, 16 * 12) == stepped.digest
    every = new_library(storage, predicted_s={8: 2e-3, 16: 2e-3})
    assert consulted(api, stepped, 16 * 12) == every.digest
    assert consulted(api, stepped, 16 * 16) == stepped.digest


def test_a_withdrawn_library_answers_nothing(api: TestClient, storage: Storage) -> None:
    old = new_library(storage, predicted_s={5: 1e-3})
    new = new_library(storage, predicted_s={5: 1e-4}, comparison=won(old))
    assert_served(api, storage, new, 80)
    found_wrong(storage, new)
    assert_served(api, storage, old, 80)
