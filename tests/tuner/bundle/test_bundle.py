"""Bundles from a job to a library, with a stand-in for the driver in the place of a GPU: the runner has Python's own
library and NumPy, and nothing else."""

from __future__ import annotations

import ast
import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import MakeOnce
from tests.fakes import FakeRecorder
from tests.gpu_measuring import H100, Compiler, gpu_host, seconds_of, set_gpu
from tests.searching import THEORY, quick_policies
from tests.tuner.search.test_gpu import Unable
from tuner.bundle import candidates
from tuner.bundle.form import BUNDLE, JOB, RECORDS, RESULTS, Candidate, Entry, read_bundle
from tuner.bundle.importing import import_results
from tuner.bundle.writing import Written, job_for, write_bundle
from tuner.errors import InvalidInput
from tuner.library.package import dispatcher_of
from tuner.program.job.jobspec import Budget, parse_job
from tuner.program.target import Target
from tuner.records import ErrorKind
from tuner.schedule import layouts_of
from tuner.schedule.space import MicroKernel
from tuner.search.policy import shortlist
from tuner.search.reuse import shared_knowledge
from tuner.search.tuning import SearchStart, SearchTools, tune
from tuner.storage.jsonl import SharedRecord, read_records

DOCUMENT: Mapping[str, Any] = {
    "name": "two products on a GPU",
    "workloads": [{"op": "matmul", "args": {"m": "8*T", "n": n, "k": 32}} for n in (64, 48)],
    "shape_vars": {"T": {"min": 1, "max": 16}},
    "instances": [{"T": 2}, {"T": 16}],
    "budget": {"trials": 24},
}
HARM = (
    ("return ILLEGAL_ADDRESS;", ErrorKind.CRASH, "an illegal memory access was encountered"),
    ("if (m == 128) return HANGS;", ErrorKind.RUN_TIMEOUT, "not done after"),
    ("out[0] += 1;", ErrorKind.WRONG, "elements are wrong"),
    ("__builtin_trap();", ErrorKind.CRASH, "its process died of it"),
)
RUN_S = 300.0
PATIENCE_S = 8.0
"""Far longer than a candidate takes that does not hang, also where machines are busy."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer samples of theory."""
    quick_policies(monkeypatch)
    monkeypatch.setattr(candidates, "shortlist", partial(shortlist, settings=THEORY))


def bundle_of(
    folder: Path,
    behaviour: Callable[[MicroKernel], str] = lambda _: "",
    document: Mapping[str, Any] = DOCUMENT,
    choices: int = 6,
    others: int = 3,
) -> Written:
    builder, said = Compiler(behaviour), list[str]()
    made = write_bundle(folder, job_for(document, ["sm_90"]), builder, choices=choices, others=others, say=said.append)
    assert len(said) == len(document["workloads"])
    return made


def copied(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target)
    return target


@pytest.fixture(scope="module")
def packed(once: MakeOnce) -> tuple[Path, Written]:
    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            make_small(patch)
            (folder / "written").write_bytes(pickle.dumps(bundle_of(folder / "bundle")))

    made = once("bundle", make)
    return made / "bundle", pickle.loads((made / "written").read_bytes())


@pytest.fixture
def host(fake_cuda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine with a GPU: its driver's folder. Python finds NumPy, and no other package."""
    only = tmp_path / "packages"
    only.mkdir()
    site = Path(np.__file__).parent.parent
    for name in ("numpy", "numpy.libs"):
        if (site / name).exists():
            (only / name).symlink_to(site / name)
    monkeypatch.setenv("PYTHONPATH", str(only))
    with gpu_host(fake_cuda, tmp_path) as driver:
        yield driver


def run(bundle: Path, *options: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    # Without the packages of this environment.
    command = [sys.executable, "-S", str(bundle / "run.py"), *options]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=RUN_S, check=False)


def impatient_run(bundle: Path, cwd: Path) -> str:
    """What a run says in which a candidate may take PATIENCE_S."""
    text = "from math import inf; from pathlib import Path; from tuner.bundle.host import Run; import sys; "
    text += "Run(Path(sys.argv[1]), Path(sys.argv[1]) / 'results', 0, inf, float(sys.argv[2])).measure()"
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, sys.argv[1]); {text}",
        str(bundle),
        str(PATIENCE_S),
    ]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def records_in(bundle: Path) -> list[SharedRecord]:
    with (bundle / RECORDS).open("rb") as file:
        return list(read_records(file))


# -- packing ----------------------------------------------------------------------------------------------------------
def test_a_bundle_is_small_and_says_what_it_holds(packed: tuple[Path, Written]) -> None:
    folder, made = packed
    entries = read_bundle(folder).entries
    assert made.candidates == sum(len(entry.candidates) for entry in entries) > 4
    assert made.left_out == 2 * 9 - made.candidates
    assert made.size == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    # The modules of the runner, and less than 30 MB for a hundred times as many candidates.
    assert made.size < 1_500_000
    assert sum((folder / entry.code).stat().st_size for entry in entries) < 300_000 * made.candidates
    assert [entry.task.known_target for entry in entries] == [H100, H100]
    assert not list(folder.rglob("*.pyc"))


def test_the_same_seed_gives_the_same_candidates_and_diverse_ones_are_unlike_theorys() -> None:
    task = parse_job(job_for(DOCUMENT, ["sm_90"])).tasks[0]
    first, again = (candidates.candidates_of(task, 6, 3, 1) for _ in range(2))
    assert first == again
    assert len(set(first)) == 9
    assert first[:6] == candidates.candidates_of(task, 6, 0, 1)
    assert first[6:] != candidates.candidates_of(task, 6, 3, 2)[6:]


def test_jobs_for_cpus_and_folders_of_others_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"target: is no GPU .*--arch"):
        write_bundle(tmp_path / "one", job_for(DOCUMENT, []), Compiler())
    (tmp_path / "mine").write_text("")
    with pytest.raises(InvalidInput, match="is there already, and is no bundle"):
        write_bundle(tmp_path, job_for(DOCUMENT, ["sm_90"]), Compiler())
    with pytest.raises(InvalidInput, match=r"holds no bundle\.json"):
        import_results(tmp_path)


def test_how_constants_are_packed_comes_with_a_candidate() -> None:
    document = job_for({**DOCUMENT, "workloads": [{"op": "dense", "args": {"m": "8*T", "n": 64, "k": 32}}]}, ["sm_90"])
    task = parse_job(document).tasks[0]
    kernels = candidates.candidates_of(task, 6, 6)
    entry = Entry(task, "0.so.xz", [Candidate(each, layouts_of(task, each), 1.5) for each in kernels])
    assert any(each.layouts for each in entry.candidates)
    assert Entry.from_json(json.loads(json.dumps(entry.to_json()))) == Entry(task, "0.so.xz", tuple(entry.candidates))


# -- running, reading back, a library ---------------------------------------------------------------------------------
def test_what_a_host_measures_comes_back_as_records_and_makes_a_library(
    packed: tuple[Path, Written], host: Path, tmp_path: Path
) -> None:
    bundle = copied(packed[0], tmp_path / "bundle")
    done = run(bundle, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "all is done" in done.stdout
    found = import_results(bundle)
    assert (found.failed, found.targets, found.others) == (0, (H100,), ())
    assert found.records == 3 * packed[1].candidates, "the least shape is measured, too"
    records = records_in(bundle)
    for each in records:
        m = dict(each.record.result.instance.values)["m"]
        assert each.record.result.latency_s == pytest.approx(seconds_of(each.record.result.kernel, m), rel=1e-3)
        assert each.record.result.anchor_s and each.record.protocol == "v3"
    # The job beside the records is for what was measured, and takes them for it.
    for task in parse_job(json.loads((bundle / JOB).read_text())).tasks:
        tools = SearchTools(Compiler(), Unable(), recorder := FakeRecorder())  # type: ignore[arg-type]
        start = SearchStart(knowledge=shared_knowledge(records, task))
        tuned = tune(task, tools, start, budget=Budget(0, None))
        dispatcher = dispatcher_of(tuned.files, tuned.manifest)
        own = [each.record.result for each in records if each.record.workload_key == task.workload.key]
        for instance in task.instances:
            m = task.workload.dims(instance.shape)["m"]
            least = min(each.latency_s or 1.0 for each in own if dict(each.instance.values)["m"] == m)
            assert seconds_of(dispatcher.kernel_for(instance.shape), m) == pytest.approx(least, rel=1e-3)
        assert "earlier measurements" in str(recorder.events)


def test_a_run_that_is_interrupted_keeps_what_it_has_and_goes_on(
    packed: tuple[Path, Written], host: Path, tmp_path: Path
) -> None:
    bundle, count = copied(packed[0], tmp_path / "bundle"), packed[1].candidates
    first = run(bundle, "--seconds", "0", cwd=tmp_path)
    assert f"1 candidates measured, 0 of them failed; {count - 1} left" in first.stdout
    (results,) = (bundle / RESULTS).iterdir()
    with results.open("a") as file:
        file.write('{"entry": 0, "candi')
    second = run(bundle, cwd=tmp_path)
    assert f"{count - 1} candidates to measure, 1 are known" in second.stdout
    assert import_results(bundle).records == 3 * count
    third = run(bundle, cwd=tmp_path)
    assert "0 candidates to measure" in third.stdout


def test_a_candidate_that_does_harm_costs_itself_alone(host: Path, tmp_path: Path) -> None:
    built: list[MicroKernel] = []

    def behaviour(kernel: MicroKernel) -> str:
        built.append(kernel)
        return HARM[len(built) - 1][0] if len(built) <= len(HARM) else ""

    one = {**DOCUMENT, "workloads": DOCUMENT["workloads"][:1]}
    bundle_of(tmp_path / "bundle", behaviour, document=one, choices=6, others=80)
    assert len(built) > len(HARM), "after the last harm there is another one"
    told = impatient_run(tmp_path / "bundle", tmp_path)
    import_results(tmp_path / "bundle")
    results = [each.record.result for each in records_in(tmp_path / "bundle")]
    assert {each.kernel for each in results} == set(built)
    failed = {each.kernel: each.error_kind for each in results if not each.ok}
    assert failed == {built[place]: kind for place, (_, kind, _) in enumerate(HARM)}
    for _, _, said in HARM:
        assert said in told


def test_no_memory_on_the_gpu_says_nothing_of_a_candidate_and_is_tried_again(
    packed: tuple[Path, Written], host: Path, tmp_path: Path
) -> None:
    bundle = copied(packed[0], tmp_path / "bundle")
    set_gpu(host, "FAKE_CUDA_FAIL=cuLaunchKernel=2")
    assert "out of memory" in run(bundle, "--seconds", "0", cwd=tmp_path).stderr
    set_gpu(host)
    assert (
        f"{packed[1].candidates} candidates to measure, 0 are known"
        in run(bundle, "--seconds", "0", cwd=tmp_path).stdout
    )


def test_what_is_no_gpu_of_the_bundle_is_said(packed: tuple[Path, Written], host: Path, tmp_path: Path) -> None:
    bundle = copied(packed[0], tmp_path / "bundle")
    set_gpu(host, "FAKE_CUDA_GPUS=8.0")
    done = run(bundle, cwd=tmp_path)
    assert done.returncode == 1
    assert "Fake 0 is sm_80" in done.stderr and "has code for sm_90: make a bundle with --arch sm_80" in done.stderr
    assert "there is no GPU 3" in run(bundle, "--gpu", "3", cwd=tmp_path).stderr


def test_records_of_another_gpu_of_the_instruction_set_are_for_that(
    host: Path, tmp_path: Path, packed: tuple[Path, Written]
) -> None:
    bundle = copied(packed[0], tmp_path / "bundle")
    data = json.loads((bundle / BUNDLE).read_text())
    for entry in data["entries"]:
        entry["task"]["target"] = Target.from_json({"kind": "cuda", "product": "h200"}).to_json()
    (bundle / BUNDLE).write_text(json.dumps(data))
    assert run(bundle, "--seconds", "0", cwd=tmp_path).returncode == 0
    found = import_results(bundle)
    assert found.others == ("Fake 0",)
    (target,) = found.targets
    assert target.is_measured_on(H100) and target.gpu is not None and target.gpu.watts == 700
    assert [task.known_target for task in parse_job(json.loads((bundle / JOB).read_text())).tasks] == [target] * 2


def test_results_of_another_bundle_are_refused(packed: tuple[Path, Written], host: Path, tmp_path: Path) -> None:
    bundle = copied(packed[0], tmp_path / "bundle")
    with pytest.raises(InvalidInput, match="holds no results"):
        import_results(bundle)
    run(bundle, "--seconds", "0", cwd=tmp_path)
    (results,) = (bundle / RESULTS).iterdir()
    lines = results.read_text()
    results.write_text(lines.replace('"candidate": 0', '"candidate": 99'))
    with pytest.raises(InvalidInput, match="candidate 99 of entry 0, which this bundle has not"):
        import_results(bundle)
    results.write_text(lines.replace('"answers": [', '"answers": [{}, '))
    with pytest.raises(InvalidInput, match="are of another form"):
        import_results(bundle)
    (bundle / BUNDLE).write_text((bundle / BUNDLE).read_text() + " ")
    with pytest.raises(InvalidInput, match="holds results of another bundle"):
        import_results(bundle)
    assert "--out: holds results of another bundle" in run(bundle, cwd=tmp_path).stderr
    with pytest.raises(InvalidInput, match=r"DIR: .* holds results of a bundle"):
        bundle_of(bundle)
    results.write_text(lines.replace('"answers"', '"answer"'))
    with pytest.raises(InvalidInput, match=r"jsonl line 2: .*answer"):
        import_results(bundle)


def test_a_damaged_bundle_is_told_and_nothing_of_it_is_changed(
    packed: tuple[Path, Written], host: Path, tmp_path: Path
) -> None:
    bundle = copied(packed[0], tmp_path / "bundle")
    run(bundle, "--seconds", "0", cwd=tmp_path)
    for name, text in ((BUNDLE, None), (BUNDLE, "{"), (JOB, None), (JOB, "{"), (JOB, "[]")):
        whole = (bundle / name).read_text()
        (bundle / name).unlink() if text is None else (bundle / name).write_text(text)
        with pytest.raises(InvalidInput, match=name):
            import_results(bundle)
        assert not (bundle / RECORDS).exists()
        (bundle / name).write_text(whole)


def test_a_bundle_whose_entries_are_damaged_is_told(packed: tuple[Path, Written], tmp_path: Path) -> None:
    bundle = copied(packed[0], tmp_path / "bundle")
    data = json.loads((bundle / BUNDLE).read_text())
    del data["entries"][0]["candidates"]
    (bundle / BUNDLE).write_text(json.dumps(data))
    with pytest.raises(InvalidInput, match=r"bundle\.json is damaged: .*candidates"):
        read_bundle(bundle)


def test_packages_that_a_host_lacks_are_imported_by_none_of_its_modules(packed: tuple[Path, Written]) -> None:
    sources: Sequence[str] = [path.read_text() for path in (packed[0] / "tuner").rglob("*.py")]
    assert len(sources) > 50
    assert not any(
        line.startswith(("import tvm", "from tvm", "import torch")) for text in sources for line in text.splitlines()
    )


def test_weights_are_packed_with_the_modules_of_a_bundle_alone(packed: tuple[Path, Written], tmp_path: Path) -> None:
    bundle = copied(packed[0], tmp_path / "bundle")
    script = (
        "import sys, numpy as np, tuner.bundle.host\n"
        "from tuner.schedule.layout import layout_from_json\n"
        "layout = layout_from_json({'kind': 'matrix', 'dims': [2, 3], 'order': [1, 0], 'matrix': [3, 2]})\n"
        "print(tuner.__path__[0], layout.pack(np.arange(6.0).reshape(2, 3)).tolist())\n"
    )
    environment = {"PYTHONPATH": str(bundle)}
    command = [sys.executable, "-P", "-c", script]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_S, env=environment, cwd=bundle, check=False
    )
    assert done.stdout == f"{bundle / 'tuner'} [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]\n", done.stderr


LATER = {"tuner.program.job.documents", "tuner.schedule.registry", "tuner.schedule.rule"}
"""Imported within functions of a bundle's modules that its runner never calls: of manifests, and of searches."""


def test_what_modules_of_a_bundle_import_later_is_in_it(packed: tuple[Path, Written]) -> None:
    root = packed[0]
    sources = {
        path.relative_to(root).with_suffix(""): ast.parse(path.read_text()) for path in root.rglob("tuner/**/*.py")
    }
    names = {".".join(path.parts).removesuffix(".__init__") for path in sources}
    wanted = {node.module for tree in sources.values() for node in ast.walk(tree)
              if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tuner")}  # fmt: skip
    assert len(wanted) > 40
    assert wanted - names <= LATER
