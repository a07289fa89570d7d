"""`pull`, `promote` and `history` against a real service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shapewright.cli.describe_libraries import described_library
from shapewright.client import Client, ServiceNotFound
from tests.contract.samples import JOB as SAMPLE
from tests.contract.samples import many_tasks
from tests.serving import lease, small_dispatcher
from tests.shapewright.cli_bed import Bed
from tests.shapewright.conftest import Shapewright
from tuner.errors import InvalidInput
from tuner.library.package import package
from tuner.program.job.jobspec import parse_job
from tuner.storage import Artifact, Comparison, JobState, Lease
from tuner.storage.sql import Storage


def build(storage: Storage, held: Lease, binary: bytes, task: int = 0, against: str | None = None) -> Artifact:
    """A library for a task of a leased job; ``against``: the digest of one that it beats."""
    row = held.tasks[task]
    library = package(small_dispatcher(row.task), binary, "{}", {"tvm": "0"}, held.job.id)
    comparison = Comparison(against, 1.25, 0.02, True) if against else None
    return storage.save_library(held, row.id, library.files, library.manifest, library.dispatch, comparison=comparison)


def made(bed: Bed, source: dict[str, Any], binary: bytes, against: str | None = None) -> Artifact:
    """A job and its library."""
    bed.storage.create_job(parse_job(source))
    held = lease(bed.storage)
    artifact = build(bed.storage, held, binary, against=against)
    bed.storage.finish_job(held, JobState.COMPLETED)
    return artifact


def wide(high: int, **fields: Any) -> dict[str, Any]:
    ranges = {"shape_vars": {"T": {"min": 1, "max": high}}, "instances": [{"T": 1}, {"T": high}]}
    return {**SAMPLE, **ranges, **fields}


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    path = tmp_path / "sample.json"
    path.write_text(json.dumps(wide(64)))
    return path


def test_a_job_file_brings_its_threads_and_its_range(
    shapewright: Shapewright, bed: Bed, sample: Path, tmp_path: Path
) -> None:
    first = made(bed, wide(64), b"first")
    made(bed, wide(16), b"covers less")
    made(bed, wide(128, threads=4), b"another number of threads")
    wider = made(bed, wide(128), b"covers more, and is no better")

    def pulled(*line: object) -> str:
        ran = shapewright("pull", *line, "-o", tmp_path / "lib", "--json")
        assert ran.code == 0, ran.err
        return str(ran.json["digest"])

    assert pulled(sample) == first.digest
    assert pulled(sample, "--range", "T=1..65") == wider.digest
    assert pulled(first.workload_key, "--threads", 1) == wider.digest, "the widest"
    assert pulled(first.workload_key, "--threads", 1, "--range", "m=16..1024") == first.digest
    missing = shapewright("pull", sample, "--range", "T=1..500", "-o", tmp_path / "other", "--json")
    assert missing.code == 5
    assert "covers m=16..8000; covered: m=16..2048" in missing.error["message"]
    assert not (tmp_path / "other").exists()


def test_pull_tells_which_job_when_and_how_it_compares(
    shapewright: Shapewright, bed: Bed, sample: Path, tmp_path: Path
) -> None:
    old = made(bed, wide(64), b"old")
    new = made(bed, wide(64), b"new", against=old.digest)

    out = shapewright("pull", sample, "-o", tmp_path / "lib").out
    served = shapewright("pull", sample, "-o", tmp_path / "lib", "--json").json["served"]

    assert f"{tmp_path / 'lib'}: library {new.digest} for {new.target_fingerprint}" in out
    assert f"built by job {new.job_id}, {new.created_at}, for m=16..1024:16 with 1 thread" in out
    assert f"1.25x as fast as {old.digest[:12]} of job {old.job_id}, timed in turns" in out
    assert out.strip() == described_library(tmp_path / "lib", served)
    manifest = json.loads((tmp_path / "lib" / "manifest.json").read_text())
    assert (manifest["ranges"], manifest["protocol"]) == ({"m": [16, 1024]}, "v3")


def test_all_libraries_of_a_job_are_written_a_folder_each(shapewright: Shapewright, bed: Bed, tmp_path: Path) -> None:
    job, _ = bed.storage.create_job(many_tasks())
    held = lease(bed.storage)
    none = shapewright("pull", job.id, "-o", tmp_path / "none", "--json")
    assert (none.code, none.error["message"]) == (5, f"job {job.id} is RUNNING; it has built no library")
    library = small_dispatcher(held.tasks[0].task)
    for position in (0, 2):
        built = package(library, bytes([position]), "{}", {}, job.id)
        bed.storage.save_library(held, held.tasks[position].id, built.files, built.manifest, built.dispatch)

    ran = shapewright("pull", job.id, "-o", tmp_path / "all", "--json")

    key = held.tasks[0].workload_key
    folders = [tmp_path / "all" / f"{key}-{position}" for position in (0, 2)]
    assert ran.code == 0
    assert f"1 of 3 search tasks have no library; job {job.id} is RUNNING" in ran.err
    assert [Path(each["directory"]) for each in ran.json["libraries"]] == folders
    assert [(folder / "library.so").read_bytes() for folder in folders] == [b"\0", b"\2"]
    assert shapewright("pull", "job-none", "-o", tmp_path / "x").code == 5
    refused = shapewright("pull", job.id, "-o", tmp_path / "x", "--range", "T=1", "--json")
    assert (refused.code, refused.error["field"]) == (2, "--range")


def test_a_promoted_library_is_pulled_by_its_name(
    shapewright: Shapewright, bed: Bed, sample: Path, tmp_path: Path
) -> None:
    old = made(bed, wide(64), b"old")
    new = made(bed, wide(64), b"new", against=old.digest)
    promote = ("promote", sample, "--alias", "production")

    for artifact in (new, old):
        ran = shapewright(*promote, "--digest", artifact.digest, "--reason", "why not")
        assert ran.out.strip() == f"production is library {artifact.digest} of job {artifact.job_id}"
    pulled = shapewright("pull", sample, "--alias", "production", "-o", tmp_path / "lib", "--json").json
    assert (pulled["digest"], pulled["served"]["aliases"]) == (old.digest, ["production"])
    assert shapewright(*promote, "--roll-back", "--json").json["library"]["digest"] == new.digest
    assert shapewright(*promote, "--roll-back").code == 2
    assert shapewright(*promote, "--digest", old.digest[:12], "--json").json["library"]["digest"] == old.digest
    now = shapewright("pull", sample, "-o", tmp_path / "lib", "--json").json["digest"]
    assert shapewright(*promote, "--json").json["library"]["digest"] == now == new.digest

    told = shapewright("history", sample)
    document = shapewright("history", sample, "--json").json

    assert [each["digest"] for each in document["libraries"]] == [new.digest, old.digest]
    assert [each["action"] for each in document["promotions"]] == [
        "promoted",
        "promoted",
        "rolled_back",
        "promoted",
        "promoted",
    ]
    lines = told.out.splitlines()
    assert lines[0].split()[:3] == ["BUILT", "JOB", "RANGE"]
    assert "served" in lines[1] and "1.25x" in lines[1] and "production" in lines[1] and new.digest in lines[1]
    assert "kept" in lines[2]
    assert "why not" in told.out


def test_one_library_is_served_and_the_others_stand_beside_it(shapewright: Shapewright, bed: Bed) -> None:
    """Three libraries were said to be served."""
    oldest, *_ = (made(bed, wide(64), name) for name in (b"one", b"two", b"three"))
    document = shapewright("history", oldest.workload_key, "--json").json["libraries"]
    assert [each["served"] for each in document] == [False, False, True]
    assert document[2]["digest"] == oldest.digest
    states = [line.split()[-2] for line in shapewright("history", oldest.workload_key).out.splitlines()[1:]]
    assert states == ["beside", "beside", "served"]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (["--digest", "0" * 64, "--roll-back"], None),
        (["--roll-back", "--at-least", "5"], None),
        (["--digest", "x"], "digest"),
        (["--digest", "0" * 64, "--at-least", "-5"], "--at-least"),
    ],
)
def test_a_promotion_that_makes_no_sense_is_refused(
    shapewright: Shapewright, bed: Bed, options: list[str], field: str | None
) -> None:
    ran = shapewright("promote", "wl-0", "--alias", "production", *options, "--json")
    assert (ran.code, ran.error.get("field")) == (2, field)


def test_the_first_digits_of_a_digest_are_enough_where_they_are_of_one(
    shapewright: Shapewright, bed: Bed, sample: Path, tmp_path: Path
) -> None:
    first = made(bed, wide(64), b"first")
    made(bed, wide(64), b"second")
    pulled = shapewright("pull", sample, "--digest", first.digest[:12], "-o", tmp_path / "lib", "--json")
    assert pulled.json["digest"] == first.digest
    other = "0" * 12 if not first.digest.startswith("0" * 12) else "1" * 12
    missing = shapewright("pull", sample, "--digest", other, "-o", tmp_path / "lib", "--json")
    assert missing.code == 5
    short = shapewright("pull", sample, "--digest", "ab", "-o", tmp_path / "lib", "--json")
    assert (short.code, short.error["field"]) == (2, "digest")


def test_pull_names_the_job_that_searches_and_how_far_it_is(
    shapewright: Shapewright, bed: Bed, sample: Path, tmp_path: Path
) -> None:
    job, _ = bed.storage.create_job(parse_job(wide(64)))
    held = lease(bed.storage)
    progress = {"phase": "search", "trials": 3, "trials_budget": 8, "elapsed_s": 3.0}
    bed.storage.append_results(held, held.tasks[0].id, [], summary=progress)
    standing = f"job {job.id} is RUNNING: 3 of 8 trials, searching, 5 s left"

    missing = shapewright("pull", sample, "-o", tmp_path / "lib", "--json")

    assert missing.code == 5
    assert standing in missing.error["message"]
    assert f"shapewright watch {job.id}" in missing.error["message"]
    assert missing.error["running"] == [job.id]

    library = build(bed.storage, held, b"first")
    pulled = shapewright("pull", sample, "-o", tmp_path / "lib", "--json")
    assert (pulled.json["digest"], pulled.json["running"]) == (library.digest, [job.id])
    assert f"{standing}: a later `pull` may give a better library" in pulled.err
    bed.storage.finish_job(held, JobState.COMPLETED)
    assert shapewright("pull", sample, "-o", tmp_path / "lib", "--json").json["running"] == []


# -- from files -------------------------------------------------------------------------------------------------------
def test_a_library_is_pulled_from_a_directory_or_a_snapshot_without_a_service(
    shapewright: Shapewright, bed: Bed, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow, broad = made(bed, wide(64), b"first"), made(bed, wide(128), b"wider")
    for artifact in (narrow, broad):
        shapewright(
            "pull", artifact.workload_key, "--digest", artifact.digest, "-o", tmp_path / "all" / artifact.digest
        )
    assert (
        shapewright("snapshot", "-o", tmp_path / "all.snapshot", "--from", tmp_path / "all", "--keep", "all").code == 0
    )
    monkeypatch.setenv("SHAPEWRIGHT_URL", "http://127.0.0.1:1")
    on = ("--target", narrow.target_fingerprint)
    for source in (tmp_path / "all", tmp_path / "all.snapshot"):
        lib = tmp_path / f"{source.name}-lib"
        ran = shapewright("pull", sample, "--from", source, *on, "-o", lib, "--json")
        assert (ran.code, ran.json["digest"], ran.json["from"]) == (0, narrow.digest, str(source)), ran.err
        assert json.loads((lib / "manifest.json").read_text())["digest"] == narrow.digest
        wider = shapewright("pull", narrow.workload_key, "--from", source, *on, "--threads", 1, "-o", lib, "--json")
        assert wider.json["digest"] == broad.digest
        by_digest = ("--digest", narrow.digest[:12])
        named = shapewright("pull", narrow.workload_key, "--from", source, *on, *by_digest, "-o", lib, "--json")
        assert named.json["digest"] == narrow.digest
        missing = shapewright("pull", sample, "--from", source, *on, "--range", "T=1..500", "-o", lib, "--json")
        assert missing.code == 5
        assert f"in {source} covers" in missing.error["message"]
    refused = shapewright("pull", sample, "--from", tmp_path / "all", "--alias", "x", "-o", tmp_path / "x", "--json")
    assert (refused.code, refused.error["field"]) == (2, "--alias")


# -- the client -------------------------------------------------------------------------------------------------------
def test_a_client_asks_with_what_its_workload_brings(bed: Bed, tmp_path: Path) -> None:
    source = wide(64)
    first = made(bed, source, b"first")
    wider = made(bed, wide(128), b"wider")
    task = parse_job(source).tasks[0]
    with Client() as client:
        for workload in (task, source):
            assert client.served(workload)["digest"] == first.digest
            assert client.served(workload, ranges={"T": (1, 65)})["digest"] == wider.digest
            assert client.served(workload, ranges="m=16..1040")["digest"] == wider.digest
            assert client.dispatcher(workload)["bounds"] == {"m": [16, 1024]}
            manifest = client.download_library(workload, tmp_path / "lib", ranges="T=2..100")
            assert manifest["digest"] == wider.digest
        assert client.served(task.workload, ranges="T=1..64")["digest"] == first.digest
        assert client.served(task.workload)["digest"] == wider.digest
        assert client.served(task, digest=wider.digest)["asked"] == {"m": [16, 2048]}
        assert len(client.libraries(task, limit=1)) == 1
        with pytest.raises(InvalidInput, match="give T"):
            client.served(task, ranges="S=1..2")


def test_a_client_asks_for_the_sizes_that_its_job_has(bed: Bed, tmp_path: Path) -> None:
    eights = {**wide(64), "shape_vars": {"T": {"min": 8, "max": 64, "step": 8}}, "instances": [{"T": 8}, {"T": 64}]}
    powers = {**eights, "shape_vars": {"T": {"min": 8, "max": 64, "powers_of": 2}}}
    stepped = made(bed, eights, b"stepped")
    with Client() as client:
        for source in (eights, powers):
            found = client.served(source)
            assert (found["digest"], found["made_for"]) == (stepped.digest, "m=128..1024:128")
            assert (found["range"], found["asked"]) == ({"m": [128, 1024]}, {"m": [128, 1024]})
        manifest = client.download_library(eights, tmp_path / "lib")
        assert (manifest["ranges"], manifest["made_for"]) == ({"m": [128, 1024]}, "m=128..1024:128")
        assert client.served(wide(64), ranges="T=8..64")["digest"] == stepped.digest, "by its ends alone"
        for ranges in ("T=8..64:1", {"T": range(8, 65, 4)}, "m=128..1024:16", "T=8|12"):
            with pytest.raises(ServiceNotFound, match=r"covered: m=128\.\.1024:128"):
                client.served(wide(64), ranges=ranges)
        with pytest.raises(ServiceNotFound, match=r"covers m=16\.\.1024:16"):
            client.served(wide(64))
        every = made(bed, wide(64), b"every")
        assert client.served(wide(64))["digest"] == every.digest
        assert client.served(every.workload_key, ranges="m=16|32|64")["digest"] == every.digest
        assert client.served(wide(64))["made_for"] == "m=16..1024:16"


def test_a_client_promotes_and_looks_back(bed: Bed) -> None:
    artifact = made(bed, wide(64), b"first")
    with Client() as client:
        key = artifact.workload_key
        given = client.promote(key, artifact.digest, "candidate", at_least_percent=3)
        assert client.aliases(key) == [given]
        assert given["at_least_percent"] == 3
        (entry,) = client.promotions(key, "candidate")
        assert (entry["digest"], entry["by"]) == (artifact.digest, "tests")
        (library,) = client.libraries_of_job(str(artifact.job_id))
        assert library["aliases"] == ["candidate"]
