"""Writes a bundle: candidates are compiled here, without a GPU, and linked into one launcher for each search task."""

from __future__ import annotations

import json
import lzma
import pickle
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner import __version__
from tuner.bundle import CHOICES, OTHERS, host
from tuner.bundle.candidates import candidates_of
from tuner.bundle.form import BUNDLE, JOB, RESULTS, RUNNER, Candidate, Entry, write_entries
from tuner.errors import InvalidInput, ShapewrightError
from tuner.library.gpu.build import build_launcher
from tuner.measure import Builder, BuildResult
from tuner.program.job.jobspec import parse_job
from tuner.program.job.task import SearchTask
from tuner.schedule import emit, layouts_of
from tuner.storage.jsonl import SharedRecord

LIST = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
print(json.dumps({name: each.__file__ for name, each in sys.modules.items() if getattr(each, "__file__", None)}))
"""
LIST_S = 60.0
START = '''"""Measures the kernels of this bundle on a GPU of this machine: python {runner} --help."""
import os
import sys
from pathlib import Path

if sys.version_info < (3, 11):
    sys.exit("this needs Python 3.11 or later, NumPy and NVIDIA's driver: python is " + sys.version.split()[0])
HERE = Path(__file__).resolve().parent
# For processes that it starts.
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])

from {host} import main

if __name__ == "__main__":
    main(HERE)
'''


@dataclass(frozen=True)
class Written:
    """How many candidates there are, how many were left out since they do not compile, and the bytes of all files."""

    candidates: int
    left_out: int
    size: int


def job_for(document: Mapping[str, Any], archs: Sequence[str]) -> dict[str, Any]:
    """A job for these instruction sets, if any, in place of its own targets. It chooses by what is known: ``trials``
    are left out."""
    own = {name: value for name, value in document.items() if not archs or name not in ("target", "targets")}
    targets = {"targets": [{"kind": "cuda", "arch": arch} for arch in archs]} if archs else {}
    return {**own, **targets, "budget": {"trials": 0}}


def write_bundle(
    folder: Path,
    document: Mapping[str, Any],
    builder: Builder,
    *,
    choices: int = CHOICES,
    others: int = OTHERS,
    seed: int = 0,
    known: Sequence[SharedRecord] = (),
    say: Callable[[str], object] = print,
) -> Written:
    """Write the candidates of a job into a new folder. ``known``: records that they are chosen by. Raises InvalidInput
    on a field of the job, or ``DIR``."""
    tasks = [task.with_least_shape() for task in parse_job(document).tasks]
    if any(task.target is None or task.target.gpu is None for task in tasks):
        raise InvalidInput("target", "is no GPU", "{kind: cuda, arch: ...}, or name it by --arch")
    _make_empty(folder)
    entries, left_out = list[Entry](), 0
    for number, task in enumerate(tasks):
        kernels = candidates_of(task, choices, others, seed, known)
        builds = builder.build(task, kernels)
        entry = _entry(folder, number, task, builds)
        failed = Counter(str(build.error_kind) for build in builds if build.binary is None)
        left_out += failed.total()
        why = "".join(f", {count} left out ({kind})" for kind, count in failed.items())
        title = f"{task.workload} {task.workload.inputs[0].dtype} on {task.target}"
        say(f"{number + 1} of {len(tasks)}: {title}: {len(entry.candidates)} candidates{why}")
        entries.append(entry)
    _copy_host(folder)
    (folder / RUNNER).write_text(START.format(runner=RUNNER, host=host.__name__))
    (folder / JOB).write_text(json.dumps(document, indent=1))
    # The last: what has it is whole.
    write_entries(folder, entries, __version__)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Written(sum(len(each.candidates) for each in entries), left_out, size)


def _make_empty(folder: Path) -> None:
    """Raises InvalidInput where there is something already that is no bundle."""
    if (folder / RESULTS).exists():
        raise InvalidInput("DIR", f"{folder} holds results of a bundle", "name a new folder")
    if folder.is_dir() and (folder / BUNDLE).is_file():
        shutil.rmtree(folder)
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput("DIR", f"{folder} is there already, and is no bundle", "name a new folder")
    folder.mkdir(parents=True, exist_ok=True)


def _entry(folder: Path, number: int, task: SearchTask, builds: Sequence[BuildResult]) -> Entry:
    """Raises ShapewrightError where nothing was built."""
    good = [build for build in builds if build.binary is not None]
    if not good:
        raise ShapewrightError(f"no kernel for {task.workload} on {task.target} can be compiled: {builds[0].error}")
    made = [(emit(task, build.kernel, build.kernel.id), pickle.loads(build.code)) for build in good]
    code = f"{number}.so.xz"
    (folder / code).write_bytes(lzma.compress(build_launcher(made)))
    candidates = [Candidate(build.kernel, layouts_of(task, build.kernel), build.build_s) for build in good]
    return Entry(task, code, candidates)


def _copy_host(folder: Path) -> None:
    """The modules of the runner, and tables that stand beside them."""
    for name, path in _modules_of_host().items():
        is_package = path.name == "__init__.py"
        place = folder / Path(*name.split("."), *(["__init__.py"] if is_package else []))
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place if is_package else place.with_suffix(".py"))
        for table in path.parent.glob("*.json") if is_package else ():
            shutil.copyfile(table, place.parent / table.name)


def _modules_of_host() -> dict[str, Path]:
    """This project's modules that the runner imports, and where they are. They import NumPy, and nothing else."""
    command = [sys.executable, "-c", LIST, host.__name__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIST_S, check=True)
    root = host.__name__.partition(".")[0]
    return {name: Path(path) for name, path in json.loads(done.stdout).items() if name.partition(".")[0] == root}
