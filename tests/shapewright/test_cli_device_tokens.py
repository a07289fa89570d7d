"""`device-tokens`, and the token that `device serve` is given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shapewright.cli.device_tokens import token_of, without_token
from shapewright.cli.main import run
from tuner.errors import InvalidInput
from tuner.program.target import native
from tuner.storage.sql import open_storage


def said(capsys: pytest.CaptureFixture[str], *line: str) -> tuple[int, str, str]:
    code = run(["device-tokens", *line])
    out, err = capsys.readouterr()
    return code, out, err


def test_tokens_are_made_listed_and_revoked(sqlite_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--database-url", sqlite_url)
    code, out, err = said(capsys, "create", "rack", "--note", "hall 2", *where)
    assert (code, out.startswith("swd_"), err) == (0, True, "")
    code, out, _ = said(capsys, "create", "rack", "--expires-in", "12h", "--json", *where)
    made = json.loads(out)
    assert made.pop("token").startswith("swd_")
    code, out, _ = said(capsys, "list", "--json", *where)
    assert (code, json.loads(out)[0]) == (0, made)
    code, out, _ = said(capsys, "revoke", made["id"], *where)
    assert (code, out.strip()) == (0, f"{made['id']} revoked")
    code, out, _ = said(capsys, "list", *where)
    assert [line.split()[2] for line in out.splitlines()[1:]] == ["revoked", "valid"]
    assert "hall 2" in out
    assert said(capsys, "revoke", "dt-none", *where)[0] == 5


def test_whoever_makes_a_first_token_is_told_which_devices_it_shuts_out(
    sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = open_storage(sqlite_url)
    for key, name in (("rack", "a"), ("rack", "b"), ("edge", "c")):
        storage.register_device(name, key, native(), {})
    storage.close()
    _, _, err = said(capsys, "create", "rack", "--database-url", sqlite_url)
    assert err.strip() == "devices of key 'rack' need a token from now on; 2 have joined without: a, b"


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (("create", " "), "key"),
        (("create", "x" * 201), "key"),
        (("create", "rack", "--expires-in", "5s"), "expires_s"),
        (("create", "rack", "--expires-in", "400d"), "expires_s"),
        (("create", "rack", "--expires-in", "soon"), "expires-in"),
        (("create", "rack", "--note", "x" * 201), "note"),
    ],
)
def test_what_is_wrong_is_named(
    sqlite_url: str, capsys: pytest.CaptureFixture[str], line: tuple[str, ...], field: str
) -> None:
    code, out, _ = said(capsys, *line, "--json", "--database-url", sqlite_url)
    assert (code, json.loads(out)["error"]["field"]) == (2, field)


def test_a_token_comes_by_option_or_by_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("swd_1_2\n")
    assert token_of(None, None) is None
    assert token_of("", None) is None
    assert token_of("swd_1_3", None) == "swd_1_3"
    assert token_of(None, file) == "swd_1_2"
    with pytest.raises(InvalidInput, match="given twice"):
        token_of("swd_1_3", file)
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        token_of(None, tmp_path / "none")


def test_a_command_line_loses_its_token_and_nothing_else() -> None:
    line = ["-m", "shapewright", "device", "serve", "--token", "swd_1_2", "--key", "a", "--token=swd_1_2", "--json"]
    assert without_token(line) == ["-m", "shapewright", "device", "serve", "--key", "a", "--json"]
    assert without_token(["--token-file", "f"]) == ["--token-file", "f"]


@pytest.mark.parametrize("how", ["--token", "--token-file", "SHAPEWRIGHT_DEVICE_TOKEN"])
def test_what_is_no_token_is_refused_before_anything_is_served(tmp_path: Path, how: str) -> None:
    file = tmp_path / "token"
    file.write_text("no token of ours")
    given = {"--token": ["--token", "no token of ours"], "--token-file": ["--token-file", str(file)]}.get(how, [])
    variable = {how: "no token of ours"} if how.isupper() else {}
    line = [sys.executable, "-m", "shapewright", "device", "serve", "--tracker", "127.0.0.1:9", *given, "--json"]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **variable})
    assert ran.returncode == 2, ran.stderr
    assert json.loads(ran.stdout)["error"]["field"] == "token"
    assert "no token of ours" not in ran.stdout + ran.stderr
