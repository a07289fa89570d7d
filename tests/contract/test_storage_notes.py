"""What every Storage promises about tags, notes and saved searches."""

from __future__ import annotations

import pytest

from tests.contract.samples import job_spec
from tuner.errors import InvalidInput
from tuner.storage import JobQuery, NotFound
from tuner.storage.filters import MAX_NOTE, MAX_TAGS, MAX_TERMS
from tuner.storage.sql import Storage
from tuner.storage.sql.notes import MAX_FILTERS


def found(storage: Storage, text: str) -> list[str]:
    """The names that a search finds, oldest first: in the table, and in the list."""
    table = [job.name for job in storage.find_jobs(JobQuery(text)).items][::-1]
    assert [job.name for job in storage.list_jobs(text=text).items][::-1] == table
    return table


def test_tags_and_notes_are_kept_and_told(storage: Storage) -> None:
    job, _ = storage.create_job(job_spec())
    assert (job.tags, job.note) == ((), "")

    changed = storage.annotate_job(job.id, ["nightly", "bert:base", "nightly"], "as before\nthe upgrade", "ada")

    assert (changed.tags, changed.note) == (("nightly", "bert:base"), "as before\nthe upgrade")
    assert storage.get_job(job.id) == changed == storage.list_jobs().items[0]
    assert storage.annotate_job(job.id, note="") == storage.get_job(job.id)
    assert (storage.get_job(job.id).tags, storage.get_job(job.id).note) == (("nightly", "bert:base"), "")
    assert storage.annotate_job(job.id, []).tags == ()
    entries = [entry for entry in storage.list_audit(subject=job.id).items if entry.action == "job.annotate"]
    assert len(entries) == 3
    assert (entries[-1].actor, entries[-1].detail["tags"]) == ("ada", ["nightly", "bert:base"])


def test_what_is_no_tag_is_refused_and_changes_nothing(storage: Storage) -> None:
    job, _ = storage.create_job(job_spec())
    for tags in (["two words"], ["a,b"], [""], ["-x"], ["x" * 51], [f"t{number}" for number in range(MAX_TAGS + 1)]):
        with pytest.raises(InvalidInput) as caught:
            storage.annotate_job(job.id, tags, "note")
        assert caught.value.field == "tags"
    with pytest.raises(InvalidInput):
        storage.annotate_job(job.id, note="x" * (MAX_NOTE + 1))
    with pytest.raises(NotFound):
        storage.annotate_job("job-none", ["a"])
    assert (storage.get_job(job.id).tags, storage.get_job(job.id).note) == ((), "")


def test_jobs_are_found_by_what_is_said_of_them(storage: Storage) -> None:
    made = {name: storage.create_job(job_spec(name=name), owner)[0]
            for name, owner in (("bert base", "ada"), ("bert large", "bob"), ("conv: 3x3", "ada"))}  # fmt: skip
    storage.annotate_job(made["bert base"].id, ["nightly", "x86"], "100% done")
    storage.annotate_job(made["bert large"].id, ["night"])
    storage.annotate_job(made["conv: 3x3"].id, ["Night"])
    storage.request_cancel(made["conv: 3x3"].id)

    for text, wanted in {
        "": ["bert base", "bert large", "conv: 3x3"],
        "bert ada": ["bert base"],
        "BERT": ["bert base", "bert large"],
        "tag:night": ["bert large"],
        "tag:Night": ["conv: 3x3"],
        "tag:NIGHT": [],
        "-tag:Night": ["bert base", "bert large"],
        "tag:%": [],
        "tag:n_ght": [],
        "tag:\0": [],
        "night": ["bert base", "bert large", "conv: 3x3"],
        "-tag:nightly owner:ada": ["conv: 3x3"],
        'name:"t b"': ["bert base"],
        "-bert": ["conv: 3x3"],
        "state:cancelled": ["conv: 3x3"],
        "-state:cancelled large": ["bert large"],
        "note:0%": ["bert base"],
        "note:%x": [],
        "conv: 3x3": ["conv: 3x3"],
        "nv:": ["conv: 3x3"],
        f"id:{made['bert large'].id}": ["bert large"],
        made["bert large"].id: ["bert large"],
        f"id:{made['bert large'].id[-8:]}": ["bert large"],
        made["bert large"].id[-8:]: [],
        "device:local": ["bert base", "bert large", "conv: 3x3"],
    }.items():
        assert found(storage, text) == wanted, text
    with pytest.raises(InvalidInput):
        storage.find_jobs(JobQuery("a " * (MAX_TERMS + 1)))


def test_searches_are_saved_by_owner_under_a_name(storage: Storage) -> None:
    storage.save_filter("ada", "mine", "owner:ada", "key-a")
    storage.save_filter("ada", "bad", "state:failed")
    storage.save_filter("bob", "mine", "owner:bob")

    again = storage.save_filter("ada", "mine", "owner:ada -tag:old")

    assert [(each.name, each.query) for each in storage.list_filters("ada")] == [
        ("bad", "state:failed"), ("mine", "owner:ada -tag:old"),
    ]  # fmt: skip
    assert again == storage.list_filters("ada")[1]
    storage.delete_filter("ada", "mine", "key-a")
    assert [each.query for each in storage.list_filters("bob")] == ["owner:bob"]
    with pytest.raises(NotFound):
        storage.delete_filter("ada", "mine")
    told = [(entry.actor, entry.action) for entry in storage.list_audit(subject="mine").items]
    assert told == [("key-a", "filter.delete"), ("", "filter.save"), ("", "filter.save"), ("key-a", "filter.save")]


def test_an_owner_saves_so_many_searches(storage: Storage) -> None:
    for number in range(MAX_FILTERS):
        storage.save_filter("ada", f"f{number}", "bert")
    storage.save_filter("ada", "f0", "conv")
    with pytest.raises(InvalidInput, match="name"):
        storage.save_filter("ada", "one more", "bert")
    with pytest.raises(InvalidInput) as refused:
        storage.save_filter("ada", "f0", "a " * 21)
    assert refused.value.field == "query"


def test_workloads_are_found_by_key_label_and_program(storage: Storage) -> None:
    storage.create_job(job_spec())
    [known] = storage.list_workloads().items
    for text in (known.key[3:9], known.label[:8].upper(), "dense"):
        assert [each.key for each in storage.list_workloads(text=text).items] == [known.key], text
    assert storage.list_workloads(text="conv2d_%").items == ()
