"""`export` and `import`: records go from one service to another and come back as they were."""

from __future__ import annotations

from pathlib import Path

from tests.contract.test_storage_sharing import TASKS, drawn
from tests.shapewright.cli_bed import Bed
from tests.shapewright.conftest import Shapewright
from tuner.storage.jsonl import write_records


def test_records_come_back_as_they_were(shapewright: Shapewright, bed: Bed, tmp_path: Path) -> None:
    given, first, second = (tmp_path / f"{name}.jsonl" for name in ("given", "first", "second"))
    given.write_text("".join(write_records(drawn(0, 700))))
    assert shapewright("import", given, "--json").json == {"added": 700, "known": 0}
    assert shapewright("export", first, "--json").json == {"file": str(first), "records": 700}
    assert first.read_bytes() == given.read_bytes()
    again = shapewright("import", first)
    assert (again.code, again.out) == (0, "0 records added, 700 known before\n")
    assert shapewright("export", second).out == f"{second}: 700 records\n"
    assert second.read_bytes() == given.read_bytes()


def test_workloads_can_be_named_by_key_or_job_file(shapewright: Shapewright, bed: Bed, tmp_path: Path) -> None:
    bed.storage.import_records(drawn(0, 60))
    out = tmp_path / "some.jsonl"
    some = shapewright("export", out, TASKS[0].workload.key, TASKS[1].workload.key, "--json").json["records"]
    assert 0 < some < 60
    (tmp_path / "job.yaml").write_text(
        "workload: {op: dense, args: {m: T, n: 48, k: 32}}\nshape_vars: {T: {min: 1, max: 4}}\nbudget: {trials: 1}\n"
    )
    rest = shapewright("export", out, tmp_path / "job.yaml", "--json").json["records"]
    assert some + rest == 60


def test_a_wrong_line_is_named_and_nothing_is_left_of_an_export_that_failed(
    shapewright: Shapewright, bed: Bed, tmp_path: Path
) -> None:
    (tmp_path / "wrong.jsonl").write_text("".join(write_records([])) + "nothing\n")
    ran = shapewright("import", tmp_path / "wrong.jsonl", "--json")
    assert (ran.code, ran.error["field"]) == (2, "line 2")
    ran = shapewright("export", tmp_path / "out.jsonl", "wl-none", "--json")
    assert ran.code == 5
    assert {path.name for path in tmp_path.iterdir()} == {"wrong.jsonl", "data"}
    ran = shapewright("export", tmp_path / "none" / "out.jsonl", "--json")
    assert (ran.code, ran.error["field"]) == (2, "FILE")


def test_a_key_that_is_not_known_imports_nothing(shapewright: Shapewright, bed: Bed, tmp_path: Path) -> None:
    given = tmp_path / "given.jsonl"
    given.write_text("".join(write_records(drawn(0, 3))))
    assert shapewright("import", given, "--key", "wrong").code == 4
    assert bed.storage.export_records() == ()
