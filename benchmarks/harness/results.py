"""The document of a benchmark: rows, what they come to, and how they were measured; and options that all share."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tuner.errors import InvalidInput

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("apache-tvm", "numpy", "torch", "xgboost-cpu")
LOAD_AT_THE_START = os.getloadavg()
"""When the benchmark was loaded."""
Row = dict[str, Any]


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


# -- where a figure comes from ----------------------------------------------------------------------------------------
def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


def machine() -> dict[str, Any]:
    """What figures depend on: the CPU and how busy it was, the commit, the command, the date, the versions."""
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": list(LOAD_AT_THE_START),
        "load_average_at_the_end": list(os.getloadavg()),
        "commit": _commit(),
        "command": _command(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **_versions()},
    }


def _versions() -> dict[str, str]:
    result = {}
    for name in PACKAGES:
        try:
            result[name] = version(name)
        except PackageNotFoundError:
            continue  # a rival that is not installed takes no part
    return result


def _commit() -> str | None:
    """The commit that runs, with ``+`` where files differ from it; None outside of a repository."""
    line = ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None


def _command() -> str:
    """The command line as a reader would type it."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    module = spec.name.removesuffix(".__main__") if spec is not None else Path(sys.argv[0]).name
    return " ".join(["python", "-m", module, *sys.argv[1:]])


# -- the file ---------------------------------------------------------------------------------------------------------
def write(path: Path, document: Mapping[str, Any]) -> None:
    """Whole or not at all: an interrupted run leaves the document before it. ``protocol`` gets the facts of the machine
    that it does not have. A path that ends in ``.gz`` is compressed."""
    content = text_of({**document, "protocol": machine() | dict(document["protocol"])}).encode()
    unfinished = path.with_suffix(f"{path.suffix}.unfinished")
    unfinished.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    unfinished.rename(path)


def read(path: Path) -> dict[str, Any]:
    """A document that ``write`` wrote."""
    content = path.read_bytes()
    data: dict[str, Any] = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    return data


def text_of(document: Mapping[str, Any]) -> str:
    """JSON with a line for each row, so that documents can be compared by line and stay small."""

    def member(value: Any) -> str:
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return "[\n" + ",\n".join(json.dumps(row) for row in value) + "\n]"
        return json.dumps(value, indent=1) if isinstance(value, dict) else json.dumps(value)

    return "{\n" + ",\n".join(f"{json.dumps(name)}: {member(value)}" for name, value in document.items()) + "\n}\n"


def finish(path: Path | None, document: Mapping[str, Any]) -> int:
    """Write the document, where a path is given, print its summary, and give the exit code."""
    if path is not None:
        write(path, document)
    print(json.dumps(document["summary"], indent=1), flush=True)
    return 0


@dataclass
class Report:
    """What one search and its timings gave, or several."""

    rows: list[Row] = field(default_factory=list)
    tuning: list[dict[str, Any]] = field(default_factory=list)
    rival_tuning: list[dict[str, Any]] = field(default_factory=list)
    """What rivals that search spent: workload, rival, trials, elapsed_s."""
    skipped: dict[str, str] = field(default_factory=dict)

    def add(self, other: Report) -> None:
        for name in ("rows", "tuning", "rival_tuning"):
            getattr(self, name).extend(getattr(other, name))
        self.skipped |= other.skipped


class Document:
    """What was measured so far, written after each (workload, seed), and gone on from by a later run.

    ``summarize``: the members of the document that are made of the report, ``summary`` among them.
    """

    def __init__(
        self, path: Path, protocol: Mapping[str, Any], summarize: Callable[[Report], Mapping[str, Any]],
        resume: bool = False,
    ) -> None:  # fmt: skip
        """With what stands in the file there, if ``resume`` is wanted. Raises InvalidInput if that was measured in
        another way."""
        self._path, self._protocol, self._summarize = path, dict(protocol), summarize
        self.report, self._done = Report(), list[tuple[str, int]]()
        self.failed: dict[str, str] = {}
        """Workloads and seeds without rows, by the error; a run that goes on tries them again."""
        if resume and path.exists():
            self._read(read(path))

    def _read(self, data: Mapping[str, Any]) -> None:
        before = data["protocol"]
        for name, value in self._protocol.items():
            if before.get(name) != value:
                remedy = "the same options as then, another --json, or no --resume"
                raise InvalidInput("resume", f"{self._path} has {name} {before.get(name)}, this run {value}", remedy)
        self._done = [(workload, seed) for workload, seed in before["done"]]
        of_protocol = {name: before[name] for name in ("tuning", "rival_tuning", "skipped")}
        self.report = Report(rows=data["rows"], **of_protocol)

    def has(self, workload: str, seed: int) -> bool:
        return (workload, seed) in self._done

    def add(self, workload: str, seed: int, report: Report) -> None:
        for item in (*report.rows, *report.tuning):
            item["seed"] = seed
        self.report.add(report)
        self._done.append((workload, seed))
        write(self._path, self.to_json())

    def fail(self, workload: str, seed: int, error: Exception) -> None:
        say(f"{workload}, seed {seed}: {type(error).__name__}: {error}")
        self.failed[f"{workload}, seed {seed}"] = f"{type(error).__name__}: {error}"
        write(self._path, self.to_json())

    def to_json(self) -> dict[str, Any]:
        report = self.report
        protocol = {
            **self._protocol, "seeds": sorted({seed for _, seed in self._done}), "done": self._done,
            "skipped": report.skipped, "tuning": report.tuning, "rival_tuning": report.rival_tuning,
        }  # fmt: skip
        found = {"rows": report.rows, "failed": self.failed}
        return {**found, **self._summarize(report), "protocol": protocol}

    def print_summary(self) -> None:
        print(json.dumps(self.to_json()["summary"], indent=1))


# -- options, as argparse wants them ----------------------------------------------------------------------------------
def options_of(doc: str | None, *, needs_json: bool = True, **options: Any) -> argparse.ArgumentParser:
    """A parser with ``--json`` and these options, which ``doc``, the module's text, explains.

    What is given for an option is its default, which has its type too (a tuple: of integers or numbers, a list: of
    names); or a function from its text, where it has no default; or False for a flag.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, given in options.items():
        flag = f"--{name.replace('_', '-')}"
        if given is False:
            parser.add_argument(flag, action="store_true")
        elif callable(given):
            parser.add_argument(flag, type=given)
        else:
            parser.add_argument(flag, type=_type_of(given), default=given, help=f"default: {given}")
    parser.add_argument("--json", type=Path, metavar="OUT", required=needs_json)
    return parser


def _type_of(default: Any) -> Callable[[str], Any]:
    if isinstance(default, tuple):
        return numbers if any(isinstance(each, float) for each in default) else integers
    return names if isinstance(default, list) else type(default)


def integers(text: str) -> tuple[int, ...]:
    """Integers from text as in 0,1,2."""
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of integers, as in 1,2,3") from None


def count(text: str) -> int:
    """One or more."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 1 or more")
    return number


def numbers(text: str) -> tuple[float, ...]:
    """Numbers of 0 or more, from text as in 0,60,180."""
    try:
        values = tuple(map(float, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers, as in 0,60,180") from None
    if not all(0 <= value < float("inf") for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} has a number that is negative or no number")
    return values


def names(text: str) -> list[str]:
    """Names from text as in mm,linear; empty text names none."""
    return list(dict.fromkeys(name for name in text.split(",") if name))
