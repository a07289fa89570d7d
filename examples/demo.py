"""The main job from start to end: start everything, take what theory alone gives, tune, pull, check.

    python -m examples.demo [--job JOB.yaml] [--keep DIR] [--json FILE]

A job without trials gives a library at once; a search for a dynamic-shape dense layer goes on from there. Every shape
of the range is checked against NumPy, with a guard region behind the output, and timed against the library of theory
and NumPy's BLAS (and PyTorch where it is installed), in turns, one thread each.
"""

from __future__ import annotations

import os

# One thread for every contender. BLAS libraries read this when they are loaded, so before NumPy is.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse  # noqa: E402
import importlib.util  # noqa: E402
import json  # noqa: E402
import shutil  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Iterator, Mapping  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

import shapewright as sw  # noqa: E402
from benchmarks.harness.local_service import local_service, say  # noqa: E402
from benchmarks.harness.turns import alternate, geomean, sampler  # noqa: E402
from tuner.program.job.documents import read_yaml  # noqa: E402

JOB = Path(__file__).with_name("bert_dense.yaml")
JOB_S = 600.0
OUT_OF_TIME, INTERRUPTED = 6, 130
GUARD = 4096
POISON = np.float32(12345.678)
TOLERANCE = 1e-3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--job", type=Path, default=JOB, help="a job file with a dense workload of one shape variable")
    parser.add_argument("--keep", type=Path, help="keep the pulled library here")
    parser.add_argument("--json", type=Path, help="write the table and the trials here too")
    options = parser.parse_args()
    try:
        return _demo(options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _demo(options: argparse.Namespace) -> int:
    with _folder() as folder:
        directory = options.keep or folder / "library"
        with local_service(folder / "data") as environment:
            theory = _theory(options.job, folder, environment)
            job_id = _tune(options.job, environment)
            _shapewright(environment, "pull", str(options.job), "-o", str(directory), "--job", job_id)
            trials = _trials(job_id, environment)
        library = sw.load(directory)
        say(f"\nlibrary: {library}; kernels:")
        for kernel in library.kernels:
            say(f"  {kernel.id}  {kernel}")
        rows, wrong = _compare(library, sw.load(theory))
    _conclude(library.dispatcher.task.shape_vars[0], rows, wrong)
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "trials": trials, "wrong": wrong}, indent=1) + "\n")
    return 1 if wrong else 0


@contextmanager
def _folder() -> Iterator[Path]:
    """A temporary directory. Where the demo fails the service's logs in it are kept, and named."""
    folder = Path(tempfile.mkdtemp(prefix="shapewright-demo-"))
    logs = folder / "data" / "logs"
    failed = False
    try:
        yield folder
    except (Exception, SystemExit):
        failed = logs.exists()
        raise
    finally:
        if failed:
            kept = Path(tempfile.mkdtemp(prefix="shapewright-demo-logs-"))
            shutil.copytree(logs, kept, dirs_exist_ok=True)
            print(f"the service's logs are kept in {kept}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)


# -- the commands ------------------------------------------------------------------------------------------------------
def _theory(job: Path, folder: Path, environment: dict[str, str]) -> Path:
    """The library of the same job with no trials: chosen by the analytic model alone."""
    without = read_yaml(job.read_bytes())
    assert isinstance(without, dict)
    path = folder / "theory.yaml"
    # JSON is YAML.
    path.write_text(json.dumps(without | {"name": "theory alone", "budget": {"trials": 0}}))
    started = time.monotonic()
    job_id = _tune(path, environment)
    say(f"theory alone chose a library, built and verified in {time.monotonic() - started:.1f} s; now the search")
    _shapewright(environment, "pull", str(path), "-o", str(folder / "theory"), "--job", job_id)
    return folder / "theory"


def _tune(job: Path, environment: dict[str, str]) -> str:
    answer = json.loads(_shapewright(environment, "submit", str(job), "--wait", "--timeout", str(int(JOB_S)), "--json"))
    return str(answer["job_id"])


def _shapewright(environment: dict[str, str], *arguments: str) -> str:
    """Run a command of the CLI as a user would; its progress goes to our own stderr."""
    say(f"$ shapewright {' '.join(arguments)}")
    command = [sys.executable, "-m", "shapewright", *arguments]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=JOB_S + 60, check=False)
    if done.returncode in (-signal.SIGINT, INTERRUPTED):
        raise KeyboardInterrupt
    if done.returncode != 0:
        raise SystemExit(_failure(arguments[0], done))
    return done.stdout


def _failure(name: str, done: subprocess.CompletedProcess[str]) -> str:
    """What a command had to say. The advice that it gives on time running out is for a service that stays."""
    what = f"`shapewright {name}` ended with exit code {done.returncode}"
    if done.returncode == OUT_OF_TIME:
        return f"{what}: the job was not done within {JOB_S:g} s"
    try:
        return f"{what}: {json.loads(done.stdout)['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"{what}\n{done.stdout}".rstrip()  # one without --json has told it on stderr


def _trials(job_id: str, environment: dict[str, str]) -> list[dict[str, Any]]:
    """Every trial of the job, in order."""
    with sw.Client(environment["SHAPEWRIGHT_URL"], data_dir=environment["SHAPEWRIGHT_DATA_DIR"]) as client:
        return list(client.trials(job_id))


# -- the comparison ---------------------------------------------------------------------------------------------------
Row = dict[str, Any]
Array = np.ndarray[Any, Any]
Rival = Callable[[Array], Callable[[], object]]
"""From an input, the call to time."""


def _compare(library: sw.Library, theory: sw.Library) -> tuple[list[Row], list[str]]:
    """Check and time every shape of the range: a row for each, and what was wrong."""
    task = library.dispatcher.task
    (variable,) = task.shape_vars
    workload = library.workload
    sizes = workload.axis_sizes(workload.dims({variable.name: variable.max}))
    rng = np.random.default_rng(0)
    weight = rng.uniform(-1, 1, (sizes["n"], sizes["k"])).astype(np.float32)
    packed, rivals = library.pack(weight), {"theory": _of(theory, weight), **_rivals(weight)}
    tuned = {instance.shape[variable.name] for instance in task.instances}
    say(f"\n{variable.name:>4} {'m':>6}  {'kernel':<12} {'ours us':>10} " + _columns(f"{name} us" for name in rivals)
        + _columns(f"vs {name}" for name in rivals) + "(* tuned on)")  # fmt: skip
    rows, wrong = [], []
    for value in variable.values:
        dims = workload.dims({variable.name: value})
        m = workload.axis_sizes(dims)["m"]
        x = rng.uniform(-1, 1, (m, sizes["k"])).astype(np.float32)
        problem = _problem(library, x, weight, packed)
        if problem:
            wrong.append(f"{variable.name}={value}: {problem}")
        times = _times(library, x, packed, sizes["n"], rivals)
        flops = workload.flops(dims)
        kernel = library.kernel_for(**{variable.name: value}).id
        rows.append({"shape": value, "m": m, "kernel": kernel, "tuned_on": value in tuned, "flops": flops, **times})
        _show(rows[-1], list(rivals))
    return rows, wrong


def _times(library: sw.Library, x: Array, packed: sw.PackedWeight, n: int, rivals: Mapping[str, Rival]) -> Row:
    out = np.empty((len(x), n), np.float32)
    calls = {"ours": lambda: library(x, packed, out)} | {name: rival(x) for name, rival in rivals.items()}
    times = alternate({name: sampler(call) for name, call in calls.items()}, budget_s=0.25)
    return {"ours_s": times["ours"], "rivals_s": {name: times[name] for name in rivals}}


def _show(row: Row, rivals: list[str]) -> None:
    mark = "*" if row["tuned_on"] else " "
    say(f"{row['shape']:>3}{mark} {row['m']:>6}  {row['kernel']:<12} {row['ours_s'] * 1e6:>10.1f} "
        + _columns(f"{row['rivals_s'][name] * 1e6:.1f}" for name in rivals)
        + _columns(f"{row['rivals_s'][name] / row['ours_s']:.2f}x" for name in rivals))  # fmt: skip


def _columns(texts: Any) -> str:
    return " ".join(f"{text:>10}" for text in texts) + " "


def _problem(library: sw.Library, x: Array, weight: Array, packed: sw.PackedWeight) -> str | None:
    """What is wrong with the library's result for ``x``; None if it is NumPy's and nothing behind it was touched."""
    size = len(x) * len(weight)
    memory = np.full(size + GUARD, POISON, np.float32)
    out = memory[:size].reshape(len(x), len(weight))
    library(x, packed, out)
    if not (memory[size:] == POISON).all():
        return "memory behind the output was overwritten"
    error = float(np.abs(out - x @ weight.T).max())
    return None if error <= TOLERANCE else f"differs from NumPy by {error:g}"


def _of(library: sw.Library, weight: Array) -> Rival:
    packed = library.pack(weight)

    def call(x: Array) -> Callable[[], object]:
        out = np.empty((len(x), len(weight)), np.float32)
        return lambda: library(x, packed, out)

    return call


def _rivals(weight: Array) -> dict[str, Rival]:
    """By name. Each has its output allocated beforehand where it can."""

    def numpy(x: Array) -> Callable[[], object]:
        transposed, out = weight.T, np.empty((len(x), len(weight)), np.float32)
        return lambda: np.matmul(x, transposed, out=out)

    rivals: dict[str, Rival] = {"numpy": numpy}
    if importlib.util.find_spec("torch") is None:
        say("PyTorch is not installed and not compared with: `make demo EXTRAS=bench` installs it")
        return rivals
    import torch  # noqa: PLC0415 - an optional rival

    torch.set_num_threads(1)
    constant = torch.from_numpy(weight)

    def linear(x: Array) -> Callable[[], object]:
        tensor = torch.from_numpy(x)
        return lambda: torch.nn.functional.linear(tensor, constant)

    return {**rivals, "torch": linear}


def _conclude(variable: sw.ShapeVar, rows: list[Row], wrong: list[str]) -> None:
    for name in rows[0]["rivals_s"]:
        ratios = [row["rivals_s"][name] / row["ours_s"] for row in rows]
        say(f"\ngeometric mean over {variable.name} in {variable.min}..{variable.max}: {geomean(ratios):.3f}x {name} "
            f"(least {min(ratios):.2f}x, most {max(ratios):.2f}x)")  # fmt: skip
    if wrong:
        say(f"\nWRONG at {len(wrong)} of {len(rows)} shapes:\n  " + "\n  ".join(wrong))
    else:
        say(f"all {len(rows)} shapes match NumPy (largest difference allowed {TOLERANCE:g}), guard regions intact")


if __name__ == "__main__":
    sys.exit(main())
