"""Job files: everything that the contract allows is read, everything else is refused with its field."""

from __future__ import annotations

import copy
import json
import math
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import InvalidInput
from tuner.program.job.cache import Cache
from tuner.program.job.jobspec import FIELDS, Budget, JobSpec, check_measured, parse_budget, parse_job
from tuner.program.job.task import SearchTask
from tuner.program.target import Target, native

JOB: dict[str, Any] = {
    "name": "bert-base qkv",
    "workload": {
        "op": "dense",
        "args": {"m": "16*T", "n": 2304, "k": 768},
        "dtype": "float32",
        "epilogue": ["bias", "gelu"],
    },
    "shape_vars": {"T": {"min": 1, "max": 128}},
    "instances": [{"T": 5, "weight": 1.0}, {"T": 128}],
    "target": "native",
    "threads": 1,
    "device": "local",
    "policy": "evolutionary",
    "budget": {"trials": 256, "seconds": 180},
    "max_kernels": 8,
    "seed": 0,
}
V3 = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}
MISSING = object()


def changed(path: str, value: object) -> dict[str, Any]:
    """JOB with the value at a dotted path replaced, added or (MISSING) taken out."""
    job: Any = copy.deepcopy(JOB)
    *steps, last = path.split(".")
    place = job
    for step in steps:
        place = place[int(step)] if step.isdecimal() else place[step]
    if value is MISSING:
        del place[last]
    elif last.isdecimal():
        place[int(last)] = value
    else:
        place[last] = value
    return dict(job)


def refused(job: object) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        parse_job(job)
    return caught.value


def test_the_contracts_example_is_read() -> None:
    spec = parse_job(JOB)
    (task,) = spec.tasks
    assert str(task.workload) == "dense(m=16*T, n=2304, k=768) + bias + gelu"
    assert [(instance.shape, instance.weight) for instance in task.instances] == [({"T": 5}, 1.0), ({"T": 128}, 1.0)]
    assert (spec.name, spec.device, spec.policy, spec.seed) == ("bert-base qkv", "local", "evolutionary", 0)
    assert spec.budget == Budget(256, 180.0)
    assert spec.counts == (1,)
    assert spec.source == JOB


def test_what_may_be_left_out_has_a_default() -> None:
    spec = parse_job({"workload": {"op": "matmul", "args": {"m": 4, "n": 5, "k": 6}}, "budget": {"trials": 0}})
    assert spec.name == "matmul(m=4, n=5, k=6)"
    assert (spec.device, spec.policy, spec.seed) == ("local", "evolutionary", 0)
    assert spec.budget == Budget(0, None)
    (task,) = spec.tasks
    assert (task.target, task.threads, task.max_kernels, len(task.instances)) == (None, 1, 8, 1)


def test_a_long_workload_makes_no_name_that_is_refused() -> None:
    letters = [chr(65 + index) * 15 for index in range(9)]
    args = {axis: "+".join(letters[3 * i : 3 * i + 3]) for i, axis in enumerate(("m", "n", "k"))}
    shape_vars = {name: {"min": 1, "max": 2} for name in letters[:8]}
    args["k"] = "+".join([*letters[6:8], *letters[:5]])
    job = {"workload": {"op": "matmul", "args": args}, "shape_vars": shape_vars, "budget": {"trials": 1}}
    assert len(parse_job(job).name) == 200


def test_plural_forms_give_a_task_for_each_workload_and_target() -> None:
    workloads = [JOB["workload"] | {"count": 12}, {"op": "matmul", "args": {"m": "T", "n": 8, "k": 8}}]
    job = {name: JOB[name] for name in ("shape_vars", "instances", "budget")}
    spec = parse_job(job | {"workloads": workloads, "targets": ["native", V3]})
    assert [(task.workload.to_json()["op"], task.target and task.target.mcpu) for task in spec.tasks] == [
        ("dense", None),
        ("dense", "x86-64-v3"),
        ("matmul", None),
        ("matmul", "x86-64-v3"),
    ]
    assert spec.counts == (12, 12, 1, 1)


def test_workloads_of_one_job_may_use_different_variables() -> None:
    workloads = [{"op": "matmul", "args": {"m": name, "n": 8, "k": 8}} for name in ("T", "S")]
    shape_vars = {"T": {"min": 1, "max": 4}, "S": {"values": [7]}}
    spec = parse_job({"workloads": workloads, "shape_vars": shape_vars, "budget": {"trials": 1}})
    assert [task.ranges for task in spec.tasks] == [{"T": (1, 4)}, {"S": (7, 7)}]


def test_instances_of_a_job_fit_each_of_its_workloads() -> None:
    job = {
        "workloads": [
            {"op": "dense", "args": {"m": "T", "n": 64, "k": 64}},
            {"op": "matmul", "args": {"m": "T", "n": "S", "k": 64}},
        ],
        "shape_vars": {"T": {"min": 1, "max": 8}, "S": {"min": 1, "max": 8}},
        "instances": [{"T": 1, "S": 2, "weight": 1.0}, {"T": 1, "S": 3, "weight": 2.0}, {"T": 4, "S": 4}],
        "budget": {"trials": 1},
    }
    dense, matmul = parse_job(job).tasks
    assert [(i.shape, i.weight) for i in dense.instances] == [({"T": 1}, 3.0), ({"T": 4}, 1.0)]
    assert [i.shape for i in matmul.instances] == [{"T": 1, "S": 2}, {"T": 1, "S": 3}, {"T": 4, "S": 4}]


def test_a_variable_that_no_workload_uses_is_refused() -> None:
    workloads = [{"op": "dense", "args": {"m": "T", "n": 64, "k": 64}}]
    ranges = {"T": {"min": 1, "max": 8}, "S": {"min": 1, "max": 8}}
    error = refused({"workloads": workloads, "shape_vars": ranges, "budget": {"trials": 1}})
    assert error.field == "shape_vars.S"


H100, A100 = ({"kind": "cuda", "product": product} for product in ("h100", "a100"))


@pytest.mark.parametrize(
    ("budget", "devices", "said"),
    [
        ({"trials": 0, "seconds": 60}, [V3], ""),
        ({"trials": 9}, [V3, H100], ""),
        (
            {"seconds": 60}, [V3], r"trials need a device that runs code for cuda: h100 \(sm_90, 132 SMs, 3352 GB/s\), "
            r"those of key 'local' run it for llvm \(x86-64-v3\) \(another `device`, or trials: 0, for the library",
        ),
        ({"trials": 9}, [V3, A100], r"9 trials need .* for cuda: a100 \(sm_80, 108 SMs, 1555 GB/s\) and llvm"),
        ({"trials": 9}, [H100], r"9 trials need a device that runs code for llvm \(x86-64-v3\), those"),
    ],
)  # fmt: skip
def test_what_no_device_measures_is_searched_by_theory_alone(
    budget: dict[str, Any], devices: list[dict[str, Any]], said: str
) -> None:
    job_of_two = {**{k: v for k, v in JOB.items() if k != "target"}, "targets": ["native", H100], "threads": 1}
    spec = parse_job({**job_of_two, "budget": budget})
    assert [task.target and task.target.kind for task in spec.tasks] == [None, "cuda"]
    filled, own = spec.on(Target.from_json(V3)), [Target.from_json(each) for each in devices]
    with pytest.raises(InvalidInput, match=rf"^budget\.trials: {said}") if said else nullcontext():
        check_measured(filled, own)


def test_native_is_filled_in_and_other_targets_stay() -> None:
    spec = parse_job({**{k: v for k, v in JOB.items() if k != "target"}, "targets": ["native", V3]}).on(native())
    assert [task.target for task in spec.tasks] == [native(), Target.from_json(V3)]


@pytest.mark.parametrize(
    ("path", "value", "field", "problem"),
    [
        ("budgets", {}, "budgets", "is not a field of a job"),
        ("Name", "x", "Name", "is not a field of a job"),
        ("name", "", "name", "will not do"),
        ("name", "  ", "name", "will not do"),
        ("name", "x" * 201, "name", "will not do"),
        ("name", "two\nlines", "name", "will not do"),
        ("name", None, "name", "will not do"),
        ("name", 3, "name", "will not do"),
        ("workload", MISSING, "workload", "is missing"),
        ("workload", None, "workload", "None is not a mapping"),
        ("workload", "dense", "workload", "'dense' is not a mapping"),
        ("workload", [], "workload", "[] is not a mapping"),
        ("workload.op", "dens", "workload.op", "'dens' is not in the catalogue"),
        ("workload.op", MISSING, "workload.op", "is missing"),
        ("workload.op", 3, "workload.op", "3 is not in the catalogue"),
        ("workload.args", "m", "workload.args", "dense got 'm'"),
        ("workload.args.m", MISSING, "workload.args", "dense got n, k"),
        ("workload.args.q", 4, "workload.args", "dense got m, n, k, q"),
        ("workload.args.m", "16*T.__class__", "workload.args.m", "is not an integer expression"),
        ("workload.args.m", "T/0", "workload.args.m", "is not an integer expression"),
        ("workload.args.m", "T//0", "workload.args.m", "divides by 0"),
        ("workload.args.m", "-T", "workload.args.m", "is not an integer expression"),
        ("workload.args.m", 1.5, "workload.args.m", "1.5 is not a dim"),
        ("workload.args.m", "16*S", "workload.args.m", "S is not declared"),
        ("workload.args.m", "T-9", "workload.args.m", "T-9 runs from -8 to 119"),
        ("workload.args.m", "16*T*T*T*T*T", "workload.args.m", "runs from"),
        ("workload.args.n", 0, "workload.args.n", "is always 0"),
        ("workload.args.n", 2**40, "workload.args.n", "too large"),
        ("workload.dtype", "float8", "workload.dtype", "'float8' is not a dtype"),
        ("workload.epilogue", "bias", "workload.epilogue", "'bias' is not a list of names"),
        ("workload.epilogue", ["blur"], "workload.epilogue", "'blur' is not known"),
        ("workload.kind", 1, "workload.kind", "is not a field of a workload"),
        ("workload.count", 0, "workload.count", "0 is not a count"),
        ("workload.count", "3", "workload.count", "'3' is not a count"),
        ("shape_vars", MISSING, "workload.args.m", "T is not declared"),
        ("shape_vars", [1], "shape_vars", "[1] is not a mapping"),
        ("shape_vars.T", {"min": 128, "max": 1}, "shape_vars.T", "min 128 is above max 1"),
        ("shape_vars.T", {"values": []}, "shape_vars.T", "the range is empty"),
        ("shape_vars.T", {"values": 5}, "shape_vars.T", "values: 5 is not a list"),
        ("shape_vars.T", {"min": -1, "max": 3}, "shape_vars.T", "the smallest value is -1"),
        ("shape_vars.T", {"min": 1, "max": 2**40}, "shape_vars.T", "values"),
        ("shape_vars.S", {"min": 1, "max": 3}, "shape_vars.S", "no dim of the workload uses it"),
        ("instances", {}, "instances", "{} is not a list"),
        ("instances", [], "instances", "0 instances"),
        ("instances.0", 5, "instances[0]", "5 is not a mapping"),
        ("instances.1", {"T": 129}, "instances[1].T", "129 is outside the range"),
        ("instances.1", {"T": 5}, "instances[1]", "T=5 is given twice"),
        ("instances.1", {"S": 5}, "instances[1]", "gives S"),
        ("instances.0.weight", -1, "instances[0].weight", "-1 is not a weight"),
        ("instances.0.weight", math.nan, "instances[0].weight", "nan is not a weight"),
        ("instances.0.weight", math.inf, "instances[0].weight", "inf is not a weight"),
        ("instances.0.weight", "1", "instances[0].weight", "'1' is not a weight"),
        ("instances.0.weight", None, "instances[0].weight", "None is not a weight"),
        ("instances.0.weight", 10**400, "instances[0].weight", "is not a weight"),
        ("target", "cuda", "target", "'cuda' is not known"),
        ("target", {"kind": "llvm", "mcpu": "m1"}, "target.mcpu", "'m1' is not known"),
        ("target", 3, "target", "3 is not a target"),
        ("threads", 0, "threads", "0 will not do"),
        ("threads", "1", "threads", "'1' will not do"),
        ("device", "", "device", "'' is not a device key"),
        ("device", None, "device", "None is not a device key"),
        ("policy", "unheard-of", "policy", "'unheard-of' is not known"),
        ("policy", ["evolutionary"], "policy", "is not known"),
        ("budget", MISSING, "budget", "is missing"),
        ("budget", 256, "budget", "256 is not a mapping"),
        ("budget", {}, "budget", "has neither trials nor seconds"),
        ("budget", {"trials": None}, "budget", "has neither trials nor seconds"),
        ("budget.minutes", 3, "budget.minutes", "is not a field of a budget"),
        ("budget.trials", -1, "budget.trials", "-1 is not a number of trials"),
        ("budget.trials", 1.5, "budget.trials", "1.5 is not a number of trials"),
        ("budget.trials", True, "budget.trials", "True is not a number of trials"),
        ("budget.trials", "256", "budget.trials", "'256' is not a number of trials"),
        ("budget.seconds", 0, "budget.seconds", "0 is not a time"),
        ("budget.seconds", -3, "budget.seconds", "-3 is not a time"),
        ("budget.seconds", math.nan, "budget.seconds", "nan is not a time"),
        ("budget.seconds", math.inf, "budget.seconds", "inf is not a time"),
        ("budget.seconds", 10**400, "budget.seconds", "is not a time"),
        ("budget.seconds", "60", "budget.seconds", "'60' is not a time"),
        ("max_kernels", 0, "max_kernels", "0 will not do"),
        ("max_kernels", 1.0, "max_kernels", "1.0 will not do"),
        ("seed", -1, "seed", "-1 is not a seed"),
        ("seed", 2**32, "seed", "is not a seed"),
        ("seed", "0", "seed", "'0' is not a seed"),
        ("seed", True, "seed", "True is not a seed"),
        ("workloads", [], "workloads", "workload and workloads are both given"),
        ("targets", [], "targets", "target and targets are both given"),
    ],
)
def test_what_is_wrong_is_named(path: str, value: object, field: str, problem: str) -> None:
    error = refused(changed(path, value))
    assert error.field == field
    assert problem in error.problem
    assert error.remedy


@pytest.mark.parametrize(
    ("plural", "items", "field", "problem"),
    [
        ("workloads", [], "workloads", "[] is not a list with something in it"),
        ("workloads", {"a": 1}, "workloads", "is not a list with something in it"),
        ("workloads", [JOB["workload"], 3], "workloads[1]", "3 is not a mapping"),
        ("workloads", [JOB["workload"], {"op": "x"}], "workloads[1].op", "'x' is not in the catalogue"),
        ("workloads", [{"op": "matmul", "args": {"m": "U", "n": 1, "k": 1}}], "workloads[0].args.m", "U is not"),
        ("workloads", [JOB["workload"] | {"count": -1}], "workloads[0].count", "-1 is not a count"),
        ("workloads", [JOB["workload"]] * 257, "workloads", "257 search tasks"),
        ("targets", "native", "targets", "'native' is not a list with something in it"),
        ("targets", ["native", "cuda"], "targets[1]", "'cuda' is not known"),
        ("targets", ["native", {"kind": "cuda"}], "targets[1].arch", "neither its architecture nor"),
    ],
)
def test_a_wrong_one_of_several_is_found(plural: str, items: object, field: str, problem: str) -> None:
    job = {name: value for name, value in JOB.items() if name != plural[:-1]}
    error = refused(job | {plural: items})
    assert error.field == field
    assert problem in error.problem


@pytest.mark.parametrize("data", [None, [], "job", 3, True])
def test_a_job_is_a_mapping(data: object) -> None:
    error = refused(data)
    assert error.field == "job"
    assert all(name in error.remedy for name in FIELDS)


def test_budgets_are_read() -> None:
    assert parse_budget({"trials": 0, "seconds": None}) == Budget(0, None)
    assert parse_budget({"seconds": 1}) == Budget(None, 1.0)
    assert Budget(3, None).to_json() == {"trials": 3}
    assert Budget(None, 2.5).to_json() == {"seconds": 2.5}
    assert parse_budget(Budget(3, 2.5).to_json()) == Budget(3, 2.5)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-3, 300)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["T", "16*T", "T//2", "native", "dense", "matmul", "llvm", "x86-64-v3", "bias", "T-1", 10**400])
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
WORKLOAD_PATHS = ("op", "args", "args.m", "args.n", "dtype", "epilogue", "count")
OTHER_PATHS = (
    *("shape_vars.T", "shape_vars.T.min", "shape_vars.T.max", "shape_vars.S"),
    *("instances.0", "instances.0.T", "instances.0.weight", "budget.trials", "budget.seconds"),
)
PATHS = [*FIELDS, *(f"workload.{path}" for path in WORKLOAD_PATHS), *OTHER_PATHS]


def _read_or_refused(job: object) -> JobSpec | None:
    try:
        return parse_job(job)
    except InvalidInput as error:
        assert error.field
        assert error.problem
        return None


@given(JSON | st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_any_json_is_a_job_or_refused(data: object) -> None:
    _read_or_refused(data)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(PATHS), JSON), min_size=1, max_size=3))
def test_a_job_with_anything_anywhere_is_read_or_refused(changes: list[tuple[str, Any]]) -> None:
    job: Any = copy.deepcopy(JOB)
    for path, value in changes:
        *steps, last = path.split(".")
        place = job
        for step in steps:
            key: Any = int(step) if step.isdecimal() and isinstance(place, list) else step
            known = key in place if isinstance(place, dict) else isinstance(place, list) and key == 0 and place
            place = place[key] if known else None
        if isinstance(place, dict):
            place[last] = value
    spec = _read_or_refused(job)
    for task in spec.tasks if spec else ():
        assert SearchTask.from_json(json.loads(json.dumps(task.to_json()))) == task


@pytest.mark.parametrize(
    ("changed", "meant"),
    [
        ({"workload": {"op": "linear", "args": {}}}, "dense"),
        ({"workload": {"op": "bmm", "args": {}}}, "batch_matmul_nn or batch_matmul_nt"),
        ({"workload": {"op": "dense", "args": {"M": 8, "n": 8, "kk": 8}}}, "m for M, k for kk"),
        ({"workload": {"op": "dense", "arg": {}}}, "args"),
        ({"workload": {"op": "dense", "args": {"m": 8, "n": 8, "k": 8}, "dtype": "bf16"}}, "bfloat16"),
        ({"workload": {"op": "dense", "args": {"m": 8, "n": 8, "k": 8}, "dtype": {"x": "half"}}}, "float16"),
        ({"workload": {"op": "dense", "args": {"m": 8, "n": 8, "k": 8}, "epilogue": ["geelu"]}}, "gelu"),
        ({"max_kernel": 3}, "max_kernels"),
        ({"shape-vars": {}}, "shape_vars"),
        ({"budget": {"trial": 3}}, "trials"),
        ({"policy": "evolution"}, "evolutionary"),
        ({"shape_vars": {"T": {"min": 1, "maximum": 8}}}, "max"),
        ({"target": {"kind": "llvm", "cpu": "x86-64"}}, "mcpu"),
        ({"target": {"kind": "llvm", "mcpu": "sapphire-rapids"}}, "sapphirerapids"),
    ],
)
def test_a_name_that_is_nearly_right_is_suggested(changed: dict[str, object], meant: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_job({"workload": {"op": "dense", "args": {"m": 8, "n": 8, "k": 8}}, "budget": {"trials": 1}, **changed})
    assert caught.value.remedy.startswith(f"did you mean {meant}")


def test_caches_are_warm_cold_or_streamed() -> None:
    assert parse_job(JOB).tasks[0].cache is Cache.WARM
    for cache in Cache:
        (task,) = parse_job({**JOB, "cache": cache.value}).tasks
        assert task.cache is cache
        assert SearchTask.from_json(task.to_json()) == task
        assert task.with_least_shape().cache is cache
    assert SearchTask.from_json({**task.to_json(), "cache": "warm"}) != task, "it is a part of what a task means"
    error = refused({**JOB, "cache": "streaming"})
    assert (error.field, error.remedy) == ("cache", "did you mean streamed? one of: warm, cold, streamed")
