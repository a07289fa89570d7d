"""`shapewright doctor`: what is well, what is wrong with its remedy, and the exit code."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import sqlite3
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest

from shapewright import doctor
from shapewright.doctor import State
from tests.shapewright.cli_bed import Bed, Ran
from tests.shapewright.conftest import Shapewright
from tuner import __version__
from tuner.storage.sql.migrate import head

Usage = namedtuple("Usage", "total used free")
QUICK = ("--seconds", 0.02)


def found(ran: Ran) -> dict[str, dict[str, str]]:
    return {each["name"]: each for each in ran.json["findings"]}


def test_a_machine_on_which_nothing_runs_yet_is_well(
    shapewright: Shapewright, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHAPEWRIGHT_URL", "")
    ran = shapewright("doctor", "--port", free_port, *QUICK, "--json")
    assert (ran.code, ran.json["good"]) == (0, True)
    names = ["versions", "cpu", "memory", "noise", "blas", "compiler", "disk", "data directory", "database", "service"]
    assert list(found(ran)) == [*names, "port"]
    assert f"shapewright {__version__}" in found(ran)["versions"]["says"]
    assert "there is none yet" in found(ran)["database"]["says"]
    assert f"{free_port} is free" in found(ran)["port"]["says"]
    assert all(each["remedy"] for each in found(ran).values() if each["state"] != State.OK)
    text = shapewright("doctor", "--port", free_port, *QUICK).out
    assert [line.split()[0] for line in text.splitlines() if not line.startswith(" ")][:1] == ["ok"]
    assert "nothing is wrong" in text


def test_a_service_its_devices_and_its_database_are_found(shapewright: Shapewright, bed: Bed) -> None:
    port = bed.url.rpartition(":")[2]
    ran = shapewright("doctor", "--port", port, *QUICK, "--json")
    assert ran.code == 0
    assert "devices of the keys local" in found(ran)["service"]["says"]
    assert "a Shapewright service listens there" in found(ran)["port"]["says"]
    assert head() in found(ran)["database"]["says"]


def test_what_is_wrong_is_said_with_its_remedy_and_the_code_is_1(
    shapewright: Shapewright, bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10, 10, 10))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(doctor, "ANSWER_S", 0.1)
    with sqlite3.connect(bed.data_dir / "tuning.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '0001'")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = shapewright("doctor", "--port", port, "--key", "wrong", *QUICK, "--json")
    assert (ran.code, ran.json["good"]) == (1, False)
    wrong = {name: each["remedy"] for name, each in found(ran).items() if each["state"] == State.PROBLEM}
    assert set(wrong) == {"disk", "compiler", "database", "service", "port"}
    assert wrong["database"] == "shapewright db upgrade"
    assert "keys create" in wrong["service"]
    assert "--port" in wrong["port"]
    assert ran.error["message"] == "wrong: compiler, disk, database, service, port"
    assert ran.error["kind"] == "job_failed"


def test_a_service_that_was_named_and_is_away_is_a_problem(shapewright: Shapewright, data_dir: Path) -> None:
    ran = shapewright("doctor", "--url", "http://127.0.0.1:1", *QUICK, "--json")
    assert found(ran)["service"]["state"] == State.PROBLEM
    away = "postgresql://nobody@127.0.0.1:1/none"
    ran = shapewright("doctor", "--database-url", away, *QUICK, "--json")
    assert found(ran)["database"]["state"] == State.PROBLEM


def test_a_database_of_a_later_version_is_told_from_an_earlier_one(shapewright: Shapewright, bed: Bed) -> None:
    with sqlite3.connect(bed.data_dir / "tuning.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    finding = doctor.database(bed.database_url)
    assert (finding.state, "older than its database" in finding.remedy) == (State.PROBLEM, True)


def test_noise_and_limits_are_warnings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(doctor, "QUOTA", quota)
    quota.write_text("50000 100000\n")
    finding = doctor.noise(0.01)
    assert (finding.state, "a quota of 0.5 CPUs" in finding.says) == (State.WARNING, True)
    quota.write_text("max 100000\n")
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    assert doctor.noise(0.01).state is State.WARNING
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr(time, "process_time", lambda: 0.0)
    finding = doctor.noise(0.01)
    assert finding.state is State.WARNING
    assert "; disturbed by other work: this process had a core for 0 % of 0.01 s; load 0.0 on " in finding.says
    clock = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: 0.01 * next(clock))
    monkeypatch.setattr(time, "process_time", time.perf_counter)
    assert "; free of other work: this process had a core for " in doctor.noise(0.01).says


def test_a_hobbled_blas_is_told_with_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    from tuner import blas  # noqa: PLC0415 - as the look does

    slow = blas.Blas("openblas", "0.3", "Haswell", 1, "its Haswell kernels use no AVX-512, which this CPU has")
    monkeypatch.setattr(blas, "numpys_blas", lambda features: slow)
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    finding = doctor.blas()
    assert (finding.state, finding.remedy.startswith("unset OPENBLAS_CORETYPE")) == (State.WARNING, True)


def test_a_look_that_needs_what_is_not_installed_says_so(
    shapewright: Shapewright, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    finding = found(shapewright("doctor", *QUICK, "--json"))["blas"]
    assert finding["state"] == State.WARNING
    assert "this needs threadpoolctl, which is not installed" in finding["says"]
    assert finding["remedy"].startswith("pip install 'shapewright[tune]'")


@pytest.mark.parametrize(("mode", "state"), [(0o700, State.OK), (0o755, State.WARNING)])
def test_a_data_directory_that_is_open_to_others_is_a_warning(mode: int, state: State, tmp_path: Path) -> None:
    tmp_path.chmod(mode)
    assert doctor.data_directory(tmp_path).state is state
    (tmp_path / "file").touch()
    assert doctor.data_directory(tmp_path / "file").state is State.PROBLEM
