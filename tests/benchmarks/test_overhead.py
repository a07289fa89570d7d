"""What a call costs: the library that is timed dispatches among all of its kernels; the document has the figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.overhead import VALUES, make_dispatcher
from tuner.program.target import native
from tuner.schedule import layout_group


def test_every_kernel_serves_its_share_of_the_range() -> None:
    dispatcher = make_dispatcher(native(), 8)
    chosen = [dispatcher.index_for({"m": size}) for size in range(1, VALUES + 1)]
    assert chosen == sorted(chosen)
    assert set(chosen) == set(range(8))
    assert len({layout_group(dispatcher.task, kernel) for kernel in dispatcher.kernels}) == 1


@pytest.mark.soak
def test_the_document_has_dispatch_and_call_overhead(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.overhead", "--kernels", "2", "--calls", "20", "--json", str(out)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    assert document["summary"]["kernels"] == len(document["rows"]) == 2
    assert all(row["library_s"] > 0 and row["single_s"] > 0 for row in document["rows"])
    calls = document["summary"]["call_ns"]
    assert calls["numpy"] > 0
    assert min(calls[name] for name in ("operator", "operator, three axes", "inductor")) > 0
    assert json.loads(done.stdout) == document["summary"]
