"""Every block of code on the pages does what its language promises: it is run, parsed or compiled, once.

``text``, ``nginx`` and ``markdown`` are shown to be read. A block below a comment ``<!-- parsed: REASON -->`` is only
parsed. Blocks of tutorials are run by test_tutorials.py, those of pages that add to the code by test_extending.py.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
import yaml

from docs.tools.routes import operations
from tests.command_lines import parse
from tests.docs.pages import DOCS, PAGES, ROOT, Block, blocks, blocks_of, name_of
from tests.docs.scenes import SCENES, first_job_of, without_search
from tests.docs.test_extending import FOLLOWED, page_of
from tests.searching import quick_policies
from tests.shares import chosen
from tuner.bundle.form import RUNNER
from tuner.bundle.host import parser_of
from tuner.program.job.build import workload_from_json
from tuner.program.job.jobspec import parse_job
from tuner.program.language.program import Program

SHOWN = {"text", "nginx", "markdown"}
CHECKED = {"bash", "python", "yaml", "json", "c", "program"}
TUTORIALS = DOCS / "tutorial"
HELD = (
    *("libs.lock", "all.snapshot", "tuned", "libs/qkv", "new", "qkv", "records.jsonl"),
    *("h100", "h100/job.json", "h100/records.jsonl"),
)
"""Files and directories that command lines of the pages read."""
ELSEWHERE = {"docker", "kubectl", "cmake", "export", "curl"}
"""Commands of other programs: their lines are parsed by the shell alone, but for the addresses of curl."""
QUICK_SCENES = [f"howto/{name}.md" for name in ("build", "pull-a-library", "submit-a-program", "figures")]
"""The other pages build libraries of what theory chooses for a model, in seconds each."""


def test_every_block_has_a_language_that_a_test_checks_or_that_is_only_shown() -> None:
    assert [str(block) for page in PAGES for block in blocks(page) if block.language not in SHOWN | CHECKED] == []


def test_every_block_of_python_is_run_or_says_why_not() -> None:
    run = {DOCS / page for page in SCENES} | {page_of(name) for name in FOLLOWED}
    left = [block for block in blocks_of("python") if block.page not in run and block.page.parent != TUTORIALS]
    assert [str(block) for block in left if not block.marker.startswith("parsed: ")] == []
    for block in left:
        compile(block.text, str(block), "exec")


@pytest.mark.parametrize("page", chosen(QUICK_SCENES, SCENES))
def test_python_of_the_how_to_pages_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHAPEWRIGHT_DATA_DIR", str(tmp_path / "data"))
    quick_policies(monkeypatch)
    own = [block for block in blocks(DOCS / page) if block.language == "python"]
    assert own
    with SCENES[page]() as names:
        known = dict(names)
        for block in own:
            # Blocks go on from each other, except for the names of the scene: a model is compiled once.
            known |= names
            code = compile(without_search(block.text), str(block), "exec")
            if not block.marker.startswith("parsed: "):
                exec(code, known)


@pytest.mark.parametrize("block", [block for block in blocks_of("yaml") if block.page.parent != TUTORIALS], ids=str)
def test_yaml_is_a_job(block: Block) -> None:
    data = yaml.safe_load(block.text)
    if "budget" in data:
        assert parse_job(data).tasks
    else:
        assert workload_from_json(data["workload"]).symbols, "a fragment is a workload and its shape variables"


@pytest.mark.parametrize("block", blocks_of("json"), ids=str)
def test_json_is_json(block: Block) -> None:
    assert json.loads(block.text)


@pytest.mark.parametrize("block", blocks_of("program"), ids=str)
def test_programs_are_programs(block: Block) -> None:
    _, is_one, extents = block.marker.partition("extents: ")
    if not is_one:
        # A table of programs, each behind its name.
        for line in block.text.splitlines():
            assert Program.parse(line.split(maxsplit=1)[1]).inputs
        return
    data = {"program": block.text, "extents": dict(pair.split("=") for pair in extents.split())}
    assert workload_from_json(data).program.stages


@pytest.mark.parametrize("block", [block for block in blocks_of("c") if block.page.parent != TUTORIALS], ids=str)
def test_c_compiles(block: Block, tmp_path: Path) -> None:
    """Prototypes as they are; statements in a function that has their operands."""
    header = tmp_path / "shapewright" / "qkv.h"
    header.parent.mkdir()
    prototypes = next(each for each in blocks(DOCS / "reference" / "c.md") if each.language == "c")
    header.write_text(prototypes.text.replace("NAME", "qkv"))
    lines = block.text.splitlines(keepends=True)
    includes = "".join(line for line in lines if line.startswith("#include"))
    rest = "".join(line for line in lines if not line.startswith("#include"))
    if includes:
        rest = f"void called(const float *x, const float *w, float *out, int64_t m) {{\n{rest}}}\n"
    standard = "".join(f"#include <{name}.h>\n" for name in ("stdint", "stddef", "stdio", "stdlib"))
    source = tmp_path / "block.c"
    source.write_text(standard + includes + rest)
    command = ["cc", "-std=c11", "-Wall", "-Werror", "-fsyntax-only", f"-I{tmp_path}", str(source)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", blocks_of("bash"), ids=str)
def test_shell_blocks_parse_and_what_they_call_exists(block: Block, tmp_path: Path) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    for line in lines_of(block.text):
        for command in commands_of(line):
            check(command, tmp_path)


def lines_of(text: str) -> Iterator[str]:
    """The lines of a shell's text; those that a backslash or an open quote joins are one."""
    line = ""
    for part in text.replace("\\\n", " ").splitlines():
        line = f"{line}\n{part}" if line else part
        try:
            shlex.split(line, comments=True)
        except ValueError:
            continue  # a quote is still open
        yield line
        line = ""
    assert line == "", f"a quote is left open: {line}"


def commands_of(line: str) -> list[list[str]]:
    """The commands of a line that ``&&`` joins, without assignments and comments. What ``$(...)`` holds is left out."""
    words = shlex.split(re.sub(r"\$\([^()]*\)", "SUBSTITUTED", line), comments=True)
    result: list[list[str]] = [[]]
    for word in words:
        if word == "&&":
            result.append([])
        elif result[-1] or not re.match(r"\w+=", word):
            result[-1].append(word)
    return [command for command in result if command]


def check(command: list[str], directory: Path) -> None:
    """Fails for a command line that its program would not take."""
    program, *arguments = command
    name = program.rsplit("/", 1)[-1]
    if name == "shapewright":
        assert parse([name, *(placed(word, directory) for word in arguments)])
    elif name == "make":
        assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif name == "python" and arguments[0] == f"h100/{RUNNER}":
        assert parser_of(directory).parse_args(arguments[1:])
    elif name == "python":
        assert arguments[0] == "-m"
        assert find_spec(arguments[1]), arguments[1]
        if arguments[1].startswith("worker"):
            parse(["python", *arguments])
    elif name == "curl":
        check_route(arguments)
    elif name in ("pip", "cc", "main", "example", "apt-get"):
        assert arguments or name in ("main", "example")
    elif name not in ELSEWHERE:
        raise click.UsageError(f"no test knows {name!r}")


def placed(word: str, directory: Path) -> str:
    """A word; where it names a file that must exist, that file, which is made."""
    if not (word.endswith((".yaml", ".onnx")) or word.rstrip("/") in HELD):
        return word
    path = directory / word
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".yaml":
        path.write_text(next(block.text for block in blocks(DOCS / "reference" / "job.md") if block.language == "yaml"))
    elif path.suffix:
        path.touch()
    else:
        path.mkdir(exist_ok=True)
    return str(path)


def check_route(arguments: list[str]) -> None:
    """The address of a curl is that of a route, by its method."""
    (address,) = (word for word in arguments if word.startswith("http://"))
    method = "POST" if {"-d", "--data-binary"} & set(arguments) else "GET"
    path = re.sub(r"^http://[^/]+|\?.*", "", address)
    if "-d" in arguments:
        assert json.loads(arguments[arguments.index("-d") + 1])
    routes = (re.sub(r"\{\w+\}", "[^/]+", route) for route, _ in operations())
    assert any(re.fullmatch(route, f"{method} {path}") for route in routes), path


def test_the_key_on_the_pages_is_that_of_the_job_beside_it() -> None:
    workload = first_job_of("howto/pull-a-library.md").workload
    pages = {page for page in PAGES if page.parent.name == "howto" and re.search(r"wl-[0-9a-f]{16}", page.read_text())}
    assert {name_of(page) for page in pages} == {"docs/howto/look-up-kernels.md"}
    for page in pages:
        assert set(re.findall(r"wl-[0-9a-f]+", page.read_text())) == {workload.key}
    assert workload.dims({"T": 37}) == {"m": 592}
