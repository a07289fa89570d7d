"""`shapewright check`: libraries that are whole and right, and those that are damaged, wrong, slow, or not for here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from shapewright import checking
from shapewright.checking import Against
from shapewright.download import write
from shapewright.snapshot import merge
from tests.compiled import small_kernel
from tests.shapewright.conftest import Shapewright
from tests.shapewright.snapshot.samples import pulled, task
from tests.shares import every, spread
from tuner.library.build import build_library
from tuner.library.codegen import compile_candidate
from tuner.library.dispatcher import Dispatcher, Leaf
from tuner.library.package import LIBRARY, package
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar
from tuner.program.target import native
from tuner.schedule import rules_of
from tuner.schedule.space import MicroKernel
from tuner.search.verdict import Verdict
from tuner.storage import Comparison

T = ShapeVar("T", range(1, 9))


def layer(*epilogue: str, n: int = 256) -> SearchTask:
    dims = {"m": 16 * T, "n": n, "k": 128}
    return SearchTask("dense", dims, (T,), instances=[8], target=native(), epilogue=list(epilogue))


def kernel(of: SearchTask, **values: int) -> MicroKernel:
    return rules_of(of)[0].space(of).kernel(dict(small_kernel(of).values) | values)


def built(directory: Path, of: SearchTask, **values: int) -> Path:
    write(build_library(Dispatcher(of, (kernel(of, **values),), 0, Leaf(0)), "job-1").files, directory)
    return directory


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two libraries of one workload, ``slow`` and ``good``."""
    root = tmp_path_factory.mktemp("checked")
    built(root / "good", layer("bias", "relu"))
    built(root / "slow", layer("bias", "relu"), mr=1, nv=1, mb=1)
    return root


def checked(shapewright: Shapewright, *line: object, code: int) -> Sequence[dict[str, object]]:
    ran = shapewright("check", *line, "--json")
    assert ran.code == code, ran.out
    assert ran.json["good"] == (code == 0)
    libraries: Sequence[dict[str, object]] = ran.json["libraries"]
    return libraries


def test_a_good_library_is_right_and_timed_beside_another(shapewright: Shapewright, folder: Path) -> None:
    """How it does depends on what else the machine does; that the verdict follows from what was measured does not."""
    ran = shapewright("check", folder / "good", "--against", folder / "slow", "--json")

    (found,) = ran.json["libraries"]
    against = found["against"]
    assert found["problems"] == [] and found["shapes"] > 20
    assert against["verdict"] == Against("", "", against["ratio"], against["noise"]).verdict
    assert (ran.code, ran.json["good"]) == ((1, False) if against["verdict"] == Verdict.SLOWER else (0, True))
    (same,) = checked(shapewright, folder / "good", "--against", folder / "good", code=0)
    assert same["against"]["verdict"] == Verdict.EQUAL  # type: ignore[index]


@pytest.mark.parametrize(
    ("timed", "code", "says"),
    spread(
        every(
            3,
            [
                (Comparison("0" * 64, 0.8, 0.05, True), 1, "slower: 0.80x over"),
                (Comparison("0" * 64, 0.98, 0.05, True), 0, None),
                (Comparison("0" * 64, 1.0, 0.0, False), 1, "it failed while it was timed"),
                (None, 2, "could not be timed beside it"),
            ],
        )
    ),
)
def test_the_exit_code_goes_by_what_was_timed(
    shapewright: Shapewright,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    timed: Comparison | None,
    code: int,
    says: str | None,
) -> None:
    monkeypatch.setattr(checking, "compare", lambda *_, **__: timed)
    monkeypatch.setattr(checking.Checker, "verify", lambda *_: (30, ()))

    ran = shapewright("check", folder / "slow", "--against", folder / "good", "--json")

    assert ran.code == code
    assert says is None or says in ran.error["message"]


def test_wrong_damaged_and_broken_libraries_fail_with_the_reason(
    shapewright: Shapewright, folder: Path, tmp_path: Path
) -> None:
    wanted, other = layer("bias", "relu"), layer("bias", "gelu")
    dispatcher = Dispatcher(wanted, (kernel(wanted),), 0, Leaf(0))
    for name, binary in {
        "wrong": compile_candidate(other, kernel(other)).binary,
        "broken": b"no machine code",
    }.items():
        write(package(dispatcher, binary, "{}", {}, None).files, tmp_path / "several" / name)
    damaged = built(tmp_path / "several" / "damaged", layer("bias", n=32))
    (damaged / LIBRARY).write_bytes(b"altered")

    found = {Path(str(each["name"])).name: each for each in checked(shapewright, tmp_path / "several", code=1)}

    assert "elements are wrong" in str(found["wrong"]["problems"])
    assert f"{LIBRARY} is not what was built" in str(found["damaged"]["problems"])
    assert found["broken"]["problems"]


def test_libraries_of_a_snapshot_for_other_cpus_need_only_be_whole(
    shapewright: Shapewright, folder: Path, tmp_path: Path
) -> None:
    if "amx_tile" in native().hardware.features:
        pytest.skip("this CPU has AMX: it runs what is for Sapphire Rapids")
    target = {"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 2}
    pulled(tmp_path / "other", task(target=target))
    snapshot = merge(tmp_path / "x.snapshot", [folder / "good", tmp_path / "other"])

    found = checked(shapewright, snapshot.file, code=0)

    assert sorted(bool(each["not_run"]) for each in found) == [False, True]
    alone = shapewright("check", tmp_path / "other", "--json")
    assert (alone.code, "this CPU lacks" in alone.error["message"]) == (2, True)


def test_what_cannot_be_compared_is_refused(shapewright: Shapewright, folder: Path, tmp_path: Path) -> None:
    other = built(tmp_path / "other", layer(n=32))
    for line in ((folder / "good", "--against", other), (folder, "--against", other)):
        refused = shapewright("check", *line, "--json")
        assert (refused.code, refused.error["field"]) == (2, "--against")
    (tmp_path / "empty").mkdir()
    assert shapewright("check", tmp_path / "empty").code == 2
    assert shapewright("check", tmp_path / "none").code == 2
    (tmp_path / "job.yaml").write_text("version: 2\n")
    refused = shapewright("check", tmp_path / "job.yaml", "--json")
    assert (refused.code, refused.error["field"]) == (2, "DIR")
    assert "`shapewright explain` checks a job file" in refused.error["remedy"]


@pytest.mark.parametrize(
    ("ratio", "noise", "verdict"),
    [
        (1.02, 0.03, Verdict.EQUAL),
        (1.1, 0.03, Verdict.FASTER),
        (0.9, 0.03, Verdict.SLOWER),
        (0.98, 0.03, Verdict.EQUAL),
    ],
)
def test_a_difference_counts_beyond_noise(ratio: float, noise: float, verdict: str) -> None:
    against = Against("b", "0" * 64, ratio, noise)
    assert against.verdict == verdict
    assert str(against).startswith("equal to b (" if verdict == Verdict.EQUAL else f"{verdict}: {ratio:.2f}x over b (")
