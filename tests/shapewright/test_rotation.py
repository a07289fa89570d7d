"""Logs of other processes are rotated under them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from shapewright.cli.rotation import rotate


def test_a_small_log_and_a_missing_one_stay(tmp_path: Path) -> None:
    log = tmp_path / "api.log"
    assert not rotate(log)
    log.write_text("one\n")
    assert not rotate(log, max_bytes=4)
    assert log.read_text() == "one\n"


def test_a_large_log_moves_on_and_the_oldest_goes(tmp_path: Path) -> None:
    log = tmp_path / "api.log"
    for number in range(5):
        log.write_text(f"run {number}\n")
        assert rotate(log, max_bytes=1, kept=3)
        assert log.read_text() == ""
    result = {path.name: path.read_text() for path in tmp_path.iterdir() if path != log}
    assert result == {"api.log.1": "run 4\n", "api.log.2": "run 3\n", "api.log.3": "run 2\n"}


def test_a_process_goes_on_writing_at_the_new_end(tmp_path: Path) -> None:
    log = tmp_path / "api.log"
    code = (
        "import sys\nfor line in sys.stdin:\n    print('wrote', line, end='', flush=True)\n    sys.stderr.write('.')\n"
    )
    with (
        log.open("ab") as out,
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=out, stderr=subprocess.PIPE, text=True
        ) as writer,
    ):
        assert writer.stdin is not None
        assert writer.stderr is not None
        for number in range(2):
            writer.stdin.write(f"{number}\n")
            writer.stdin.flush()
            assert writer.stderr.read(1) == "."
            assert log.read_text() == f"wrote {number}\n"
            assert rotate(log, max_bytes=1)
        writer.stdin.close()
    assert log.read_text() == ""
    assert (tmp_path / "api.log.1").read_text() == "wrote 1\n"
