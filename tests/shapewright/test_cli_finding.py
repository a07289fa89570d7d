"""Jobs by other names than their ids, and what a shell completes."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from shapewright.cli import finding
from shapewright.cli.main import cli
from shapewright.client_jobs import CANDIDATES, SHORTEST_END
from tests.serving import lease
from tests.shapewright.answering import answering
from tests.shapewright.cli_bed import Bed, complete
from tests.shapewright.conftest import Shapewright
from tuner.program.job.jobspec import parse_job

JOB = {
    "name": "small",
    "workload": {"op": "dense", "args": {"m": "16*T", "n": 64, "k": 32}},
    "shape_vars": {"T": {"min": 1, "max": 16}},
    "budget": {"trials": 4},
}


def submitted(bed: Bed, name: str = "small") -> str:
    return bed.storage.create_job(parse_job(JOB | {"name": name}).on(bed.storage.list_devices()[0].target))[0].id


def offered(*line: str) -> list[str]:
    """What completes the last word of a command line."""
    *args, incomplete = line
    return [item.value for item in ShellComplete(cli, {}, "shapewright", "").get_completions(args, incomplete)]


def test_the_newest_job_is_called_latest(shapewright: Shapewright, bed: Bed, tmp_path: Path) -> None:
    none = shapewright("show", "latest", "--json")
    assert (none.code, none.error["problem"]) == (5, "no job has been submitted yet")
    submitted(bed)
    newest = submitted(bed)
    assert shapewright("show", "latest", "--json").json["id"] == newest
    assert shapewright("cancel", "latest", "--json").json["id"] == newest
    assert shapewright("resume", "latest", "--json").json["state"] == "WAITING"
    assert shapewright("watch", "latest", "--timeout", 0.2, "--json").json["job_id"] == newest
    assert shapewright("report", "latest", "-o", tmp_path / "page.html", "--json").json["job_id"] == newest


def test_a_beginning_or_an_end_of_an_id_is_enough(shapewright: Shapewright, bed: Bed) -> None:
    first, second = submitted(bed, "first"), submitted(bed, "second")
    for name in (first[:-1], first.removeprefix("job-")[:-1], first[-8:], first):
        assert shapewright("show", name, "--json").json["id"] == first
    shared = next(at for at in range(len(first)) if first[at] != second[at])
    several = shapewright("show", first[:shared], "--json")
    assert (several.code, several.error["field"]) == (2, "job_id")
    for job_id, name in ((first, "first"), (second, "second")):
        assert f"{job_id} (WAITING, {name})" in several.error["message"]
    for name in ("job-none", first[-SHORTEST_END + 1 :] + "zz", "f" * 19):
        missing = shapewright("show", name, "--json")
        assert missing.code == 5
        assert "`shapewright jobs` lists them" in missing.error["message"]


def test_the_candidates_of_a_refusal_are_few(shapewright: Shapewright, bed: Bed) -> None:
    ids = [submitted(bed) for _ in range(CANDIDATES + 2)]
    told = shapewright("show", "job-", "--json").error["message"]
    assert sum(job_id in told for job_id in ids) == CANDIDATES
    assert told.rstrip(")").endswith("and 2 more")


def test_a_job_of_an_option_may_be_the_latest(shapewright: Shapewright, bed: Bed, tmp_path: Path) -> None:
    job_id = submitted(bed)
    held = lease(bed.storage)
    digest = complete(bed.storage, held)
    key = held.tasks[0].workload_key
    assert shapewright("pull", key, "--job", "latest", "-o", tmp_path / "a", "--json").json["digest"] == digest
    assert shapewright("pull", "latest", "-o", tmp_path / "b", "--json").json["job_id"] == job_id
    assert shapewright("best", key, "--shape", "m=16", "--job", "latest", "--json").json["job_id"] in (job_id, None)


COMMANDS = (
    *(("show", "JOB"), ("watch", "JOB"), ("cancel", "JOB"), ("resume", "JOB"), ("trials", "JOB"), ("logs", "JOB")),
    *(
        ("compare", "JOB", "job-0123456789abcdef013"),
        ("pull", "JOB", "-o", "x"),
        ("report", "JOB", "-o", "x"),
    ),
    *(("best", "wl-1", "--shape", "m=1", "--job", "JOB"), ("pull", "wl-1", "-o", "x", "--job", "JOB")),
)


def test_every_command_that_takes_a_job_has_the_exit_codes_of_the_contract(
    shapewright: Shapewright, bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cases = (
        ("job-none", (), 5),
        ("job-0123456789abcdef012", (), 5),
        ("latest", (), 5),
        ("a/b", (), 2),
        ("latest", ("--key", "wrong"), 4),
        ("latest", ("--url", "http://127.0.0.1:1"), 3),
    )
    for line, (job, more, code) in itertools.product(COMMANDS, cases):
        ran = shapewright(*(job if part == "JOB" else part for part in line), *more, "--json")
        assert (ran.code, ran.error["exit_code"]) == (code, code), (line, job, more, ran.out)


def test_jobs_are_searched_by_words(shapewright: Shapewright, bed: Bed) -> None:
    wanted = submitted(bed, "bert layer")
    submitted(bed, "another")
    assert [job["id"] for job in shapewright("jobs", "--search", "bert", "--json").json] == [wanted]


# -- completion -------------------------------------------------------------------------------------------------------
def test_a_shell_completes_ids_keys_and_digests(bed: Bed, tmp_path: Path) -> None:
    job_id = submitted(bed)
    held = lease(bed.storage)
    digest, key = complete(bed.storage, held), held.tasks[0].workload_key
    bed.storage.create_key("other")
    assert offered("show", "job") == [job_id]
    assert offered("show", "") == ["latest", job_id]
    assert offered("history", key[:3])[0] == key
    assert offered("pull", key, "--digest", "") == [digest[:12]]
    assert offered("promote", key, "--digest", digest[:2]) == [digest[:12]]
    assert offered("promote", key, "--digest", "zz") == []
    job_file = tmp_path / "job.json"
    job_file.write_text(json.dumps(JOB))
    assert offered("pull", str(job_file), "--digest", "") == [digest[:12]]
    assert offered("pull", key, "--alias", "") == []


def test_a_shell_waits_for_nobody(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "COMPLETION_S", 0.2)
    monkeypatch.setenv("SHAPEWRIGHT_URL", "http://127.0.0.1:1")
    assert offered("show", "") == []
    ended = threading.Event()

    def silent() -> Iterator[bytes]:
        ended.wait(10.0)
        yield b""

    with answering(silent) as url:
        monkeypatch.setenv("SHAPEWRIGHT_URL", url)
        assert offered("show", "") == []
        assert not ended.is_set()
        ended.set()
