"""Hypothesis strategies for the core's values."""

from __future__ import annotations

from hypothesis import assume
from hypothesis import strategies as st

from tests.tuner.program_strategies import PROGRAM_WORKLOADS, PROGRAMS, TAME_PROGRAMS, TAME_WORKLOADS, WORKLOADS
from tuner.errors import InvalidInput
from tuner.program.job.task import SearchTask
from tuner.program.language.ranges import check_sizes
from tuner.program.language.workload import ShapeVar, Workload, WorkloadInstance
from tuner.program.target import Hardware, Target
from tuner.records import Baseline, Baselines, ErrorKind, MeasureResult, Phase, Roof
from tuner.schedule.space import MicroKernel

__all__ = [
    "HARDWARE",
    "INSTANCES",
    "KERNELS",
    "PROGRAMS",
    "PROGRAM_WORKLOADS",
    "TAME_PROGRAMS",
    "TAME_WORKLOADS",
    "TARGETS",
    "WORKLOADS",
    "baselines",
    "results",
    "tasks",
]

LATENCIES = st.floats(1e-9, 10.0, allow_nan=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def _var(name: str) -> st.SearchStrategy[ShapeVar]:
    least, extent, step = st.integers(1, 64), st.integers(0, 64), st.sampled_from([1, 1, 2, 8])
    ranges = st.builds(lambda low, more, step: range(low, low + more + 1, step), least, extent, step)
    values = st.lists(st.integers(1, 128), min_size=1, max_size=5).map(tuple)
    return (ranges | values).map(lambda values: ShapeVar(name, values))


HARDWARE = st.builds(
    Hardware,
    vector_bytes=st.sampled_from([16, 32, 64]),
    vector_registers=st.sampled_from([16, 32]),
    fma_per_cycle=st.integers(1, 2),
    l1d_bytes=st.integers(1, 2**20),
    l2_bytes=st.integers(1, 2**24),
    l3_bytes=st.integers(1, 2**30),
    cores=st.integers(1, 256),
    features=st.lists(st.sampled_from(["avx2", "fma", "avx512f"]), unique=True).map(tuple),
)
CPUS = {16: ["x86-64", "x86-64-v3"], 32: ["x86-64-v3", "alderlake"], 64: ["sapphirerapids"]}
"""CPUs that have vectors of so many bytes."""
TARGETS = HARDWARE.flatmap(
    lambda hardware: st.sampled_from(CPUS[hardware.vector_bytes]).map(lambda mcpu: Target("llvm", mcpu, hardware))
)
KERNELS = st.builds(
    MicroKernel,
    st.sampled_from(["x86_contraction", "other"]),
    st.integers(1, 9),
    st.dictionaries(st.sampled_from(["mr", "nv", "ku", "tail"]), st.integers(0, 512), min_size=1).map(
        lambda values: tuple(values.items())
    ),
)
WEIGHTS = st.floats(0, 1e6, allow_nan=False)
INSTANCES = st.builds(
    WorkloadInstance.of, st.dictionaries(st.sampled_from(["T", "S"]), st.integers(0, 4096), min_size=1), WEIGHTS
)


@st.composite
def results(draw: st.DrawFn) -> MeasureResult:
    samples = draw(st.none() | st.lists(LATENCIES, min_size=1, max_size=4).map(tuple))
    return MeasureResult(
        kernel=draw(KERNELS),
        instance=draw(INSTANCES),
        latency_s=min(samples) if samples else None,
        samples_s=samples or (),
        error_kind=None if samples else draw(st.sampled_from(ErrorKind)),
        error="" if samples else draw(TEXT),
        build_s=draw(LATENCIES),
        run_s=draw(LATENCIES),
        predicted_s=draw(st.none() | LATENCIES),
        round=draw(st.integers(0, 99)),
        phase=draw(st.sampled_from(Phase)),
        attempt=draw(st.integers(0, 9)),
        anchor_s=draw(st.none() | LATENCIES),
        device=draw(st.none() | TEXT),
    )


@st.composite
def baselines(draw: st.DrawFn) -> Baselines:
    points = st.builds(Baseline, TEXT, INSTANCES, LATENCIES, st.none() | LATENCIES)
    roof = st.builds(Roof, st.floats(1e6, 1e15), st.floats(1e6, 1e15), st.none() | LATENCIES)
    return Baselines(tuple(draw(st.lists(points, max_size=3))), draw(st.none() | roof))


def _fits(workload: Workload, variables: tuple[ShapeVar, ...]) -> bool:
    """A drawn range may ask for tensors larger than a task may have."""
    try:
        check_sizes(workload, variables)
    except InvalidInput:
        return False
    return True


@st.composite
def tasks(draw: st.DrawFn) -> SearchTask:
    workload = draw(WORKLOADS)
    variables = tuple(draw(_var(name)) for name in sorted(workload.variables))
    assume(_fits(workload, variables))
    shape = st.fixed_dictionaries({var.name: st.sampled_from(list(var.values)) for var in variables})
    several = st.lists(shape, min_size=1, max_size=4, unique_by=lambda values: tuple(sorted(values.items())))
    shapes = draw(st.none() | several)
    weights = None if shapes is None else [draw(st.floats(0.01, 1e6)) for _ in shapes]
    return SearchTask(
        workload,
        shape_vars=variables,
        instances=shapes,
        weights=weights,
        target=draw(st.none() | TARGETS),
        threads=draw(st.integers(1, 8)),
        max_kernels=draw(st.integers(1, 16)),
    )
