"""The document of a benchmark: rows, what they come to, and how they were measured; and options that all share."""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tuner.errors import InvalidInput

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("apache-tvm", "numpy", "torch", "triton", "xgboost-cpu")
LOAD_AT_THE_START = os.getloadavg()
Row = dict[str, Any]


def grouped(rows: Iterable[Row], field: str) -> dict[Any, list[Row]]:
    result: dict[Any, list[Row]] = {}
    for row in rows:
        result.setdefault(row[field], []).append(row)
    return result


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """What figures depend on: the CPU and how busy it was, the commit, the command, the date, the versions."""
    cpus = re.findall(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):  # a rival that is not installed takes no part
            versions[package] = version(package)
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    module = spec.name.removesuffix(".__main__") if spec is not None else Path(sys.argv[0]).name
    # With a + where files differ from the commit; nothing outside of a repository.
    line = ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    commit = None
    with suppress(FileNotFoundError):
        commit = subprocess.run(line, capture_output=True, text=True, timeout=30, check=False).stdout.strip() or None
    return {
        "cpu": cpus[0] if cpus else platform.processor(), "cores": len(os.sched_getaffinity(0)),
        "load_average": list(LOAD_AT_THE_START), "load_average_at_the_end": list(os.getloadavg()),
        "commit": commit, "command": " ".join(["python", "-m", module, *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "versions": versions,
    }  # fmt: skip


# -- the file ---------------------------------------------------------------------------------------------------------
def write(path: Path, document: Mapping[str, Any]) -> None:
    """Whole or not at all: an interrupted run leaves the document before it. ``protocol`` gets the facts of the machine
    that it does not have. A path that ends in ``.gz`` is compressed."""
    content = text_of({**document, "protocol": machine() | dict(document["protocol"])}).encode()
    unfinished = path.with_suffix(f"{path.suffix}.unfinished")
    unfinished.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    unfinished.rename(path)


def read(path: Path) -> dict[str, Any]:
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


def finish(path: Path, document: Mapping[str, Any]) -> int:
    """Write the document, print its summary, and give the exit code."""
    write(path, document)
    print(json.dumps(document["summary"], indent=1), flush=True)
    return 0


@dataclass
class Report:
    """What searches and timings gave. ``rival_tuning``: what rivals that search spent, as ``tuning`` what ours did;
    ``skipped``: by workload and rival why it takes no part."""

    rows: list[Row] = field(default_factory=list)
    tuning: list[Row] = field(default_factory=list)
    rival_tuning: list[Row] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


class Document:
    """What was measured so far, written after each (workload, seed), and gone on from by a later run.

    ``summarize``: the members of the document that are made of the report, ``summary`` among them. ``failed``:
    workloads and seeds without rows, by the error; a run that goes on tries them again.
    """

    def __init__(
        self, path: Path, protocol: Mapping[str, Any], summarize: Callable[[Report], Mapping[str, Any]],
        resume: bool = False,
    ) -> None:  # fmt: skip
        """With what stands in the file there, if ``resume`` is wanted. Raises InvalidInput if that was measured in
        another way."""
        self._path, self._protocol, self._summarize = path, dict(protocol), summarize
        self._report, self._done = Report(), list[tuple[str, int]]()
        self.failed: dict[str, str] = {}
        if not resume or not path.exists():
            return
        data = read(path)
        before, remedy = data["protocol"], "the same options as then, another --json, or no --resume"
        for name, value in self._protocol.items():
            if before.get(name) != value:
                raise InvalidInput("resume", f"{path} has {name} {before.get(name)}, this run {value}", remedy)
        self._done = [(workload, seed) for workload, seed in before["done"]]
        self._report = Report(data["rows"], before["tuning"], before["rival_tuning"], before["skipped"])

    def has(self, workload: str, seed: int) -> bool:
        return (workload, seed) in self._done

    def add(self, workload: str, seed: int, report: Report) -> None:
        for item in (*report.rows, *report.tuning):
            item["seed"] = seed
        for name in ("rows", "tuning", "rival_tuning"):
            getattr(self._report, name).extend(getattr(report, name))
        self._report.skipped |= report.skipped
        self._done.append((workload, seed))
        write(self._path, self._to_json())

    def fail(self, workload: str, seed: int, error: Exception) -> None:
        self.failed[f"{workload}, seed {seed}"] = f"{type(error).__name__}: {error}"
        say(f"{workload}, seed {seed}: {type(error).__name__}: {error}")
        write(self._path, self._to_json())

    def _to_json(self) -> dict[str, Any]:
        report = self._report
        protocol = {
            **self._protocol, "seeds": sorted({seed for _, seed in self._done}), "done": self._done,
            "skipped": report.skipped, "tuning": report.tuning, "rival_tuning": report.rival_tuning,
        }  # fmt: skip
        return {"rows": report.rows, "failed": self.failed, **self._summarize(report), "protocol": protocol}

    def print_summary(self) -> None:
        print(json.dumps(self._to_json()["summary"], indent=1))


# -- options, as argparse wants them ----------------------------------------------------------------------------------
def options_of(doc: str | None, **options: Any) -> argparse.ArgumentParser:
    """A parser with ``--json`` and these options, which ``doc``, the module's text, explains.

    What is given for an option is its default, which has its type too (a tuple: of integers or numbers, a list: of
    names); or a function from its text, where it has no default; or False for a flag.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, given in options.items():
        flag = f"--{name.replace('_', '-')}"
        parse: Any = names if isinstance(given, list) else type(given)
        if isinstance(given, tuple):
            parse = numbers if isinstance(given[0], float) else integers
        if given is False:
            parser.add_argument(flag, action="store_true")
        elif callable(given):
            parser.add_argument(flag, type=given)
        else:
            parser.add_argument(flag, type=parse, default=given, help=f"default: {given}")
    parser.add_argument("--json", type=Path, metavar="OUT", required=True)
    return parser


def integers(text: str) -> tuple[int, ...]:
    """As in 1,2,3."""
    return tuple(map(int, text.split(",")))


def numbers(text: str) -> tuple[float, ...]:
    """Of 0 or more, as in 0,60,180."""
    result = tuple(map(float, text.split(",")))
    if not all(0 <= each < math.inf for each in result):
        raise ValueError(text)
    return result


def count(text: str) -> int:
    """1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 1 or more")
    return int(text)


def names(text: str) -> list[str]:
    """Names from text as in mm,linear; empty text names none."""
    return list(dict.fromkeys(name for name in text.split(",") if name))
