"""The how-to pages that add to the code, followed: their snippets are put into a copy of the tree, and tried there.

What was added does what it is for, and no test that compares a list with what there is complains.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, blocks
from tests.docs.promised import listed, section
from tuner import without_torch

HOWTO = DOCS / "howto"
FOLLOWED = ("operator", "policy", "figure", "route", "rule", "target")
EDITED = {"operator": "two files", "policy": "one file", "figure": "one file", "route": "two files"}
"""What pages say of the number of files that one edits; no list of a test is among them."""
TREE = (
    *("benchmarks", "docs", "examples", "migrations", "service", "shapewright", "tests", "tuner", "worker"),
    *("Makefile", "README.md", "alembic.ini", "mkdocs.yml", "pyproject.toml"),
)
SNIPPET = re.compile(r"# ([\w/.]+)(?:, in (\w+))?\n(.*)", re.DOTALL)

CONTRACT = "docs/contract.md"
PLACES: Mapping[str, str] = {
    CONTRACT: "- `POST /v1/jobs`\n",
    "tuner/program/catalogue/__init__.py, in OPS": "    for op in (\n",
    "shapewright/ops.py, in __all__": '    "rms_norm",\n',
    "shapewright/ops.py": 'rms_norm = OPS["rms_norm"]\n',
    "tuner/schedule/registry.py": "from tuner.errors import IllegalKernel, InvalidInput, shown\n",
    "tuner/schedule/registry.py, in RULES": "RULES: tuple[Rule, ...] = (",
    "tuner/program/job/policies.py, in POLICIES": "    for entry in (\n",
    "tuner/figures/registry.py": "from tuner.errors import ShapewrightError\n",
    "tuner/figures/registry.py, in _SPECS": "        roofline,\n    ),\n",
    "service/app.py": "from service.paths import UnderPrefix, parse_prefix\n",
    "service/app.py, in _v1": "        records.router,\n",
    "tuner/program/target/cpu.py, in _CPUS": '    "x86-64": ((), 32, 256),\n',
}
"""What a snippet that is no whole file stands after."""

TRIAL = """
from pathlib import Path

from fastapi.testclient import TestClient
import tvm
import shapewright as sw
from service.app import create_app
from tuner.figures import SearchView, figure
from tuner.library.codegen import compile_candidate
from tuner.measure.verification.verify import cases
from tuner.program.job.jobspec import parse_job
from tuner.program.target import native
from tuner.records import MeasureResult
from tuner.schedule import rules_of, space_of
from tuner.search.cost_model import PairCostModel
from tuner.search.policy import make_policy
from tuner.storage.sql import open_storage, upgrade

T = sw.ShapeVar("T", range(0, 65))
gate = sw.SearchTask(sw.ops.silu_mul, args={"m": T, "n": 96}, shape_vars=(T,), target=native())
print("operator", sw.ops.silu_mul, len(gate.workload.inputs), "silu_mul" in sw.ops.__all__)

job = parse_job({
    "workload": {"program": "out[n] = sum(m) x[m, n]", "extents": {"m": "T", "n": 100}},
    "shape_vars": {"T": {"min": 0, "max": 64}}, "target": {"kind": "llvm", "mcpu": "alderlake", "num-cores": 2},
    "policy": "climbing", "budget": {"trials": 24},
})
(task,) = job.tasks
space = space_of(task)
print("rules", *(rule.name for rule in rules_of(task)))
print("target", compile_candidate(task, next(space.points())).binary[:4])

here = task.on(native())
for kernel in rules_of(here)[0].space(here).points():
    Path("kernel.so").write_bytes(compile_candidate(here, kernel).binary)
    call = tvm.runtime.load_module("kernel.so")["kernel"]
    wrong = {case.check(case.inputs, lambda operands: call(*operands)) for case in cases(here.workload)}
    print(f"vectors={kernel['vectors']}", *wrong)
    Path("kernel.so").unlink()

policy, tried = make_policy(job.policy, task, space, PairCostModel(task), 0), set()
while suggestions := policy.suggest(64):
    pairs = [(each.kernel, instance) for each in suggestions for instance in each.instances]
    vectors = [dict(kernel.values).get("vectors", 0) for kernel, _ in pairs]
    tried |= set(vectors)
    times = [1e-6 / (number or 0.5) for number in vectors]
    policy.update([MeasureResult(*pair, latency_s) for pair, latency_s in zip(pairs, times, strict=True)])
print("policy", max(tried))

results = [MeasureResult(next(space.points()), instance, 1e-6) for instance in task.instances]
drawn = figure("trials_by_instance", SearchView(task, results))
nothing = figure("trials_by_instance", SearchView(task))
print("figure", len(drawn.data), sum(drawn.data[0].y) == len(results), nothing.layout.annotations[0].text)

upgrade("sqlite:///tuning.db")
storage = open_storage("sqlite:///tuning.db")
api = TestClient(create_app(storage), headers={"Authorization": f"Bearer {storage.create_key('reader')[1]}"})
paths = api.app.openapi()["paths"]
answer = api.get("/v1/policies")
print("answer", answer.status_code, answer.json()["items"][0], answer.json()["default"])
print("routes", *(f"{method.upper()}:{path}" for path, each in paths.items() for method in each))
print("scope", paths["/v1/policies"]["get"]["security"][0]["ApiKey"][0])
"""


def page_of(name: str) -> Path:
    return HOWTO / f"add-{'an' if name == 'operator' else 'a'}-{name}.md"


def snippets(name: str) -> list[tuple[str, str, str]]:
    """Of the page that adds ``name``: each snippet's file, the place in it (empty: none is named), and its text."""
    found = [SNIPPET.match(block.text) for block in blocks(page_of(name)) if block.language == "python"]
    assert all(found), "a snippet does not say where it goes"
    return [(each[1], each[2] or "", each[3]) for each in found if each]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source tree in which every snippet of the pages is in its place."""
    result = tmp_path_factory.mktemp("extended")
    for name in TREE:
        if (ROOT / name).is_dir():
            # With what is compiled of files that stay as they are: hundreds of modules are loaded.
            shutil.copytree(ROOT / name, result / name, ignore=shutil.ignore_patterns("measurements"))
        else:
            shutil.copy(ROOT / name, result / name)
    for name in FOLLOWED:
        for file, place, text in snippets(name):
            put(result, f"{file}, in {place}" if place else file, text)
    put(result, CONTRACT, contract_line())
    return result


@pytest.fixture(scope="module")
def answers(tree: Path) -> dict[str, str]:
    """What the trial prints, by first word, in the extended tree."""
    done = run(tree, "-c", TRIAL)
    return dict(line.partition(" ")[::2] for line in done.splitlines())


def run(tree: Path, *arguments: str) -> str:
    """What Python prints in the extended tree, where it finds no other copy of the packages."""
    # Tests that are run there are no worker's of this run: they would share its databases, or those of an earlier one.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = kept | without_torch.ENVIRONMENT | {"PYTHONPATH": str(tree)}
    done = subprocess.run(
        [sys.executable, *arguments],
        check=False,
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def passed(tree: Path, files: Sequence[str], chosen: str, marks: str = "not soak") -> int:
    """How many tests of these files, those that are chosen (``-k``), pass in the extended tree. None may fail."""
    # Hypothesis would read all of the tree for constants.
    without = [option for each in ("cacheprovider", "hypothesispytest") for option in ("-p", f"no:{each}")]
    said = run(tree, "-m", "pytest", "-q", "-n", "0", *without, "-m", marks, *files, "-k", chosen)
    found = re.search(r"(\d+) passed", said)
    assert found is not None, said
    return int(found[1])


def put(tree: Path, place: str, text: str) -> None:
    """A snippet into its file: as the whole of it, or after the text that PLACES names."""
    path = tree / place.partition(",")[0]
    if place not in PLACES:
        assert not path.exists(), f"{place}: where in that file?"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return
    before, anchor, after = path.read_text().partition(PLACES[place])
    assert anchor, f"{place}: {PLACES[place]!r} is no longer there"
    path.write_text(before + anchor + (text if anchor.endswith("\n") else f"{text.strip()} ") + after)


def contract_line() -> str:
    """What the page that adds a route adds to the contract."""
    (line,) = (block.text for block in blocks(page_of("route")) if block.language == "markdown")
    return line + "\n"


@pytest.mark.parametrize("name", FOLLOWED)
def test_the_index_says_what_one_writes_and_edits(name: str) -> None:
    index = (HOWTO / "index.md").read_text()
    (row,) = re.findall(rf"^\| \[an? \w+\]\(add-an?-{name}\.md\) \|(.*)\|(.*)\|$", index, re.MULTILINE)
    written, edited = (set(re.findall(r"`([^`]+)`", cell)) for cell in row)
    files = {file for file, _, _ in snippets(name)} | ({CONTRACT} if name == "route" else set())
    assert written == {file for file in files if not (ROOT / file).exists()}
    assert edited == {file for file in files if (ROOT / file).exists()}


@pytest.mark.parametrize(("name", "places"), EDITED.items())
def test_a_page_says_how_many_files_one_edits(name: str, places: str) -> None:
    files = {file for file, _, _ in snippets(name)} | ({CONTRACT} if name == "route" else set())
    edited = [file for file in files if (ROOT / file).exists()]
    assert re.findall(r"edit ((?:one|two|three) files?)", page_of(name).read_text().replace("\n", " ")) == [places]
    assert places == {1: "one file", 2: "two files", 3: "three files"}[len(edited)]


@pytest.mark.soak
def test_no_list_complains_of_what_was_added(tree: Path) -> None:
    lists = ("docs/test_contract.py", "docs/test_tables.py", "test_imports.py", "service/access/test_scopes.py")
    suites = ("tuner/program/catalogue/test_catalogue.py", "tuner/figures/test_odd_searches.py")
    chosen = (
        "silu_mul or trials_by_instance or api or catalogue_has or a_job_has or advice or folder or scope or public"
    )
    files = [f"tests/{file}" for file in (*lists, *suites)]
    all_operators = (
        "tests/benchmarks/test_operators.py::test_all_is_every_promised_operator_every_program_and_the_fused_ones"
    )
    assert passed(tree, [*files, all_operators], f"({chosen} or all_is)") > 20


@pytest.mark.soak
def test_the_suites_over_operators_policies_and_pages_pass_with_what_was_added(tree: Path) -> None:
    run(tree, "-m", "docs.tools.generate")
    assert passed(tree, ["tests/docs/test_reference.py"], "generated") > 5
    suites = ("tuner/library/test_every_op.py", "contract/test_policy.py", "tuner/search")
    # Each policy has some of its tests among the long ones.
    assert passed(tree, [f"tests/{suite}" for suite in suites], "silu_mul or climbing", "soak or not soak") > 15


@pytest.mark.soak
def test_the_operator_is_in_the_catalogue(answers: dict[str, str]) -> None:
    assert answers["operator"] == "silu_mul 2 True"


@pytest.mark.soak
def test_the_rule_takes_its_pattern_before_others(answers: dict[str, str]) -> None:
    assert answers["rules"] == "column_sum column_reduction"


@pytest.mark.soak
@pytest.mark.parametrize("vectors", [1, 2, 4, 8])
def test_kernels_of_the_rule_are_right(answers: dict[str, str], vectors: int) -> None:
    assert answers[f"vectors={vectors}"] == "None"


@pytest.mark.soak
def test_code_is_built_for_the_target(answers: dict[str, str]) -> None:
    assert answers["target"] == r"b'\x7fELF'"


@pytest.mark.soak
def test_the_policy_climbs_to_the_fastest_kernel_and_ends(answers: dict[str, str]) -> None:
    assert answers["policy"] == "8"


@pytest.mark.soak
def test_the_figure_is_drawn_and_says_when_there_is_nothing_to_show(answers: dict[str, str]) -> None:
    assert answers["figure"] == "1 True There are no trials."


@pytest.mark.soak
def test_the_route_is_served_and_is_the_line_that_the_contract_lacks(answers: dict[str, str]) -> None:
    lacking = {route.replace(":", " ", 1) for route in answers["routes"].split()} - set(listed(section("HTTP")))
    assert lacking == set(listed(contract_line()))
    assert answers["scope"] == "read"
    assert answers["answer"] == "200 climbing evolutionary"
