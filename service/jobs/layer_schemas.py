"""The schema of ``GET /v1/jobs/{job_id}/layers``."""

from __future__ import annotations

from pydantic import BaseModel

from service.jobs.layers import Layer, Layers
from service.jobs.schemas import OutcomeOut
from tuner.program.job.jobspec import counts_of
from tuner.storage import Job


class LayerOut(BaseModel):
    """A workload of a job as a layer of a model. ``names``: the first of its ``count`` places in the model.

    ``time_s`` is its count times ``objective_s``, null before it was measured, and ``expected_s`` what theory expects
    in its place. ``share`` is that of the sum over all layers on its target, ``basis`` what it is made of: ``measured``
    or ``expected``. Null is not known. ``state`` is one of a job's states, or UNSEARCHED: the budget ended before
    anything was timed. ``activity`` says what its search is doing.
    """

    position: int
    names: list[str]
    count: int
    workload_key: str
    workload: str
    shapes: dict[str, list[str]]
    target_fingerprint: str
    threads: int
    cache: str
    state: str
    activity: str
    trials: int
    objective_s: float | None
    time_s: float | None
    expected_s: float | None
    basis: str | None
    share: float | None
    speedup_vs_default: float | None
    label: str

    @staticmethod
    def of(layer: Layer) -> LayerOut:
        row, outcome = layer.row, layer.outcome
        return LayerOut(
            position=row.position,
            names=list(layer.names),
            count=row.count,
            workload_key=row.workload_key,
            workload=str(row.task.workload),
            shapes={name: list(dims) for name, dims in layer.shapes.items()},
            target_fingerprint=row.target_fingerprint,
            threads=row.task.threads,
            cache=row.task.cache.value,
            state=layer.state.value,
            activity=layer.summary.activity if layer.summary else "",
            trials=layer.summary.trials if layer.summary else 0,
            objective_s=outcome.objective_s,
            time_s=layer.time_s,
            expected_s=layer.expected_s,
            basis=layer.basis,
            share=layer.share,
            speedup_vs_default=outcome.speedup_vs_default,
            label=outcome.label,
        )


class LayersOut(BaseModel):
    """A part of a job's layers, in the order of its job file. ``next`` is the position of the next part.

    ``measured_share``: the part of the time of all layers that was measured, the rest is expected by theory.
    ``operators``: the counts of all layers added up. ``remaining_s`` and ``expected_end`` say when the budget is spent
    at the present rate; they are null unless the job runs.
    """

    job_id: str
    name: str
    state: str
    layer_count: int
    operators: int
    outcome: OutcomeOut
    measured_share: float | None
    budget_share: float | None
    remaining_s: float | None
    expected_end: str | None
    items: list[LayerOut]
    next: int | None

    @staticmethod
    def of(job: Job, layers: Layers, count: int) -> LayersOut:
        after = layers.items[-1].row.position + 1 if layers.items else count
        return LayersOut(
            job_id=job.id,
            name=job.name,
            state=job.state.value,
            layer_count=count,
            operators=sum(counts_of(job.spec)),
            outcome=OutcomeOut.model_validate(layers.outcome),
            measured_share=layers.measured_share,
            budget_share=layers.budget_share,
            remaining_s=layers.remaining_s,
            expected_end=layers.expected_end,
            items=list(map(LayerOut.of, layers.items)),
            next=after if after < count else None,
        )
