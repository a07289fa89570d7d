"""Commands that need no service, the database's commands, and the command line as a whole."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shapewright.conftest import Shapewright
from tuner.program.catalogue import OPS
from tuner.storage import Scope
from tuner.storage.sql import open_storage


def test_ops_lists_the_whole_catalogue(shapewright: Shapewright) -> None:
    rows = shapewright("ops", "--json").json
    assert [row["name"] for row in rows] == sorted(OPS)
    dense = next(row for row in rows if row["name"] == "dense")
    assert dense["args"] == ["m", "n", "k"]
    assert dense["layouts"] == ["x[m,k] w[n,k] -> out[m,n]"]
    assert dense["dtypes"] == ["bfloat16", "float16", "float32", "float64"]
    assert dense["program"] == "out[m, n] = sum(k) x[m, k] * w[n, k]"
    assert dense["constant"] == ["w"]
    batched = next(row for row in rows if row["name"] == "batch_matmul_nt")
    assert (batched["args"], batched["layouts"]) == (["b", "m", "n", "k"], ["x[b,m,k] y[b,n,k] -> out[b,m,n]"])
    assert dense["rule"] == "x86_contraction"
    assert "x86_contraction" in shapewright("ops").out


def test_explain_names_the_rule_why_and_the_space(shapewright: Shapewright, job_file: Path) -> None:
    (task,) = shapewright("explain", job_file, "--json").json["tasks"]
    assert task["rule"] == "x86_contraction"
    assert "contraction" in task["why"]
    sizes = [len(axis["choices"]) for axis in task["axes"]]
    product = 1
    for size in sizes:
        product *= size
    assert task["size"] == product > 1
    text = shapewright("explain", job_file).out
    assert text.startswith(f"x86_contraction takes {task['workload']}  ({task['workload_key']})\n")
    assert text.index("points before") < text.index("passed over:") < text.index("attention: ")
    assert f"{task['size']:,} points" in text
    assert "`" not in text
    assert all(axis["shown"] in text for axis in task["axes"])
    assert "caches" not in text
    job_file.write_text(job_file.read_text() + "cache: streamed\n")
    assert "timed with caches streamed" in shapewright("explain", job_file).out
    assert {axis["name"]: axis["shown"] for axis in task["axes"]}["mr"] == "m_tile"


def test_explain_refuses_a_wrong_job_with_its_field(shapewright: Shapewright, job_file: Path) -> None:
    job_file.write_text(job_file.read_text().replace("op: dense", "op: tense"))
    ran = shapewright("explain", job_file, "--json")
    assert ran.code == 2
    assert ran.error["field"] == "workload.op"
    assert "dense" in ran.error["remedy"]


def test_keys_are_created_listed_and_revoked(shapewright: Shapewright, data_dir: Path) -> None:
    before = shapewright("keys", "list", "--json")
    assert before.code == 3
    assert "shapewright db upgrade" in before.error["message"]
    assert shapewright("db", "upgrade", "--json").json["revision"]
    made = shapewright("keys", "create", "ci", "--json").json
    storage = open_storage(f"sqlite:///{data_dir / 'tuning.db'}")
    assert storage.find_key(made["secret"]) is not None
    listed = shapewright("keys", "list", "--json")
    assert [key["name"] for key in listed.json] == ["ci"]
    assert made["secret"] not in listed.out
    assert shapewright("keys", "revoke", made["id"]).code == 0
    assert storage.find_key(made["secret"]) is None
    storage.close()
    assert shapewright("keys", "revoke", "no-such-key").code == 5


def test_a_key_is_made_with_what_it_may_do(shapewright: Shapewright, data_dir: Path) -> None:
    assert shapewright("db", "upgrade").code == 0
    quotas = ("--quota", "open_jobs=5", "--quota", "trials=1000")
    made = shapewright(
        *("keys", "create", "ci", "--scope", "read", "--owner", "ada", "--expires-in", "90d", *quotas, "--json")
    ).json
    assert (made["scopes"], made["owner"]) == (["read"], "ada")
    assert made["quota"] == {"open_jobs": 5, "trials": 1000}
    assert made["expires_at"] > made["created_at"]
    assert made["webhook_secret"].startswith("whsec_")
    plain = shapewright("keys", "create", "plain", "--json").json
    assert (plain["scopes"], plain["owner"], plain["expires_at"], plain["quota"]) == (["submit"], plain["id"], None, {})
    listed = shapewright("keys", "list", "--json")
    assert [key["owner"] for key in listed.json] == ["ada", plain["id"]]
    assert "whsec_" not in listed.out
    storage = open_storage(f"sqlite:///{data_dir / 'tuning.db'}")
    assert {entry.actor.partition(" ")[0] for entry in storage.list_audit().items} == {"cli"}
    storage.close()


@pytest.mark.parametrize(
    ("option", "value", "field"),
    [
        ("--scope", "root", "scope"),
        ("--owner", "a\nb", "owner"),
        ("--expires-in", "soon", "expires-in"),
        ("--expires-in", "0s", "expires-in"),
        ("--expires-in", "999999999d", "expires-in"),
        ("--quota", "jobs=1", "quota"),
        ("--quota", "trials=-1", "quota"),
        ("--quota", "trials", "quota"),
    ],
)
def test_a_key_with_a_wrong_option_is_not_made(shapewright: Shapewright, option: str, value: str, field: str) -> None:
    assert shapewright("db", "upgrade").code == 0
    ran = shapewright("keys", "create", "ci", option, value, "--json")
    assert (ran.code, ran.error["field"]) == (2, field)
    assert shapewright("keys", "list", "--json").json == []


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        ("mysql://localhost/x", 2, "postgresql://"),
        ("no url at all", 2, "sqlite:///"),
        ("postgresql://127.0.0.1:9/none", 3, "server runs"),
        ("sqlite:////no/such/directory/x.db", 3, "/no/such/directory"),
    ],
)
def test_a_database_that_is_not_there_is_named(shapewright: Shapewright, url: str, code: int, says: str) -> None:
    ran = shapewright("db", "upgrade", "--database-url", url, "--json")
    assert ran.code == code
    assert says in ran.error["message"]


def test_a_data_directory_that_is_none_is_named(shapewright: Shapewright, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = shapewright("db", "upgrade", "--data-dir", tmp_path / "file" / "below", "--json")
    assert ran.code == 2
    assert str(tmp_path / "file" / "below") in ran.error["message"]
    assert "--data-dir" in ran.error["message"]


@pytest.mark.parametrize("line", [["worker"], ["device", "serve"]])
def test_a_wrong_tracker_address_is_refused(shapewright: Shapewright, line: list[str]) -> None:
    ran = shapewright(*line, "--tracker", "nowhere")
    assert ran.code == 2
    assert "127.0.0.1:9190" in ran.err


def test_serve_says_when_its_port_is_in_use(shapewright: Shapewright, bed: object) -> None:
    port = os.environ["SHAPEWRIGHT_URL"].rpartition(":")[2]
    ran = shapewright("serve", "--port", port, "--json")
    assert ran.code == 2
    assert port in ran.error["message"]
    assert "--port" in ran.error["message"]


def test_an_error_that_nobody_foresaw_is_a_message_too(
    shapewright: Shapewright, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shapewright.cli.options.read_job", lambda path: 1 / 0)
    monkeypatch.delenv("SHAPEWRIGHT_DEBUG", raising=False)
    ran = shapewright("explain", job_file)
    assert ran.code == 70
    assert "ZeroDivisionError" in ran.err
    assert "Traceback" not in ran.err


def test_a_bare_command_line_shows_the_help(shapewright: Shapewright) -> None:
    for line in ([], ["keys"], ["db"]):
        ran = shapewright(*line)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("Usage: shapewright")


@pytest.mark.parametrize("group", [[], ["keys"], ["db"], ["device"], ["bundle"]])
def test_the_list_of_commands_tells_each_whole(
    shapewright: Shapewright, monkeypatch: pytest.MonkeyPatch, group: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert "..." not in shapewright(*group, "--help").out.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        (("job",), "jobs"),
        (("keys", "creat", "x"), "create"),
        (("jobs", "--limt", "3"), "--limit"),
        (("trails",), "trials"),
    ],
)
def test_a_command_and_an_option_that_are_nearly_right_are_suggested(
    shapewright: Shapewright, line: tuple[str, ...], meant: str
) -> None:
    ran = shapewright(*line)
    assert ran.code == 2
    assert f"Did you mean '{meant}'?" in ran.err


def test_looking_at_keys_makes_no_database(shapewright: Shapewright, tmp_path: Path) -> None:
    for line in (["list"], ["create", "ci"], ["revoke", "k1"]):
        ran = shapewright("keys", *line, "--data-dir", tmp_path / "none", "--json")
        assert ran.code == 3
        assert str(tmp_path / "none" / "tuning.db") in ran.error["message"]
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", ["", "  "])
def test_a_key_without_a_name_is_refused(shapewright: Shapewright, name: str) -> None:
    assert shapewright("db", "upgrade").code == 0
    ran = shapewright("keys", "create", name, "--json")
    assert (ran.code, ran.error["field"]) == (2, "name")
    assert shapewright("keys", "list", "--json").json == []


def test_help_imports_none_of_the_heavy_packages() -> None:
    code = (
        "import sys\n"
        "from shapewright.cli.main import run\n"
        "assert run(['--help']) == 0\n"
        "heavy = {'fastapi', 'ray', 'tvm', 'sqlalchemy', 'httpx', 'rich', 'xgboost'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    for name in ("up", "serve", "worker", "tune", "submit", "best", "pull", "explain"):
        assert f"\n  {name} " in ran.stdout


def test_whatever_reads_the_output_may_stop_reading() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as stdout:
        ran = subprocess.run(
            [sys.executable, "-m", "shapewright", "ops"], stdout=stdout, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert ran.stderr == b""


def test_the_key_that_up_leaves_is_for_its_owner_alone(data_dir: Path) -> None:
    from shapewright.cli.up import ensure_key  # noqa: PLC0415
    from tuner.storage.sql import upgrade  # noqa: PLC0415

    url = f"sqlite:///{data_dir / 'tuning.db'}"
    upgrade(url)
    storage = open_storage(url)
    path = data_dir / "client.key"
    path.write_bytes(b"a key of another database, and no text: \xff")
    path.chmod(0o644)
    ensure_key(storage, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = path.read_text().strip()
    assert storage.find_key(secret) is not None
    assert storage.list_keys()[0].scopes == (Scope.ADMIN,)
    ensure_key(storage, path)
    assert path.read_text().strip() == secret, "a key that works is kept"
    assert len(storage.list_keys()) == 1
    storage.close()


def test_documents_on_stdout_are_json_alone(shapewright: Shapewright) -> None:
    ran = shapewright("nothing-like-that", "--json")
    assert json.loads(ran.out)["error"]["kind"] == "refused"
