"""What a bundle's runner measured, as the records that searches, services and libraries take."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.bundle.form import JOB, RECORDS, RESULTS, Candidate, Entry, read_bundle
from tuner.bundle.results import SUFFIX, Row, check_bundle, rows_of
from tuner.errors import InvalidInput
from tuner.plain_files import read_plain
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject, WorkloadInstance
from tuner.program.target import Target
from tuner.records import MeasureResult, Phase, TuningRecord, protocol_of
from tuner.storage.jsonl import SharedRecord, write_records

MAX_JOB = 1 << 24
FIRST_ROUND = 1
"""Round 0 is that of the default kernels, which none of these is."""


@dataclass(frozen=True)
class Imported:
    """``targets``: those that the records are of. ``others``: GPUs by name that are none of the job's targets: the job
    that is written beside the records is for them."""

    records: int
    failed: int
    targets: tuple[Target, ...]
    others: tuple[str, ...]


def import_results(folder: Path) -> Imported:
    """Write RECORDS of all results in a bundle's folder, and JOB for what was measured. Raises InvalidInput."""
    bundle, job = read_bundle(folder), _read_job(folder)
    entries = bundle.entries
    rows = [row for path in sorted((folder / RESULTS).glob(f"*{SUFFIX}")) for row in rows_of(path)]
    if not rows:
        problem = f"holds no results: no {RESULTS}/*{SUFFIX}"
        raise InvalidInput("DIR", f"{folder} {problem}", f"copy the folder {RESULTS} of the host there")
    check_bundle(rows, bundle.digest, "DIR")
    records = [record for row in rows for record in _records_of(entries, row)]
    part = folder / f"{RECORDS}.part"
    part.write_text("".join(write_records(records)))
    part.rename(folder / RECORDS)
    targets = tuple({each.record.target_fingerprint: each.target for each in records}.values())
    own = {entry.task.known_target for entry in entries}
    job = {name: value for name, value in job.items() if name not in ("target", "targets")}
    (folder / JOB).write_text(json.dumps({**job, "targets": [each.to_json() for each in targets]}, indent=1))
    others = tuple(dict.fromkeys(row.gpu.name for row in rows if _target_of(entries[row.entry], row) not in own))
    return Imported(len(records), sum(not each.record.result.ok for each in records), targets, others)


def _read_job(folder: Path) -> JsonObject:
    try:
        job = json.loads(read_plain(folder / JOB, MAX_JOB))
    except (OSError, ValueError) as error:
        raise InvalidInput(str(folder), f"holds no {JOB}: {error}", "write the bundle again") from None
    if not isinstance(job, dict):
        raise InvalidInput(str(folder), f"{JOB} is no job", "write the bundle again")
    return job


def _target_of(entry: Entry, row: Row) -> Target:
    """That of the entry where the GPU is one, as a device that measures for it would be; else the GPU's own."""
    wanted, own = entry.task.known_target, row.gpu.target
    return wanted if wanted.is_measured_on(own) else own


def _records_of(entries: Sequence[Entry], row: Row) -> Iterator[SharedRecord]:
    if not (0 <= row.entry < len(entries) and 0 <= row.candidate < len(entries[row.entry].candidates)):
        problem = f"results name candidate {row.candidate} of entry {row.entry}, which this bundle has not"
        raise InvalidInput("DIR", problem, "copy them again")
    entry = entries[row.entry]
    task, candidate, target = entry.task, entry.candidates[row.candidate], _target_of(entry, row)
    try:
        yield from _checked_records(task, candidate, row, target)
    except (ValueError, TypeError, KeyError) as error:
        problem = f"results of candidate {row.candidate} of entry {row.entry} are of another form: {error}"
        raise InvalidInput("DIR", problem, "copy them again") from None


def _checked_records(task: SearchTask, candidate: Candidate, row: Row, target: Target) -> Iterator[SharedRecord]:
    for instance, answer in zip(task.instances, row.answers, strict=True):
        result = MeasureResult.from_json({
            **answer, "kernel": candidate.kernel.to_json(), "instance": instance.to_json(), "phase": Phase.SEARCH,
            "build_s": candidate.build_s, "run_s": row.run_s / len(row.answers), "round": FIRST_ROUND,
            "device": row.device,
        })  # fmt: skip
        symbols = WorkloadInstance.of(task.workload.dims(instance.shape), instance.weight)
        record = TuningRecord(
            task.workload.key, target.fingerprint, task.threads, protocol_of(task.cache),
            replace(result, instance=symbols), created_at=row.at,
        )  # fmt: skip
        yield SharedRecord(task.workload.canonical, target, record)
