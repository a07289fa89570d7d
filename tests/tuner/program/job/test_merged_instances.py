"""Instances of a task that differ in their shape variables alone are one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tuner.program.job.shape_fields import MAX_WEIGHT
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar

T, S = (ShapeVar(name, range(1, 65)) for name in "TS")
SHAPES = st.lists(st.tuples(st.integers(1, 64), st.integers(1, 64)), min_size=1, max_size=12, unique=True)


@given(SHAPES)
def test_there_is_one_instance_for_all_of_the_same_sizes_with_their_weights(shapes: list[tuple[int, int]]) -> None:
    instances = [{"T": t, "S": s} for t, s in shapes]
    weights = [float(number) for number in range(1, len(shapes) + 1)]

    task = SearchTask("dense", {"m": T + S, "n": T // 8 + 1, "k": 8}, (T, S), instances, weights)

    dims = [tuple(task.workload.dims(result.shape).items()) for result in task.instances]
    assert len(set(dims)) == len(dims)
    assert sum(result.weight for result in task.instances) == sum(weights)
    assert [result.shape for result in task.instances] == [
        shape for shape in instances if shape in [result.shape for result in task.instances]
    ]
    assert SearchTask.from_json(task.to_json()) == task


def test_the_first_of_them_stands_for_all() -> None:
    task = SearchTask("dense", {"m": T // 2, "n": 8, "k": 8}, (T,), [5, 9, 4, 8], [1.0, 2.0, 4.0, 8.0])

    assert [(result.shape["T"], result.weight) for result in task.instances] == [(5, 5.0), (9, 10.0)]


def test_weights_stay_what_a_job_may_give() -> None:
    task = SearchTask("dense", {"m": T // 2, "n": 8, "k": 8}, (T,), [4, 5], [MAX_WEIGHT, MAX_WEIGHT])

    assert SearchTask.from_json(task.to_json()) == task
