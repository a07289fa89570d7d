"""What commands make of answers that mean no good: no escape sequence reaches a terminal, none is a defect here."""

from __future__ import annotations

import io
import json
import zipfile

import pytest

from shapewright.cli.display import JobView, PlainDisplay
from shapewright.download import unpack
from shapewright.errors import BadDownload
from tests.shapewright.answering import answering
from tests.shapewright.conftest import Shapewright
from tuner.errors import CONTROLS, clean

NASTY = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202egnp.exe\x7f\ud800"


def answer(document: object, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\n\r\n{json.dumps(document)}".encode()


@pytest.mark.parametrize("json_output", [(), ("--json",)])
@pytest.mark.parametrize("status", ["400 No", "401 No", "403 No", "404 No", "500 No", "503 No"])
def test_an_error_of_a_service_controls_no_terminal(
    status: str, json_output: tuple[str, ...], shapewright: Shapewright
) -> None:
    with answering(answer({"detail": NASTY, "problem": NASTY, "field": NASTY}, status)) as url:
        ran = shapewright("jobs", "--url", url, *json_output)
    assert ran.code in (2, 3, 4, 5)
    assert not CONTROLS.search(ran.out + ran.err)
    assert "owned" in ran.out + ran.err


@pytest.mark.parametrize("json_output", [(), ("--json",)])
def test_a_list_of_a_service_controls_no_terminal(json_output: tuple[str, ...], shapewright: Shapewright) -> None:
    item = dict.fromkeys(("id", "name", "state", "created_at", "error", "key", "target_fingerprint", "device"), NASTY)
    device = {**item, "seen_at": NASTY, "target": {}, "address": NASTY, "host": NASTY, "jobs": 1}
    with answering(answer({"items": [device], "cursor": None})) as url:
        for command in ("jobs", "devices"):
            ran = shapewright(command, "--url", url, *json_output)
            assert not CONTROLS.search(ran.out + ran.err)


def test_json_with_what_was_spelled_out_says_the_same() -> None:
    assert json.loads(clean(json.dumps(NASTY, ensure_ascii=False), as_json=True)) == NASTY


def test_lines_of_progress_control_no_terminal() -> None:
    stream = io.StringIO()
    PlainDisplay(stream).show(JobView("job-1", error=NASTY, message="two\nlines"))
    assert not CONTROLS.search(stream.getvalue())
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize("items", [b"null", b"7", b"[7]", b"[[]]", b"[" * 10**5, b""])
@pytest.mark.parametrize("command", ["jobs", "devices", "job"])
def test_an_answer_that_is_no_services_is_no_defect(command: str, items: bytes, shapewright: Shapewright) -> None:
    line = (command,) if command != "job" else ("show", "job-1")
    with answering(b"HTTP/1.1 200 OK\r\n\r\n" + b'{"items": ' + items + b"}") as url:
        ran = shapewright(*line, "--url", url, "--json")
    assert ran.code in (2, 3)
    assert "Shapewright service?" in ran.error["message"]


def packed(compression: int = zipfile.ZIP_DEFLATED) -> bytearray:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        archive.writestr("library.so", b"text that is packed " * 50)
    return bytearray(content.getvalue())


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_with_any_byte_changed_is_a_bad_download_or_the_same(compression: int) -> None:
    whole = unpack(bytes(packed(compression)))
    for at in range(len(packed(compression))):
        for value in (0x00, 0xFF, 0x40):
            broken = packed(compression)
            broken[at] ^= value
            try:
                found = unpack(bytes(broken))
            except BadDownload:
                continue
            assert list(found.values()) in ([], list(whole.values()))
