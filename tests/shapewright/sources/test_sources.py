"""Where libraries come from: directories, snapshots, services; and that none of them breaks a build."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shapewright.cli.describe_libraries import described_library
from shapewright.client import Client
from shapewright.errors import ServiceNotFound
from shapewright.loading import load
from shapewright.snapshot.writing import chosen, offers_of, write_snapshot
from shapewright.sources.directory import Directory, provide
from shapewright.sources.finder import Finder, finder_of
from shapewright.sources.libraries import keep, kept_folder, load_library
from shapewright.sources.opening import source_of
from shapewright.sources.source import Match, SourceAway
from tests.serving import lease
from tests.shapewright.cli_bed import Bed
from tests.shapewright.libraries import TASKS, M, altered, save, save_library
from tests.shapewright.torch.models import WIDTH
from tuner.errors import InvalidInput, ShapewrightError
from tuner.program.job.build import make_workload
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Workload
from tuner.program.target import Target, native

SQUARE = make_workload("dense", {"m": "16*T", "n": WIDTH, "k": WIDTH}, epilogue=["bias"])
UNKNOWN = make_workload("dense", {"m": "T", "n": 5, "k": 3})


def found(source: object, workload: Workload = SQUARE, threads: int = 1) -> Match | str:
    return source_of(source).find(workload, threads)  # type: ignore[arg-type]


def test_a_directory_is_a_library_or_has_folders_of_them(libraries: Path, tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "job").symlink_to(libraries)
    (tmp_path / "jobs" / "notes").mkdir()
    for place in (libraries / "square", libraries, tmp_path / "jobs"):
        match = found(place)
        assert isinstance(match, Match)
        assert (match.library.workload.key, match.how, match.source) == (SQUARE.key, "exact", str(place))
    assert found(libraries, UNKNOWN) == "no library for this workload"


@pytest.mark.parametrize(
    ("args", "is_served"),
    [
        ({"m": 1, "n": WIDTH, "k": WIDTH}, True),
        ({"m": 77, "n": WIDTH, "k": WIDTH}, True),
        ({"m": "M", "n": WIDTH, "k": 2 * WIDTH}, False),
        ({"m": "M", "n": "N", "k": WIDTH}, False),
    ],
)
def test_a_library_serves_the_sizes_that_it_leaves_open(libraries: Path, args: dict[str, int], is_served: bool) -> None:
    match = found(libraries / "square", make_workload("dense", args, epilogue=["bias"]))
    assert isinstance(match, Match) is is_served
    assert not is_served or (isinstance(match, Match) and match.how == "covers")


def test_one_symbol_in_two_places_serves_equal_sizes_alone(libraries: Path) -> None:
    def attention(i: object, j: object) -> Workload:
        return make_workload("attention", {"b": 1, "h": 2, "i": i, "j": j, "d": 16})

    assert isinstance(found(libraries, attention("S", "S")), Match)
    assert isinstance(found(libraries, attention(9, 9)), Match)
    assert isinstance(found(libraries, attention("S", "R")), str)
    assert isinstance(found(libraries, attention(9, 8)), str)


def test_libraries_that_do_not_fit_this_machine_are_passed_over_with_the_reason(
    libraries: Path, tmp_path: Path
) -> None:
    target = json.loads((libraries / "square" / "manifest.json").read_text())["target"]
    hardware = {**target["hardware"], "features": ["avx1024"]}
    altered(libraries / "square", tmp_path / "other", target={**target, "hardware": hardware})
    assert found(tmp_path / "other") == "it is for a CPU with avx1024"
    assert found(libraries / "square", threads=3) == "it is for 1 threads, not 3"


def test_a_damaged_library_leaves_its_place_to_another(libraries: Path, tmp_path: Path) -> None:
    altered(libraries / "square", tmp_path / "both" / "a")
    (tmp_path / "both" / "a" / "library.so").write_bytes(b"damaged")
    assert "is not what was built" in str(found(tmp_path / "both"))
    altered(libraries / "square", tmp_path / "both" / "b")
    (tmp_path / "both" / "c").mkdir()
    (tmp_path / "both" / "c" / "manifest.json").write_text("{")
    assert isinstance(found(tmp_path / "both"), Match)


def test_a_snapshot_serves_and_what_is_used_is_kept(libraries: Path, tmp_path: Path) -> None:
    file = tmp_path / "all.snapshot"
    write_snapshot(file, chosen(offers_of(libraries)))
    match = found(file)
    assert isinstance(match, Match)
    assert match.how == "exact"
    assert (kept_folder() / match.library.digest / "library.so").is_file()
    covered = found(file, make_workload("dense", {"m": 1, "n": WIDTH, "k": WIDTH}, epilogue=["bias"]))
    assert isinstance(covered, Match)
    assert covered.how == "covers"
    assert "no library" in str(found(file, UNKNOWN))
    assert "3" in str(found(file, threads=3))


def test_a_snapshot_made_on_a_machine_of_the_same_instructions_serves(libraries: Path, tmp_path: Path) -> None:
    altered(libraries / "square", tmp_path / "elsewhere", target_fingerprint="llvm-elsewhere-0123456789ab")
    file = tmp_path / "all.snapshot"
    write_snapshot(file, chosen(offers_of(tmp_path / "elsewhere")))
    assert isinstance(found(file), Match)


def test_a_damaged_snapshot_is_a_source_that_is_away(tmp_path: Path) -> None:
    file = tmp_path / "some.snapshot"
    file.write_bytes(b"PK damaged")
    with pytest.raises(SourceAway, match="damaged"):
        found(file)


def test_a_service_serves_and_its_downloads_are_kept(bed: Bed, libraries: Path) -> None:
    job = {"name": "square", "workload": SQUARE.to_json(), "shape_vars": {"T": {"min": 1, "max": 2}}}
    Client(bed.url).submit({**job, "budget": {"trials": 1}})
    held = lease(bed.storage)
    files = {path.name: path.read_bytes() for path in (libraries / "square").iterdir()}
    library = load(libraries / "square")
    bed.storage.save_library(held, held.tasks[0].id, files, library.manifest, json.loads(files["dispatch.json"]))
    match = found(bed.url)
    assert isinstance(match, Match)
    assert (match.how, match.library.digest) == ("exact", library.digest)
    assert (kept_folder() / library.digest / "library.so").is_file()
    assert isinstance(found(bed.url, UNKNOWN), str)


def test_a_service_serves_what_was_tuned_on_other_cores_and_says_so(bed: Bed, tmp_path: Path) -> None:
    here = native()
    there = replace(here, hardware=replace(here.hardware, cores=here.hardware.cores + 2))
    task = SearchTask("dense", {"m": M, "n": WIDTH, "k": WIDTH}, (M,), target=there, epilogue=("bias",))
    save(tmp_path / "there", task)
    job = {"name": "square", "workload": SQUARE.to_json(), "shape_vars": {"T": {"min": 1, "max": 2}}}
    Client(bed.url).submit({**job, "target": there.to_json(), "budget": {"trials": 1}})
    held = lease(bed.storage)
    files = {path.name: path.read_bytes() for path in (tmp_path / "there").iterdir()}
    manifest = json.loads(files["manifest.json"])
    bed.storage.save_library(held, held.tasks[0].id, files, manifest, json.loads(files["dispatch.json"]))

    finder = finder_of(bed.url, threads=1)
    match = finder.find(SQUARE)
    assert isinstance(match, Match)
    assert match.library.tuned_on_cores == there.hardware.cores
    assert f"tuned on {there.hardware.cores} cores, here are {here.hardware.cores}" in finder.notes[0]
    with Client(bed.url) as client:
        served = client.served(SQUARE, target=here.fingerprint)
        assert (served["digest"], served["tuned_on_cores"]) == (manifest["digest"], there.hardware.cores)
        assert "tuned_on_cores" not in client.served(SQUARE, target=there.fingerprint)
        assert client.pull(SQUARE, target=here.fingerprint).digest == manifest["digest"]
        for asked in ({"threads": 3}, {"alias": "production"}, {"digest": manifest["digest"]}):
            with pytest.raises(ServiceNotFound):
                client.served(SQUARE, target=here.fingerprint, **asked)


def test_a_service_serves_what_was_tuned_for_another_gpu_of_the_instruction_set(bed: Bed, libraries: Path) -> None:
    own, tuned, other = (Target.from_json({"kind": "cuda", "product": name}) for name in ("h200", "h100", "l4"))
    job = {"name": "square", "workload": SQUARE.to_json(), "shape_vars": {"T": {"min": 1, "max": 2}}}
    Client(bed.url).submit({**job, "target": tuned.to_json(), "budget": {"trials": 0}})
    held = lease(bed.storage)
    files = {path.name: path.read_bytes() for path in (libraries / "square").iterdir()}
    manifest = json.loads(files["manifest.json"]) | {"target": tuned.to_json(), "target_fingerprint": tuned.fingerprint}
    bed.storage.save_library(held, held.tasks[0].id, files, manifest, json.loads(files["dispatch.json"]))
    with Client(bed.url) as client:
        served = client.served(SQUARE, target=own.fingerprint)
        assert (served["target_fingerprint"], served["stands_in_for"]) == (tuned.fingerprint, own.fingerprint)
        assert "tuned_on_cores" not in served
        assert f"there is none for {own.fingerprint}" in described_library(libraries, served)
        assert "stands_in_for" not in client.served(SQUARE, target=tuned.fingerprint)
        with pytest.raises(ServiceNotFound):
            client.served(SQUARE, target=other.fingerprint)


def test_a_library_of_this_very_target_comes_first(libraries: Path, tmp_path: Path) -> None:
    here = native()
    for name, cores in (("a", here.hardware.cores + 2), ("b", here.hardware.cores)):
        target = replace(here, hardware=replace(here.hardware, cores=cores))
        save(
            tmp_path / name,
            SearchTask("dense", {"m": M, "n": WIDTH, "k": WIDTH}, (M,), target=target, epilogue=("bias",)),
        )
    match = found(tmp_path)
    assert isinstance(match, Match)
    assert (match.library.tuned_on_cores, match.other_cores(here)) == (here.hardware.cores, None)


def test_a_service_that_is_away_is_told_once_and_what_was_kept_serves(libraries: Path, free_port: int) -> None:
    keep(load_library(libraries / "square"))
    url = f"http://127.0.0.1:{free_port}"
    finder = finder_of(url)
    with pytest.warns(UserWarning, match="kept earlier") as told:
        match = finder.find(SQUARE)
    assert isinstance(match, Match)
    assert match.source == str(kept_folder())
    assert isinstance(finder.find(UNKNOWN), str)
    assert len(told) == 1
    assert url in finder.notes[0]
    with pytest.raises(SourceAway, match=url):
        finder_of(url, strict=True).find(SQUARE)


def test_sources_are_asked_in_turn(libraries: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    finder = finder_of([tmp_path / "empty", libraries])
    assert isinstance(finder.find(SQUARE), Match)
    with pytest.warns(UserWarning, match="is not a directory"):
        assert isinstance(finder_of([tmp_path / "missing", libraries]).find(SQUARE), Match)


def test_strict_refuses_what_has_no_library(libraries: Path) -> None:
    finder = finder_of(libraries, strict=True)
    with pytest.raises(ShapewrightError, match="no library for this workload; tune it"):
        finder.find(UNKNOWN)
    assert isinstance(finder.find(UNKNOWN, may_miss=True), str)


def test_without_one_for_so_many_threads_a_library_of_one_serves_and_says_so(libraries: Path, tmp_path: Path) -> None:
    finder = finder_of(libraries, threads=2)
    match = finder.find(SQUARE)
    assert isinstance(match, Match)
    assert match.library.manifest["threads"] == 1
    assert "runs on one thread: no library of it is for 2" in finder.notes[0]
    save_library(tmp_path / "both" / "two", "dense", {"m": M, "n": WIDTH, "k": WIDTH}, (M,), ("bias",), threads=2)
    altered(libraries / "square", tmp_path / "both" / "one")
    match = finder_of(tmp_path / "both", threads=2).find(SQUARE)
    assert isinstance(match, Match)
    assert match.library.manifest["threads"] == 2


@pytest.mark.parametrize("given", [3, []])
def test_what_is_no_source_is_refused(given: object) -> None:
    with pytest.raises(InvalidInput, match="source"):
        finder_of(given)  # type: ignore[arg-type]


def test_libraries_are_provided_for_models_that_are_loaded_later(libraries: Path) -> None:
    assert provide(libraries) == len(TASKS)
    with pytest.raises(ShapewrightError, match="is not a directory"):
        provide(libraries / "missing")


def test_a_directory_with_too_many_folders_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shapewright.sources.directory.MAX_FOLDERS", 3)
    for name in "abcd":
        (tmp_path / name).mkdir()
    with pytest.raises(SourceAway, match="more than 3 folders"):
        Directory(tmp_path, native()).find(SQUARE, 1)


def test_a_finder_asks_for_each_workload_once(libraries: Path) -> None:
    asked: list[str] = []

    class Counting:
        name = "counting"

        def __init__(self) -> None:
            self.left_out: dict[str, str] = {}

        def find(self, workload: Workload, threads: int) -> Match | str:
            asked.append(workload.key)
            return ""

    finder = Finder([Counting()], native(), threads=1, strict=False)
    assert [finder.find(UNKNOWN) for _ in range(3)] == ["no source answers"] * 3
    assert asked == [UNKNOWN.key]


def test_models_get_libraries_for_streamed_weights_first(tmp_path: Path) -> None:
    args = {"m": M, "n": 8, "k": 8}
    workload = make_workload("dense", {"m": "M", "n": 8, "k": 8})
    for cache in ("cold", "warm", "streamed"):
        save_library(tmp_path / cache, "dense", args, (M,), cache=cache)
        match = found(tmp_path, workload)
        assert isinstance(match, Match)
        assert match.cache == cache, "the later are preferred"
    altered(tmp_path / "warm", tmp_path / "odd", cache="tepid")
    source = source_of(tmp_path / "odd")
    assert isinstance(source.find(workload, 1), str)
    assert "caches are 'tepid'" in str(source.left_out)
