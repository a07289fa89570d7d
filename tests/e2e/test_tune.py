from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

import shapewright as sw
from shapewright.cli.main import run
from tests.e2e.conftest import COMMAND_S, JOB, STOP_S, environment, until
from tests.searching import in_symbols
from tuner.program.job.jobspec import parse_job
from tuner.program.target import native
from tuner.records import MeasureResult
from tuner.schedule import space_of
from tuner.storage import JobState, StorageUnavailable
from tuner.storage.jsonl import SharedRecord, write_records
from tuner.storage.sql import open_storage

WHEN = "2026-11-27T12:00:00.000000Z"


def tuning(job: Path, directory: Path, *options: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "shapewright", "tune", str(job), "-o", str(directory), "--json", *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        line, env=environment(directory), stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def records(directory: Path) -> int:
    """How many trials the directory's database holds; 0 while there is none."""
    if not (directory / "tuning.db").exists():
        return 0
    storage = open_storage(f"sqlite:///{directory / 'tuning.db'}")
    try:
        return storage.pulse().records
    except StorageUnavailable:
        return 0
    finally:
        storage.close()


def failures(directory: Path) -> list[str]:
    storage = open_storage(f"sqlite:///{directory / 'tuning.db'}")
    (job,) = storage.list_jobs().items
    result = [record.result.error for record in storage.list_trials(job.id) if not record.result.ok]
    storage.close()
    return result


def interrupted(process: subprocess.Popen[str], times: int) -> tuple[str, str]:
    """Interrupt as a terminal does, the whole group of processes, ``times`` in a row; what it had to say."""
    for _ in range(times):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.05)
    out, err = process.communicate(timeout=STOP_S)
    assert process.returncode == 130, out + err
    assert "Traceback" not in err
    return out, err


def state(directory: Path) -> JobState:
    storage = open_storage(f"sqlite:///{directory / 'tuning.db'}")
    try:
        (job,) = storage.list_jobs().items
        return job.state
    finally:
        storage.close()


@pytest.mark.soak
def test_however_often_a_tune_is_interrupted_its_job_goes_on(tmp_path: Path) -> None:
    job, directory = tmp_path / "job.yaml", tmp_path / "out"
    job.write_text(JOB.replace("trials: 8", "trials: 5000"))
    for times in (2, 4):
        known = records(directory)
        process = tuning(job, directory)
        until(partial(_more_than, known, directory))
        interrupted(process, times)
        assert state(directory) is JobState.WAITING
        assert failures(directory) == []


def _more_than(known: int, directory: Path) -> bool:
    return records(directory) > known


@pytest.mark.soak
def test_an_interruption_before_the_search_leaves_a_job_that_goes_on(tmp_path: Path) -> None:
    job, directory = tmp_path / "job.yaml", tmp_path / "out"
    job.write_text(JOB)
    process = tuning(job, directory)
    until(lambda: bool(psutil.Process(process.pid).children()))
    interrupted(process, times=2)
    assert state(directory) is JobState.WAITING


@pytest.mark.soak
def test_an_interrupted_tune_leaves_no_process_and_goes_on_where_it_was(tmp_path: Path) -> None:
    job, directory = tmp_path / "job.yaml", tmp_path / "out"
    job.write_text(JOB.replace("trials: 8", "trials: 16"))
    first = tuning(job, directory)
    until(lambda: records(directory) > 0)
    children = psutil.Process(first.pid).children(recursive=True)
    assert children
    out, err = interrupted(first, times=1)
    assert json.loads(out)["error"]["kind"] == "interrupted"
    until(lambda: not any(child.is_running() and child.status() != "zombie" for child in children))
    known = records(directory)
    assert failures(directory) == [], "no candidate is blamed for the interruption"
    second = tuning(job, directory)
    out, err = second.communicate(timeout=150)
    assert second.returncode == 0, err
    done = json.loads(out)
    assert f"resuming job {done['job_id']} with {known} recorded trials" in err
    assert known <= done["trials"] <= 16
    assert records(directory) == done["trials"]
    (library,) = done["libraries"]
    manifest = json.loads((directory / "manifest.json").read_text())
    assert manifest["digest"] == library["digest"]
    assert (directory / "library.so").stat().st_size > 0


def test_a_library_is_chosen_by_what_was_measured_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing is measured here: where the records have no time of the job, theory does not choose instead."""
    job, measured = tmp_path / "job.yaml", tmp_path / "records.jsonl"
    job.write_text(JOB)
    task = parse_job(yaml.safe_load(JOB)).on(native()).tasks[0]
    space = space_of(task)
    best, *others = dict.fromkeys(space.sample(np.random.default_rng(seed)) for seed in range(8))
    times = {best: 1e-6} | dict.fromkeys(others, 1e-3)
    results = [MeasureResult(kernel, at, time_s) for kernel, time_s in times.items() for at in task.instances]
    known = in_symbols(results, task, created_at=WHEN)
    shared = [SharedRecord(task.workload.canonical, task.known_target, each) for each in known]
    measured.write_text("".join(write_records(shared)))
    process = tuning(job, tmp_path / "out", "--measured", str(measured))
    out, err = process.communicate(timeout=COMMAND_S)
    assert process.returncode == 0, out + err
    assert f"by {len(known)} earlier measurements" in err
    ended = json.loads(out)
    assert ended["trials"] == 0
    assert sw.load(tmp_path / "out").kernel_for(T=7).id == best.id
    other = tmp_path / "other.yaml"
    # Sizes that were not measured; another number of threads.
    other.write_text(JOB.replace("max: 16", "max: 40").replace("[{T: 1}, {T: 5}, {T: 16}]", "[{T: 33}, {T: 40}]"))
    other.write_text(other.read_text().replace("min: 1", "min: 33"))
    monkeypatch.setenv("SHAPEWRIGHT_DATA_DIR", str(tmp_path))
    for line in ((other,), (job, "--threads", "2")):
        options = ("-o", tmp_path / "other", "--json", "--measured", measured)
        code = run(["tune", *map(str, (*line, *options))])
        assert (code, json.loads(capsys.readouterr().out)["error"]["field"]) == (2, "--measured")
        assert not (tmp_path / "other" / "tuning.db").exists()
