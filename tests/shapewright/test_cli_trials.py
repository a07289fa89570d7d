"""`trials`, `compare` and data frames, of jobs that were searched on a simulated device."""

from __future__ import annotations

import asyncio
import csv
import io
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from shapewright.client import Client
from shapewright.client_async import AsyncClient
from tests.contract.samples import many_tasks
from tests.searched import searched
from tests.serving import serving
from tests.shapewright.cli_bed import Bed
from tests.shapewright.conftest import Shapewright
from tuner.errors import InvalidInput
from tuner.storage import Job
from tuner.storage.sql import open_storage

Jobs = tuple[Job, ...]


@pytest.fixture(scope="module")
def service(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Jobs]]:
    """Two jobs of one workload and one of another, searched once; the address and a key of their service."""
    file = tmp_path_factory.mktemp("searched") / "tuning.db"
    shutil.copy(sqlite_template, file)
    storage = open_storage(f"sqlite:///{file}")
    other = {"op": "dense", "args": {"m": "8*T", "n": 64, "k": 32}}
    found = (
        searched(storage, budget={"trials": 8}),
        searched(storage, budget={"trials": 6}, seed=1, name="the other"),
        searched(storage, budget={"trials": 1}, workload=other),
    )
    with serving(storage) as url:
        yield url, storage.create_key("tests")[1], found
    storage.close()


@pytest.fixture
def jobs(service: tuple[str, str, Jobs], data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """The jobs, whose service is that of the environment."""
    url, key, found = service
    monkeypatch.setenv("SHAPEWRIGHT_URL", url)
    monkeypatch.setenv("SHAPEWRIGHT_API_KEY", key)
    return found


@pytest.fixture
def job(jobs: Jobs) -> Job:
    return jobs[0]


def listed(shapewright: Shapewright, job: Job, *line: object) -> Sequence[dict[str, Any]]:
    rows: list[dict[str, Any]] = shapewright("trials", job.id, *line, "--json").json
    return rows


def test_trials_are_listed_in_the_order_stored(shapewright: Shapewright, job: Job) -> None:
    rows = listed(shapewright, job)
    with Client() as client:
        assert [row["seq"] for row in rows] == [trial["seq"] for trial in client.trials(job.id)]
    assert len(rows) == job.trials
    assert {row["task"] for row in rows} == {0}
    ran = shapewright("trials", job.id, "--limit", 3)
    lines = ran.out.splitlines()
    assert lines[0].split()[:5] == ["TASK", "SEQ", "PHASE", "ROUND", "INSTANCE"]
    assert [line.split()[1] for line in lines[1:]] == [str(row["seq"]) for row in rows[-3:]]
    assert "the newest 3 trials" in ran.err
    assert shapewright("trials", job.id, "--limit", job.trials).err == ""


def test_trials_are_chosen_by_error_kernel_instance_and_phase(shapewright: Shapewright, job: Job) -> None:
    rows = listed(shapewright, job)
    kernel, shape = rows[-1]["kernel_id"], rows[-1]["instance"]["T"]

    def fitting(**fields: object) -> list[int]:
        return [row["seq"] for row in rows if all(row[name] == value for name, value in fields.items())]

    def seqs(*line: object) -> list[int]:
        return [row["seq"] for row in listed(shapewright, job, *line)]

    assert seqs("--error", "none") == fitting(error_kind=None)
    assert seqs("--error", "any") == [row["seq"] for row in rows if row["error_kind"]]
    assert seqs("--error", "build") == fitting(error_kind="build")
    assert seqs("--kernel", kernel[:8]) == fitting(kernel_id=kernel)
    assert seqs("--instance", f"T={shape}") == fitting(instance={"T": shape})
    assert seqs("--phase", "theory") == fitting(phase="theory") != []
    assert set(seqs("--phase", "theory", "--instance", f"T={shape}")) < set(fitting(phase="theory"))
    assert seqs("--task", 0) == [row["seq"] for row in rows]
    assert shapewright("trials", job.id, "--task", 7, "--json").code == 5
    assert shapewright("trials", job.id, "--csv", "--json").code == 2
    none = shapewright("trials", job.id, "--kernel", "zz")
    assert (none.code, none.out) == (0, "")
    assert "no trial fits" in none.err


def test_csv_has_a_column_for_each_axis_and_each_variable(shapewright: Shapewright, job: Job) -> None:
    rows = listed(shapewright, job)
    table = list(csv.DictReader(io.StringIO(shapewright("trials", job.id, "--csv").out)))
    assert [int(line["seq"]) for line in table] == [row["seq"] for row in rows]
    assert [line["shape_T"] for line in table] == [str(row["instance"]["T"]) for row in rows]
    assert [line["axis_m_tile"] for line in table] == [str(row["choices"]["m_tile"]) for row in rows]
    theory = list(csv.DictReader(io.StringIO(shapewright("trials", job.id, "--csv", "--phase", "theory").out)))
    assert {line["phase"] for line in theory} == {"theory"}


def test_csv_is_of_one_search_task(shapewright: Shapewright, bed: Bed) -> None:
    job, _ = bed.storage.create_job(many_tasks())
    several = shapewright("trials", job.id, "--csv")
    assert several.code == 2
    assert "--task" in several.err
    one = shapewright("trials", job.id, "--csv", "--task", 1)
    assert (one.code, one.out.count("\n")) == (0, 1), "the header alone"
    assert shapewright("trials", job.id, "--json").json == []


def test_a_data_frame_has_the_columns_of_the_csv(shapewright: Shapewright, job: Job) -> None:
    header = shapewright("trials", job.id, "--csv").out.splitlines()[0].split(",")
    with Client() as client:
        frame = client.trials_dataframe(job.id)
        assert ["seq", *frame.columns] == header
        assert frame.index.is_unique
        assert len(frame) == job.trials
        assert frame.groupby("shape_T").latency_s.min().gt(0).all()
        file = b"".join(client.trials_file(job.id, phase="theory"))
        assert file.count(b"\r\n") == 1 + len(frame[frame.phase == "theory"])

    async def awaited() -> bool:
        async with AsyncClient() as client:
            return bool((await client.trials_dataframe(job.id)).equals(frame))

    assert asyncio.run(awaited())


def test_without_pandas_a_data_frame_says_what_to_install(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with Client() as client, pytest.raises(InvalidInput, match=r"pandas is not installed.*pip install pandas"):
        client.trials_dataframe("job-1")


# -- compare ----------------------------------------------------------------------------------------------------------
def test_jobs_are_compared_by_shape(shapewright: Shapewright, jobs: Jobs) -> None:
    job, other, unlike = jobs
    document = shapewright("compare", job.id, other.id[-8:], "latest", "--json").json
    assert [each["id"] for each in document["jobs"]] == [job.id, other.id, unlike.id]
    with Client() as client:
        assert client.compare([job.id, other.id, unlike.id]) == document

    text = shapewright("compare", job.id, other.id, unlike.id).out
    for each in (job, other, unlike):
        assert each.id in text
    lines = text.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("T=")] == ["T=1", "T=7", "T=20", "T=32"]
    shapes = document["pairings"][0]["shapes"]
    for line, shape in zip([line for line in lines if line.startswith("T=")], shapes, strict=True):
        known = shape["jobs"][1]["ratio"] is not None
        assert (("x (" in line) != ("equal (" in line)) == known
    assert any(shape["jobs"][1]["ratio"] for shape in shapes)
    assert "no other job has this workload" in text
    assert document["method"] in text


@pytest.mark.parametrize(("ids", "code"), [((), 2), (("latest",), 2), (("latest", "job-none"), 5)])
def test_what_cannot_be_compared_is_refused(
    shapewright: Shapewright, job: Job, ids: tuple[str, ...], code: int
) -> None:
    ran = shapewright("compare", *ids, "--json")
    assert ran.code == code
    assert ran.error["message"]
