"""Tuning records: of a job, of a search task, of a workload on a target."""

from __future__ import annotations

from typing import Protocol

from tuner.program.language.workload import JsonObject
from tuner.records import TuningRecord


class RecordStorage(Protocol):
    """Reading tuning records. Only the holder of a lease appends them."""

    def list_trials(
        self, job_id: str, after: int = 0, limit: int = 1000, search_task_id: int | None = None
    ) -> tuple[TuningRecord, ...]:
        """Records of a job with ``seq`` (the row's number) above ``after``, in order. Raises NotFound."""

    def trials_as_json(self, job_id: str, after: int = 0, limit: int = 1000) -> tuple[list[str], int]:
        """The records of ``list_trials``, each as a JSON object (of a record and its result), and the number of the
        last one: ``after`` if there are none. Raises NotFound."""

    def records_of_task(self, search_task_id: int) -> tuple[TuningRecord, ...]:
        """Everything a policy needs to be rebuilt, in the order it was stored.

        Instances are in the task's shape variables; one that is none of the task's is in the workload's symbols.
        """

    def prior_records(
        self, workload_key: str, target_fingerprint: str, threads: int, limit: int = 20_000
    ) -> tuple[TuningRecord, ...]:
        """What a search of the workload starts from, in the order stored: the newest ``limit`` of its records, and of
        older ones those that a kernel is known to be wrong by, and the newest readings of the fastest kernels."""

    def records_of_target(
        self, target_fingerprint: str, threads: int, rule: str, limit: int = 20_000
    ) -> tuple[tuple[JsonObject, TuningRecord], ...]:
        """The newest successful records of a rule on a target, each with its workload in canonical form, whose shape
        variables are the symbols that the record gives: a model starts from them."""
