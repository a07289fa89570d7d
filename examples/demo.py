"""The main job from start to end: start everything, take what theory alone gives, tune, pull, check.

    python -m examples.demo [--job JOB.yaml] [--keep DIR] [--json FILE]

A job without trials gives a library at once; a search for a dynamic-shape dense layer goes on from there. Every shape
of the range is checked against NumPy, with a guard region behind the output, and timed against the library of theory
and NumPy's BLAS (and PyTorch where it is installed), in turns, one thread each. The table of all shapes goes to a file.
"""

from __future__ import annotations

import os

from tuner.blas import ONE_THREAD, Blas, cleaned, numpys_blas

# As on a device: one thread for every contender, and the BLAS's own choice of kernels. BLAS libraries read this when
# they are loaded, so before NumPy is.
CLEANED = cleaned(os.environ)
os.environ.update(ONE_THREAD)

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
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

import shapewright as sw  # noqa: E402
from examples.local_service import local_service, say  # noqa: E402
from tuner.device_speed import over_all  # noqa: E402
from tuner.measure.timing.protocol import Anchor  # noqa: E402
from tuner.measure.timing.turns import LEAST_TURNS, TurnTaking, called  # noqa: E402
from tuner.measure.timing.waiting import waited_s  # noqa: E402
from tuner.program.job.documents import read_yaml  # noqa: E402
from tuner.program.target import native  # noqa: E402
from tuner.search.comparison import ratio_of, times_of  # noqa: E402
from tuner.search.verdict import DEFAULT, Ratio, Verdict, caution_of  # noqa: E402

JOB = Path(__file__).with_name("bert_dense.yaml")
JOB_S = 600.0
OUT_OF_TIME, INTERRUPTED = 6, 130
GUARD = 4096
POISON = np.float32(12345.678)
TOLERANCE = 1e-3
TURNS_S = 60.0
"""The time that all libraries may take at all shapes, about, in turns."""
TABLE = "shapewright-demo-shapes.txt"
THEORY = "theory"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--job", type=Path, default=JOB, help="a job file with a dense workload of one shape variable")
    parser.add_argument("--keep", type=Path, help="keep the pulled library here")
    parser.add_argument("--json", type=Path, help="write the table and the trials here too")
    folder = Path(tempfile.gettempdir())
    parser.add_argument("--table", type=Path, default=folder / TABLE, help="where the table of all shapes goes")
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
            job = _tune(options.job, environment)
            _shapewright(environment, "pull", str(options.job), "-o", str(directory), "--job", str(job["job_id"]))
            trials = _trials(str(job["job_id"]), environment)
        library = sw.load(directory)
        say(f"\nlibrary: {library}; kernels:")
        for kernel in library.kernels:
            say(f"  {kernel.id}  {kernel.shown}")
        timed = _compare(library, sw.load(theory))
    lines = timed.table()
    options.table.write_text("\n".join(line for _, line in lines) + "\n")
    say("\n".join(["", *(line for is_shown, line in lines if is_shown), f"all shapes: {options.table}", ""]))
    say("\n".join(timed.conclusion(job)))
    if options.json:
        document = {"rows": timed.rows, "trials": trials, "wrong": timed.wrong}
        document["ratios"] = [ratio.to_json() for ratio in timed.ratios]
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if timed.wrong else 0


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
    job_id = str(_tune(path, environment)["job_id"])
    say(f"theory alone chose a library, built and verified in {time.monotonic() - started:.1f} s; now the search")
    _shapewright(environment, "pull", str(path), "-o", str(folder / "theory"), "--job", job_id)
    return folder / "theory"


def _tune(job: Path, environment: dict[str, str]) -> dict[str, Any]:
    """What `submit --wait` says of the job that it submits."""
    waits = "--wait", "--timeout", str(int(JOB_S)), "--json"
    return dict(json.loads(_shapewright(environment, "submit", str(job), *waits)))


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


@dataclass(frozen=True)
class Timed:
    """The library beside its rivals at every shape. ``ratios`` are of all shapes together, ``rows`` one for each. Where
    time was too short for LEAST_TURNS there are no ratios, and rows have no seconds."""

    library: sw.Library
    rows: list[Row]
    ratios: list[Ratio]
    wrong: list[str]
    blas: Blas | None
    caution: str

    def table(self) -> list[tuple[bool, str]]:
        """The lines of the table, each with whether it is of a shape that was tuned, as the header counts."""
        rivals = list(self.rows[0]["rivals_s"])
        (variable,) = self.library.dispatcher.task.shape_vars
        head = f"{variable.name:>4} {'m':>6}  {'kernel':<12} {'ours us':>10} " + _columns(
            f"{name} us" for name in rivals
        )
        lines = [(True, head + _columns(f"vs {name}" for name in rivals) + "(* tuned on)")]
        for row in self.rows:
            mark = "*" if row["tuned_on"] else " "
            ours = f"{row['ours_s'] * 1e6:.1f}" if rivals else "-"
            line = f"{row['shape']:>3}{mark} {row['m']:>6}  {row['kernel']:<12} {ours:>10} "
            line += _columns(f"{row['rivals_s'][name] * 1e6:.1f}" for name in rivals)
            lines.append(
                (row["tuned_on"], line + _columns(f"{row['rivals_s'][n] / row['ours_s']:.2f}x" for n in rivals))
            )
        return lines

    def conclusion(self, job: Mapping[str, Any]) -> list[str]:
        """What was tuned, how much faster than what, and whether it is right: a line each."""
        task, summary = self.library.dispatcher.task, job["summary"]
        (variable,) = task.shape_vars
        shapes = f"{variable.name} = {variable.min} to {variable.max}"
        took = f"{job['trials']} trials, {summary['elapsed_s']:.0f} s, {summary['kernels']} kernels"
        tuned = f"{task.workload} for {shapes}: {took}"
        right = f"all {len(self.rows)} shapes match NumPy within {TOLERANCE:g}, and no memory around them was touched"
        wrong = f"WRONG at {len(self.wrong)} of {len(self.rows)} shapes: " + "; ".join(self.wrong)
        return [f"tuned: {tuned}", f"speed: {self._speed()}", f"right: {wrong if self.wrong else right}"]

    def _speed(self) -> str:
        if not self.ratios:
            least = f"{2 * TURNS_S:g} s are too short to take {LEAST_TURNS} turns"
            return f"not timed: {least} on this machine, which is slow or busy; run it again when nothing else runs"
        speed = ", ".join(map(str, self.ratios))
        if any(ratio.over == DEFAULT and ratio.verdict is not Verdict.FASTER for ratio in self.ratios):
            speed += "; theory was enough here, the search gained nothing beyond it"
        return f"{speed} (all {len(self.rows)} shapes together, in turns; NumPy has {self.blas}){self.caution}"


def _compare(library: sw.Library, theory: sw.Library) -> Timed:
    """Check every shape of the range, then time all of them in turns."""
    task = library.dispatcher.task
    (variable,) = task.shape_vars
    workload = library.workload
    sizes = workload.axis_sizes(workload.dims({variable.name: variable.max}))
    rng = np.random.default_rng(0)
    weight = rng.uniform(-1, 1, (sizes["n"], sizes["k"])).astype(np.float32)
    x = rng.uniform(-1, 1, (sizes["m"], sizes["k"])).astype(np.float32)
    packed, ours = library.pack(weight), _of(library, weight, sizes["m"])
    rivals = {THEORY: _of(theory, weight, sizes["m"]), **_rivals(weight, sizes["m"])}
    tuned = {instance.shape[variable.name] for instance in task.instances}
    rows, wrong, blocks = [], [], []
    for value in variable.values:
        dims = workload.dims({variable.name: value})
        m, kernel = workload.axis_sizes(dims)["m"], library.kernel_for(**{variable.name: value}).id
        if problem := _problem(library, x[:m], weight, packed):
            wrong.append(f"{variable.name}={value}: {problem}")
        calls = [ours(x[:m]), *(rival(x[:m]) for rival in rivals.values())]
        blocks.append([called(call) for call in calls])
        flops = workload.flops(dims)
        rows.append({"shape": value, "m": m, "kernel": kernel, "tuned_on": value in tuned, "flops": flops})
    say(f"\ntiming {len(rows)} shapes in turns, for up to {TURNS_S:g} s")
    turns = TurnTaking(blocks, Anchor().seconds, TURNS_S, waited=waited_s).run()
    if len(turns.seconds) < LEAST_TURNS:
        rows = [row | {"ours_s": None, "rivals_s": {}} for row in rows]
        return Timed(library, rows, [], wrong, None, "")
    times = [times_of(turns, place) for place in range(1 + len(rivals))]
    for at, row in enumerate(rows):
        ours_s, *rivals_s = (float(np.median(each[:, at])) for each in times)
        row |= {"ours_s": ours_s, "rivals_s": dict(zip(rivals, rivals_s, strict=True))}
    everywhere = [1.0] * len(rows)
    names = [DEFAULT if name == THEORY else name for name in rivals]
    ratios = [ratio_of(name, times[0], theirs, everywhere) for name, theirs in zip(names, times[1:], strict=True)]
    caution = caution_of(over_all([anchor_s for turn in turns.anchors_s for anchor_s in turn]))
    blas = numpys_blas(native().hardware.features)
    return Timed(library, rows, ratios, wrong, blas, f"; {caution}" if caution else "")


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


def _of(library: sw.Library, weight: Array, most: int) -> Rival:
    """Its output is a part of one array for all shapes, of ``most`` rows."""
    packed, out = library.pack(weight), np.empty((most, len(weight)), np.float32)

    def call(x: Array) -> Callable[[], object]:
        part = out[: len(x)]
        return lambda: library(x, packed, part)

    return call


def _rivals(weight: Array, most: int) -> dict[str, Rival]:
    """By name. Each has its output allocated beforehand where it can."""
    transposed, product = weight.T, np.empty((most, len(weight)), np.float32)

    def numpy(x: Array) -> Callable[[], object]:
        out = product[: len(x)]
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


if __name__ == "__main__":
    sys.exit(main())
