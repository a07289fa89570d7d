"""The code of kernels on their pages: disassembled, in colours, escaped."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.dashboard import code
from tests.searched import searched
from tuner.storage.sql import Storage

KERNEL = "0123456789ab"
SOURCE = f"""
void other(float *x) {{ x[0] = 1; }}
int kernel_{KERNEL}(float *x, int n) {{ int i; for (i = 0; i < n; i++) x[i] *= 2; return 0; }}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("library")
    (folder / "kernel.c").write_text(SOURCE)
    command = ["gcc", "-O1", "-shared", "-fPIC", "-o", str(folder / "library.so"), str(folder / "kernel.c")]
    subprocess.run(command, check=True, timeout=60)
    return (folder / "library.so").read_bytes()


@pytest.mark.skipif(shutil.which("objdump") is None, reason="binutils are not installed")
def test_a_kernel_alone_is_disassembled_from_its_first_instruction(library: bytes) -> None:
    lines = code.disassembled(library, KERNEL)
    assert len(lines) > 3
    assert lines[0][0].strip() == "0"
    assert any(mnemonic.startswith("ret") for _, mnemonic, _ in lines)
    assert not any("kernel_" in operands for _, _, operands in lines)
    assert any(operands.startswith("+0x") for _, _, operands in lines), "the loop jumps back"
    assert code.disassembled(library, "ffffffffffff") == code.disassembled(b"no library", KERNEL) == []


def test_code_is_escaped_and_long_code_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "MOST_LINES", 3)
    listing = code.script("def f():\n  return 1 < 2  # </code>\n\n\nx = 1")
    assert (listing.lines, listing.shown) == (5, 3)
    assert "</code>" not in listing.html
    assert '<span class="t-k">def</span>' in listing.html
    assert "&lt;" in listing.html


def test_a_kernel_page_shows_what_runs(api: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    job = searched(storage, budget={"trials": 1})
    [row] = storage.search_tasks(job.id)
    kernel = storage.latest_artifact(row.workload_key).dispatch["kernels"][0]["id"]
    address = f"/jobs/{job.id}/kernels/{kernel}"
    assert "finds no code" in api.get(address).text
    instructions = [("     0", "vfmadd231ps", "<x>"), ("     6", "ret", "")]
    monkeypatch.setattr(code, "disassembled", lambda library, kernel_id: instructions)
    page = api.get(address).text
    assert "2 lines, 1 of them fused multiply-adds" in page
    assert "&lt;x&gt;" in page
    monkeypatch.setattr(code, "DISASSEMBLER", str(Path("no") / "such" / "program"))
    assert "install binutils" in api.get(address).text
