"""The process that a bundle's candidates run in: what one of them breaks ends with it."""

from __future__ import annotations

import lzma
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tuner.bundle.form import Entry
from tuner.errors import GpuFailed
from tuner.measure.device.bench import Bench
from tuner.measure.gpu.launcher import Launcher, operand
from tuner.measure.gpu.place import GpuPlace
from tuner.measure.verification.verify import Case
from tuner.program.job.task import SearchTask
from tuner.program.target.cuda import Gpu


@dataclass(frozen=True)
class Work:
    """What a session is forked with: ``entries`` of the bundle in ``folder``, what each is verified with by its number,
    the GPU, and a folder for files that end with the runner."""

    folder: Path
    entries: Sequence[Entry]
    cases: Mapping[int, list[Case]]
    number: int
    gpu: Gpu
    scratch: Path


def serve(work: Work, connection: Connection) -> None:
    """Answer requests until it is killed: to open an entry, or to try a candidate of it, by their numbers."""
    # The runner is told, and ends this process when it is done with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    benches: dict[int, Bench] = {}
    while True:
        entry, candidate = connection.recv()
        if candidate is None:
            connection.send(_opened(work, entry, benches))
        else:
            bench = benches[entry]
            shapes = [instance.shape for instance in work.entries[entry].task.instances]
            answers = bench.trial(work.entries[entry].candidates[candidate].kernel, candidate, shapes)
            connection.send((answers, bench.is_over))


def _opened(work: Work, number: int, benches: dict[int, Bench]) -> str | None:
    """Make an entry's bench, unless there is one; why there is none."""
    if number in benches:
        return None
    entry = work.entries[number]
    layouts = {each.kernel: each.layouts for each in entry.candidates}
    try:
        launcher = Launcher(_unpacked(work, entry), entry.task.workload)
        place = GpuPlace(entry.task, work.number, work.gpu, operand)
    except GpuFailed as error:
        return str(error)

    def known(_task: SearchTask, kernel: Any) -> Any:
        return layouts[kernel]

    benches[number] = Bench(entry.task, place, launcher.module, known, lambda *_: work.cases[number])
    return None


def _unpacked(work: Work, entry: Entry) -> Path:
    path = work.scratch / Path(entry.code).stem
    if not path.is_file():
        part = path.with_suffix(".part")
        part.write_bytes(lzma.decompress((work.folder / entry.code).read_bytes()))
        part.rename(path)
    return path
