"""Kernels against vendor libraries: tune each workload of a suite, then time its library and every rival.

    python -m benchmarks.kernels SUITE.yaml [--workload NAME] [--threads N] [--trials N] [--seconds S] [--seed N]
                                 [--against mm,linear,mkl,onednn,compile,bucket,single] --json OUT

Every library is first checked against a float64 reference at every test shape. One thread: all sides in this process,
in alternating samples. More: each side in a process of its own, in alternating rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.sides import elsewhere, inputs_of, limit_threads, side

DEFAULT_RIVALS = "mm,linear,mkl,onednn"
OWN_RIVALS = ("bucket", "single")
SHORTEST_S = 20e-6
"""Shapes that ours serves faster than this are reported and left out of the means: a call's own cost decides there."""
SECONDS = 150.0
TRIALS = 512


@dataclass
class Report:
    """The rows and facts that the JSON document is made of."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    tuning: list[dict[str, Any]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def main() -> int:
    options = _options()
    limit_threads(options.threads)
    # Only now: BLAS libraries read the environment when NumPy loads them.
    from benchmarks.peak import fma_peak_flops  # noqa: PLC0415
    from benchmarks.suite import read_suite  # noqa: PLC0415
    from tuner.target import native  # noqa: PLC0415

    target = native()
    name, benchmarks = read_suite(options.suite, target, options.threads)
    report = Report()
    for benchmark in benchmarks:
        if options.workload in (None, benchmark.name):
            peak = options.threads * fma_peak_flops(target)
            with tempfile.TemporaryDirectory(prefix="shapewright-bench-") as folder:
                _one(benchmark, options, peak, Path(folder), report)
    if not report.rows:
        print(f"{name} has no workload {options.workload!r}", file=sys.stderr)
        return 2
    document = _document(report, name, options, target.fingerprint)
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document["summary"], indent=1))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("suite", type=Path)
    parser.add_argument("--workload", help="only this one of the suite")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--against", default=DEFAULT_RIVALS, help="rivals, comma-separated")
    parser.add_argument("--json", type=Path, required=True)
    return parser.parse_args()


def _one(benchmark: Any, options: argparse.Namespace, peak: float, folder: Path, report: Report) -> None:
    """Tune, check and time one workload."""
    from shapewright.session import tune_here  # noqa: PLC0415 - after the threads are limited

    tuned = tune_here(benchmark.task, trials=options.trials, seconds=options.seconds, seed=options.seed)
    libraries = {"ours": tuned.save(folder / "ours")}
    rivals = [name for name in options.against.split(",") if name]
    for name in set(rivals) & set(OWN_RIVALS):
        from benchmarks.ablations import save_ablation  # noqa: PLC0415

        libraries[name] = save_ablation(name, tuned, folder / name)
    report.tuning.append({"workload": benchmark.name, **tuned.summary})
    _say(f"{benchmark.name}: {tuned.summary['trials']} trials, {tuned.summary['elapsed_s']:.0f} s")
    errors = _errors(benchmark, libraries["ours"])
    for shape, times in _times(benchmark, ["ours", *rivals], libraries, options.threads, report):
        ours = times.pop("ours")
        flops = benchmark.task.workload.flops(shape)
        best = min(times.values(), default=float("nan"))
        report.rows.append(
            {
                "workload": benchmark.name,
                "shape": shape,
                "tuned_on": benchmark.tuned_on(shape),
                "ours_s": ours,
                "rivals_s": times,
                "flops": flops,
                "peak_fraction": flops / ours / peak,
                "max_abs_error": errors[str(shape)],
            }
        )
        _say(f"  {shape}  {ours * 1e6:10.1f} us  {flops / ours / 1e9:7.1f} GFLOP/s  {best / ours:5.2f}x the best rival")


def _errors(benchmark: Any, directory: Path) -> dict[str, float]:
    """The largest difference from the float64 reference at each test shape. Raises ValueError if one is no rounding."""
    import numpy as np  # noqa: PLC0415

    import shapewright as sw  # noqa: PLC0415
    from tuner.ops.reference import compute, tolerance  # noqa: PLC0415

    library, workload, found = sw.load(directory), benchmark.task.workload, {}
    for shape in benchmark.test:
        inputs: list[Any] = list(inputs_of(workload, shape))
        expected = compute(workload, inputs)
        out = np.full(expected.shape, np.nan, np.float32)
        if workload.op.contraction.right.constant:
            inputs[1] = library.pack(inputs[1])
        library(*inputs, out)
        rtol, atol = tolerance(workload, workload.extents(shape)["k"])
        if not np.allclose(out, expected, rtol, atol):
            raise ValueError(f"{benchmark.name} at {shape}: wrong by {np.abs(out - expected).max():g}")
        found[str(shape)] = float(np.abs(out - expected).max(initial=0.0))
    return found


def _times(benchmark: Any, names: list[str], libraries: Mapping[str, Path], threads: int, report: Report) -> Any:
    """(shape, seconds by side) for every test shape; rivals that do not apply are noted and left out."""
    from benchmarks.alternating import alternate, sampler  # noqa: PLC0415
    from benchmarks.rivals import DoesNotApply  # noqa: PLC0415

    workload, any_shape = benchmark.task.workload, benchmark.test[0]
    with ExitStack() as stack:
        sides: dict[str, Any] = {}
        for name in names:
            arguments = (name, workload, any_shape, libraries.get(name), threads)
            try:
                if threads > 1:
                    sides[name] = stack.enter_context(elsewhere(*arguments))
                else:
                    call = side(*arguments)
                    sides[name] = lambda shape, call=call: sampler(call(shape))
            except DoesNotApply as reason:
                report.skipped[f"{benchmark.name}/{name}"] = str(reason)
        for shape in benchmark.test:
            yield shape, alternate({name: samples(shape) for name, samples in sides.items()}, budget_s=1.0)


def _document(report: Report, suite: str, options: argparse.Namespace, fingerprint: str) -> dict[str, Any]:
    from benchmarks.alternating import geomean  # noqa: PLC0415

    counted = [row for row in report.rows if row["ours_s"] >= SHORTEST_S and row["rivals_s"]]
    held_out = [row for row in counted if not row["tuned_on"]]
    names = list(dict.fromkeys(name for row in counted for name in row["rivals_s"]))

    def against_best(rows: list[dict[str, Any]]) -> list[float]:
        # Our own ablations are no vendors.
        vendors = [{k: v for k, v in row["rivals_s"].items() if k not in OWN_RIVALS} for row in rows]
        return [min(v.values()) / row["ours_s"] for v, row in zip(vendors, rows, strict=True) if v]

    best, best_held_out = against_best(counted), against_best(held_out)
    summary = {
        "geomean_vs": {
            name: geomean([row["rivals_s"][name] / row["ours_s"] for row in counted if name in row["rivals_s"]])
            for name in names
        },
        "geomean_vs_best": geomean(best) if best else None,
        "geomean_vs_best_held_out": geomean(best_held_out) if best_held_out else None,
        "worst_vs_best": min(best) if best else None,
        "tuning_s": sum(item["elapsed_s"] for item in report.tuning),
        "trials": sum(item["trials"] for item in report.tuning),
        "kernels": {item["workload"]: item["kernels"] for item in report.tuning},
        "regret": None,
        "max_abs_error": max(row["max_abs_error"] for row in report.rows),
    }
    protocol = {
        "suite": suite,
        "threads": options.threads,
        "seed": options.seed,
        "target": fingerprint,
        "timing": asdict(_Timing()),
        "left_out_of_means_below_s": SHORTEST_S,
        "skipped": report.skipped,
        "tuning": report.tuning,
    }
    return {"rows": report.rows, "summary": summary, "protocol": protocol}


@dataclass(frozen=True)
class _Timing:
    """How sides are timed, in words; benchmarks/alternating.py does it."""

    order: str = "alternating samples, rotating order"
    sample: str = "as many calls as 4 ms take, one at least; up to 7 samples, 3 at least"
    value: str = "median"
    cache: str = "warm"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
