"""`submit`, `jobs`, `show`, `watch`, `cancel`, `resume`, `best`, `pull`, `devices` against a real service."""

from __future__ import annotations

import errno
import json
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from numpy.random import default_rng

from shapewright.cli.describe import described
from tests.serving import lease, small_dispatcher
from tests.shapewright.cli_bed import Bed, complete
from tests.shapewright.conftest import Shapewright
from tuner.program.language.workload import WorkloadInstance
from tuner.records import MeasureResult
from tuner.schedule import default_kernel, space_of
from tuner.storage import JobState, NewEvent


def test_submit_tells_the_job_its_state_and_its_workloads(shapewright: Shapewright, bed: Bed, job_file: Path) -> None:
    ran = shapewright("submit", job_file, "--json")
    assert ran.code == 0
    assert set(ran.json) == {"job_id", "state", "workload_keys", "page"}
    assert ran.json["page"] == f"{bed.url}/jobs/{ran.json['job_id']}"
    assert ran.json["state"] == "WAITING"
    assert bed.storage.get_job(ran.json["job_id"]).name == "small"
    (task,) = bed.storage.search_tasks(ran.json["job_id"])
    assert ran.json["workload_keys"] == [task.workload_key]


def test_submit_tells_people_the_page_and_what_to_type_next(shapewright: Shapewright, bed: Bed, job_file: Path) -> None:
    lines = shapewright("submit", job_file).out.splitlines()
    (job,) = bed.storage.list_jobs().items
    (task,) = bed.storage.search_tasks(job.id)
    assert [line.split(maxsplit=1) for line in lines] == [
        [job.id, "WAITING"],
        ["page", f"{bed.url}/jobs/{job.id}"],
        ["watch", f"shapewright watch {job.id}"],
        ["result", f"shapewright show {job.id}"],
        ["pull", f"shapewright pull {task.workload_key} --job {job.id} -o library"],
    ]


def test_several_workloads_have_a_row_each_and_a_total(shapewright: Shapewright, bed: Bed, job_file: Path) -> None:
    document = yaml.safe_load(job_file.read_text())
    first = document.pop("workload")
    other = {"op": "dense", "args": {"m": "16*T", "n": 96, "k": 32}}
    job_file.write_text(yaml.safe_dump(document | {"workloads": [{**first, "count": 3}, other]}))
    shapewright("submit", job_file)
    held = lease(bed.storage)
    summaries = [
        {"trials": 3, "trials_budget": 3, "objective_s": 1e-3, "default_objective_s": 2e-3, "speedup_vs_default": 2.0},
        {"trials": 1, "trials_budget": 1, "objective_s": 3e-3, "default_objective_s": 3e-3, "speedup_vs_default": 1.0},
    ]
    summaries[0] |= {"library_objective_s": 1.25e-3}
    for position, summary in enumerate(summaries):
        bed.storage.append_events(held, [NewEvent("progress", summary | {"position": position, "phase": "done"})])
    stored = {"tasks": {str(position): summary for position, summary in enumerate(summaries)}}
    bed.storage.finish_job(held, JobState.COMPLETED, summary=stored)
    # (3 * 2 + 3) / (3 * 1.25 + 3) ms.
    for command in ("show", "watch"):
        lines = shapewright(command, held.job.id).out.splitlines()
        rows = {line.split()[0]: line for line in lines[-3:]}
        assert "1.60x" in rows["0"] and "library, timed at the end" in rows["0"]
        assert "1.00x" in rows["1"] and "best so far in the search" in rows["1"]
        assert rows["total"].split()[:6] == ["total", "of", "all,", "by", "count", "4"]
        assert "6.75 ms" in rows["total"] and "1.33x" in rows["total"]


def test_the_same_idempotency_key_gives_the_same_job(shapewright: Shapewright, bed: Bed, job_file: Path) -> None:
    first = shapewright("submit", job_file, "--idempotency-key", "k1", "--json").json
    assert shapewright("submit", job_file, "--idempotency-key", "k1", "--json").json == first
    job_file.write_text(job_file.read_text().replace("small", "other"))
    refused = shapewright("submit", job_file, "--idempotency-key", "k1", "--json")
    assert refused.code == 2
    assert refused.error["field"] == "Idempotency-Key"


def test_submit_wait_shows_progress_on_stderr_and_one_document_on_stdout(
    shapewright: Shapewright, bed: Bed, job_file: Path
) -> None:
    worker = threading.Thread(target=_work_off_one_job, args=(bed,))
    worker.start()
    ran = shapewright("submit", job_file, "--wait", "--timeout", 30, "--json")
    worker.join()
    assert ran.code == 0
    assert ran.json["state"] == "COMPLETED"
    assert ran.json["summary"] == {"speedup_vs_default": 1.5}
    assert "1.50x over the default" in ran.err
    assert "4/4 trials" in ran.err


def test_a_wait_that_takes_too_long_ends_with_6_and_leaves_the_job(
    shapewright: Shapewright, bed: Bed, job_file: Path
) -> None:
    ran = shapewright("submit", job_file, "--wait", "--timeout", 0.3, "--json")
    assert ran.code == 6
    (job,) = bed.storage.list_jobs().items
    assert job.state is JobState.WAITING
    assert f"{job.id} continues: shapewright watch {job.id}" in ran.error["message"]
    keys = [task.workload_key for task in bed.storage.search_tasks(job.id)]
    assert {name: ran.json[name] for name in ("job_id", "state", "workload_keys")} == {
        "job_id": job.id,
        "state": "WAITING",
        "workload_keys": keys,
    }
    watched = shapewright("watch", job.id, "--timeout", 0.3)
    assert watched.code == 6
    assert f"shapewright: not done after 0.3 s; {job.id} continues: shapewright watch {job.id}" in watched.err


def test_a_service_that_is_lost_leaves_the_job_in_the_document(
    shapewright: Shapewright, bed: Bed, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shapewright.client import Client  # noqa: PLC0415
    from shapewright.errors import ServiceUnreachable  # noqa: PLC0415

    def lost(*_: object) -> object:
        raise ServiceUnreachable("no service answers")

    monkeypatch.setattr(Client, "events", lost)
    ran = shapewright("submit", job_file, "--wait", "--json")
    (job,) = bed.storage.list_jobs().items
    assert ran.code == 3
    assert (ran.json["job_id"], ran.json["state"]) == (job.id, "WAITING")
    assert ran.json["workload_keys"]
    assert f"no service answers; {job.id} continues: shapewright watch {job.id}" in ran.error["message"]


@pytest.mark.parametrize("seconds", ["nan", "inf", "-inf", "-1", "0", "1e300"])
def test_a_timeout_that_is_none_is_refused_before_anything_is_submitted(
    shapewright: Shapewright, bed: Bed, job_file: Path, seconds: str
) -> None:
    ran = shapewright("submit", job_file, "--wait", f"--timeout={seconds}", "--json")
    assert (ran.code, ran.error["field"]) == (2, "--timeout")
    assert bed.storage.list_jobs().items == ()


def test_a_watch_begins_with_how_the_job_stands_now(shapewright: Shapewright, bed: Bed, job_file: Path) -> None:
    job_id = shapewright("submit", job_file, "--json").json["job_id"]
    bed.storage.finish_job(lease(bed.storage), JobState.FAILED, error="the device burnt down")
    shapewright("resume", job_id)
    ran = shapewright("watch", job_id, "--timeout", 1)
    shown, said = ran.err.splitlines()
    assert shown == f"{job_id}  WAITING"
    assert "continues" in said
    held = lease(bed.storage)
    complete(bed.storage, held)
    assert shapewright("watch", job_id).err.count("\n") == 1


def test_a_job_that_failed_ends_its_watch_with_1_and_the_reason(
    shapewright: Shapewright, bed: Bed, job_file: Path
) -> None:
    job_id = shapewright("submit", job_file, "--json").json["job_id"]
    bed.storage.finish_job(lease(bed.storage), JobState.FAILED, error="the device burnt down")
    ran = shapewright("watch", job_id, "--json")
    assert ran.code == 1
    assert "the device burnt down" in ran.error["message"]
    assert ran.json["state"] == "FAILED"


def test_on_a_terminal_the_progress_is_a_panel(shapewright: Shapewright, bed: Bed, job_file: Path) -> None:
    job_id = shapewright("submit", job_file, "--json").json["job_id"]
    complete(bed.storage, lease(bed.storage))
    terminal, side = pty.openpty()
    line = [sys.executable, "-m", "shapewright", "watch", job_id, "--json"]
    watching = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=side, env={**os.environ, "TERM": "xterm"})
    os.close(side)
    shown = _read_terminal(terminal)
    out, _ = watching.communicate(timeout=60)
    assert json.loads(out)["state"] == "COMPLETED"
    for part in ("small", "COMPLETED", "4/4 trials", "1.50x over the default", "╭"):
        assert part in shown


def test_cancel_and_resume(shapewright: Shapewright, bed: Bed, job_file: Path) -> None:
    job_id = shapewright("submit", job_file, "--json").json["job_id"]
    assert shapewright("cancel", job_id, "--json").json["state"] == "CANCELLED"
    assert shapewright("watch", job_id).code == 1
    again = shapewright("cancel", job_id, "--json")
    assert again.code == 2
    assert "CANCELLED" in again.error["message"]
    assert shapewright("resume", job_id, "--json").json["state"] == "WAITING"


def test_jobs_lists_by_state_and_show_tells_everything(shapewright: Shapewright, bed: Bed, job_file: Path) -> None:
    job_id = shapewright("submit", job_file, "--json").json["job_id"]
    assert [job["id"] for job in shapewright("jobs", "--state", "WAITING", "--json").json] == [job_id]
    assert shapewright("jobs", "--state", "FAILED", "--json").json == []
    assert job_id in shapewright("jobs").out
    shown = shapewright("show", job_id, "--json").json
    assert shown["spec"]["name"] == "small"
    assert len(shown["tasks"]) == 1
    text = shapewright("show", job_id).out
    assert "dense(m=16*T, n=64, k=32)" in text
    assert "caches" not in text
    job_file.write_text(job_file.read_text() + "\ncache: cold\n")
    cold = shapewright("submit", job_file, "--json").json["job_id"]
    assert any(line.split() == ["caches", "cold"] for line in shapewright("show", cold).out.splitlines())


def test_show_is_for_people(shapewright: Shapewright, bed: Bed, job_file: Path) -> None:
    shapewright("submit", job_file)
    held = lease(bed.storage)
    complete(bed.storage, held)
    figures = {"objective_s": 2.091e-6, "elapsed_s": 14.24, "speedup_vs_default": 1.0312, "failed": 1}
    text = described(shapewright("show", held.job.id, "--json").json | {"trials": 4, "summary": figures})
    lines = text.splitlines()
    columns = {line.split("  ")[0]: line for line in lines[: lines.index("")]}
    assert len({len(line) - len(line.split("  ", 1)[1].lstrip()) for line in columns.values()}) == 1, "one margin"
    assert columns["trials"].endswith("  4 of 4 (1 failed)")
    assert columns["objective"].endswith("  2.09 µs")
    assert columns["elapsed"].endswith("  14.2 s")
    assert columns["speed-up"].endswith("  1.03x over the default (best so far in the search)")
    assert lines[-1].endswith("  yes")


def test_best_takes_a_job_file_or_a_key(shapewright: Shapewright, bed: Bed, job_file: Path) -> None:
    key = shapewright("submit", job_file, "--json").json["workload_keys"][0]
    before = shapewright("best", key, "--shape", "T=7", "--json").json
    assert before["match"] == "default"
    complete(bed.storage, lease(bed.storage))
    result = shapewright("best", job_file, "--shape", "T=7", "--json")
    assert result.code == 0
    assert result.json["match"] == "dispatched"
    assert {"match", "kernel", "latency_s", "predicted_latency_s"} <= set(result.json)
    assert shapewright("best", key, "--shape", "T=7", "--json").json == result.json
    assert before["served_by"] is None
    assert result.json["served_by"] == result.json["kernel"]
    assert "served" not in shapewright("best", key, "--shape", "T=7").out
    wrong = shapewright("best", key, "--shape", "S=7", "--json")
    assert (wrong.code, wrong.error["field"]) == (2, "shape")


def test_best_tells_which_kernel_the_library_runs_instead(shapewright: Shapewright, bed: Bed, job_file: Path) -> None:
    shapewright("submit", job_file)
    held = lease(bed.storage)
    task = held.tasks[0].task
    kernel = space_of(task).mutate(default_kernel(task), default_rng(7))
    result = MeasureResult(kernel, WorkloadInstance.of({"T": 7}), latency_s=1e-6)
    bed.storage.append_results(held, held.tasks[0].id, [result])
    complete(bed.storage, held)
    results = shapewright("best", job_file, "--shape", "T=7", "--json").json
    assert (results["match"], results["kernel"]["id"]) == ("exact", kernel.id)
    served = small_dispatcher(task).kernel_for({"T": 7})
    assert served.id == results["served_by"]["id"] != kernel.id
    # It said "measured 23.6 us, predicted 113 us, the library runs another": of two kernels.
    assert (results["latency_s"], results["predicted_latency_s"], results["served_latency_s"]) == (1e-6, None, None)
    assert results["served_predicted_latency_s"] > 0
    best, served_line = shapewright("best", job_file, "--shape", "T=7").out.strip().splitlines()
    assert best.startswith(f"exact  {results['kernel']['name']}  measured 1.00 µs  by ")
    assert served_line.startswith(f"served  {results['served_by']['name']}  not measured  predicted ")
    assert str(results["digest"])[:12] in served_line


def test_pull_writes_the_library_of_the_newest_or_of_one_job(
    shapewright: Shapewright, bed: Bed, job_file: Path, tmp_path: Path
) -> None:
    shapewright("submit", job_file)
    held = lease(bed.storage)
    digest = complete(bed.storage, held)
    directory = tmp_path / "library"
    pulled = shapewright("pull", job_file, "-o", directory, "--job", held.job.id, "--digest", digest, "--json")
    assert pulled.code == 0
    assert pulled.json["digest"] == digest
    assert pulled.json["directory"] == str(directory)
    assert {path.name for path in directory.iterdir()} == set(pulled.json["files"]) | {"manifest.json"}
    assert json.loads((directory / "manifest.json").read_text())["job_id"] == held.job.id
    missing = shapewright("pull", job_file, "-o", tmp_path / "other", "--digest", "0" * 64, "--json")
    assert missing.code == 5
    assert not (tmp_path / "other").exists()
    (tmp_path / "file").touch()
    nowhere = tmp_path / "file" / "library"
    refused = shapewright("pull", job_file, "-o", nowhere, "--json")
    assert (refused.code, refused.error["field"]) == (2, "--output")
    assert f"cannot write to the directory {nowhere}: " in refused.error["message"]


def test_devices_lists_what_registered(shapewright: Shapewright, bed: Bed) -> None:
    (device,) = shapewright("devices", "--json").json
    assert (device["id"], device["key"]) == ("local-0", "local")
    assert "local-0" in shapewright("devices").out


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (["show", "no-such-job"], 5, "no-such-job"),
        (["watch", "no-such-job"], 5, "no-such-job"),
        (["cancel", "no-such-job"], 5, "no-such-job"),
        (["best", "dense-0000000000000000", "--shape", "T=1"], 5, "dense-0000000000000000"),
        (["pull", "dense-0000000000000000", "-o", "nowhere"], 5, "dense-0000000000000000"),
        (["jobs", "--key", "wrong"], 4, "API key"),
        (["jobs", "--url", "http://127.0.0.1:9"], 3, "shapewright up"),
        (["jobs", "--url", "no url"], 2, "http://127.0.0.1:8321"),
        (["jobs", "--state", "SLEEPING"], 2, "WAITING"),
        (["best", "no-such.yaml", "--shape", "T=1"], 2, "no-such.yaml"),
        (["submit", "no-such.yaml"], 2, "no-such.yaml"),
        (["submit"], 2, "JOB.yaml"),
        (["nothing-like-that"], 2, "nothing-like-that"),
    ],
)
def test_errors_have_a_code_and_a_message_and_no_traceback(
    shapewright: Shapewright, bed: Bed, line: list[str], code: int, says: str
) -> None:
    ran = shapewright(*line)
    assert ran.code == code
    assert says in ran.err
    assert ran.err.count("\n") == 1, "one line"
    assert ran.out == ""
    as_json = shapewright(*line, "--json")
    assert as_json.code == code
    assert says in as_json.error["message"]
    assert as_json.err == ""


def test_a_refused_job_names_the_field_the_problem_and_the_remedy(
    shapewright: Shapewright, bed: Bed, job_file: Path
) -> None:
    job_file.write_text(job_file.read_text().replace("16*T", "16*S"))
    ran = shapewright("submit", job_file, "--json")
    assert ran.code == 2
    assert ran.error["field"] == "workload.args.m"
    assert ran.error["problem"]
    assert ran.error["remedy"]
    assert bed.storage.list_jobs().items == ()


@pytest.mark.parametrize("command", ["show", "watch", "cancel", "resume"])
def test_a_job_that_is_not_there_comes_with_where_they_are_listed(
    shapewright: Shapewright, bed: Bed, command: str
) -> None:
    error = shapewright(command, "nope", "--json").error
    assert error["field"] == "job_id"
    assert "`shapewright jobs`" in error["remedy"]
    assert "`shapewright jobs` lists them" in error["message"]


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (["jobs", "--limit", "none"], "--limit"),
        (["best", "dense-0"], "--shape"),
        (["pull", "dense-0", "-o", ""], "--output"),
        (["jobs", "--no-such"], "--no-such"),
        (["submit"], "job"),
    ],
)
def test_a_usage_error_names_its_option(shapewright: Shapewright, line: list[str], field: str) -> None:
    ran = shapewright(*line, "--json")
    assert (ran.code, ran.error["field"]) == (2, field)


def test_a_missing_key_says_where_one_would_be(shapewright: Shapewright, bed: Bed) -> None:
    (bed.data_dir / "client.key").unlink()
    ran = shapewright("jobs", "--json")
    assert ran.code == 4
    assert str(bed.data_dir / "client.key") in ran.error["message"]
    for key in ([], ["--key", "wrong"]):
        message = shapewright("jobs", *key, "--json").error["message"]
        assert "--key" in message and "SHAPEWRIGHT_API_KEY" in message
        assert "Bearer" not in message


def _read_terminal(terminal: int) -> str:
    """What is shown until the other side is closed."""
    shown = b""
    with os.fdopen(terminal, "rb", buffering=0) as reader:
        try:
            while chunk := reader.read(4096):
                shown += chunk
        except OSError as error:
            assert error.errno == errno.EIO, "how Linux tells that a terminal is gone"
    return shown.decode()


def _work_off_one_job(bed: Bed) -> None:
    ready = threading.Event()
    while (held := bed.storage.lease_job("worker-1", 60.0)) is None:
        ready.wait(0.05)
    complete(bed.storage, held)
