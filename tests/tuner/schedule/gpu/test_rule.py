"""The rule for GPUs: what every rule does (tests/contract/test_rule.py), for the samples of all rules for CPUs and the
whole catalogue. No compiler is needed."""

from __future__ import annotations

import ast
from dataclasses import replace

import numpy as np
import pytest

from tests.contract.rule_samples import CUT_SAMPLES, RANGE, SAMPLES, sample_task
from tests.every_op import op_task
from tuner.errors import IllegalKernel
from tuner.measure.verification.inputs import random_inputs
from tuner.program.catalogue import OPS
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import Target
from tuner.program.target import cuda as gpus
from tuner.schedule import RULES, NoMatch, explain, extents_of, layout_group, rule_of, rules_of, space_of, tiles_of
from tuner.schedule.gpu.axes import DEFAULTS, IEEE, TF32, TF32X3, choices_of
from tuner.schedule.gpu.rule import GpuRule
from tuner.schedule.layout import layout_from_json

RULE = next(rule for rule in RULES if isinstance(rule, GpuRule))
TARGETS = [Target.from_json({"kind": "cuda", "product": product}) for product in ("h100", "a100", "rtx4090")]
TASKS = {
    **{f"{name}-{title}": sample for name, samples in SAMPLES.items() for title, sample in samples.items()},
    **{f"cut-{title}": sample for title, sample in CUT_SAMPLES.items()},
}
CASES = [
    pytest.param(sample, TARGETS[at // 3 % 3], id=name, marks=pytest.mark.soak if at % 3 else [])
    for at, (name, sample) in enumerate(TASKS.items())
]
ON_H100 = TARGETS[0]


def dense(dtype: str = "float16", target: Target = ON_H100) -> SearchTask:
    return SearchTask(
        "dense", {"m": "16*T", "n": 2304, "k": 768}, [ShapeVar("T", range(1, 129))], dtype=dtype, target=target
    )


@pytest.mark.parametrize(("sample", "target"), CASES)
def test_any_program_is_taken_whole(sample: dict[str, object], target: Target) -> None:
    task = sample_task(sample, target, 1)
    assert rules_of(task) == (RULE,)
    roles = RULE.match(task.workload, target)
    assert not isinstance(roles, NoMatch)
    assert set(roles) == set(task.workload.program.axes)


@pytest.mark.parametrize(("sample", "target"), CASES)
def test_kernels_are_legal_priced_and_emitted(sample: dict[str, object], target: Target) -> None:
    task, rng = sample_task(sample, target, 1), np.random.default_rng(0)
    space = RULE.space(task)
    kernels = [RULE.default_kernel(task), *(space.sample(rng) for _ in range(5))]
    kernels += [space.mutate(kernel, rng) for kernel in kernels]
    shapes = task.shapes(16)
    seconds = RULE.estimate_s(task, kernels, extents_of(task.workload, shapes))
    assert seconds.shape == (len(kernels), len(shapes))
    assert np.isfinite(seconds).all()
    assert (seconds > 0).all()
    both = RULE.theory(task, kernels, extents_of(task.workload, shapes))
    assert np.array_equal(both.latency_s, seconds)
    assert np.isfinite(both.features()).all()
    alone = extents_of(task.workload, shapes[-1:])
    assert RULE.estimate_s(task, kernels[3:4], alone) == pytest.approx(seconds[3:4, -1:])
    assert RULE.features(task, kernels[3:4], alone) == pytest.approx(both.features()[3:4, -1:])
    for kernel in kernels:
        assert space.kernel(dict(kernel.values)) == kernel
        assert rule_of(kernel) == RULE
        ast.parse(RULE.emit(task, kernel, "kernel").text)
    tiles = [size for sizes in tiles_of(task, kernels).values() for size in sizes]
    assert all(size > 1 for size in tiles)


@pytest.mark.parametrize(("sample", "target"), CASES[::5])
def test_the_space_does_not_depend_on_the_range(sample: dict[str, object], target: Target) -> None:
    task = sample_task(sample, target, 1)
    narrow = tuple(ShapeVar(var.name, (3, 5)) for var in task.shape_vars)
    other = SearchTask(task.workload, shape_vars=narrow, target=target)
    assert RULE.space(task).axes == RULE.space(other).axes
    assert RULE.default_kernel(task) == RULE.default_kernel(other)


@pytest.mark.parametrize(("sample", "target"), CASES[::3])
def test_shapes_without_elements_have_a_theory_too(sample: dict[str, object], target: Target) -> None:
    task = sample_task(sample, target, 1)
    shapes = [{var.name: size for var in task.shape_vars} for size in (0, 1, 2)]
    least = next(shape for shape in shapes if min(task.workload.dims(shape).values(), default=0) >= 0)
    seconds = RULE.estimate_s(task, [RULE.default_kernel(task)], extents_of(task.workload, [least]))
    assert np.isfinite(seconds).all()
    assert (seconds > 0).all()


@pytest.mark.parametrize(("sample", "target"), CASES)
def test_constants_are_packed_as_the_layouts_say(sample: dict[str, object], target: Target) -> None:
    task = sample_task(sample, target, 1)
    packs = next((axis.choices for axis in RULE.space(task).axes if axis.name == "pack"), (0,))
    dims = dict.fromkeys(task.workload.symbols, RANGE[4])
    arrays = dict(zip(task.workload.program.inputs, random_inputs(task.workload, dims), strict=True))
    for pack in packs:
        values = {**dict(RULE.default_kernel(task).values), **({"pack": pack} if pack else {})}
        kernel = RULE.space(task).kernel(values)
        layouts = RULE.layouts(task, kernel)
        assert set(layouts) <= set(task.workload.constants)
        assert bool(layouts) == bool(pack)
        assert hash(layout_group(task, kernel)) is not None
        assert layouts.keys() == {each.tensor for each in RULE.emit(task, kernel, "kernel").packs}
        for name, layout in layouts.items():
            packed = layout.pack(arrays[name])
            assert packed.shape == layout.packed_shape(arrays[name].shape)
            assert packed.size == arrays[name].size
            assert layout_from_json(layout.to_json()) == layout


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_whole_catalogue_has_kernels(op: str, dtype: str) -> None:
    for target in TARGETS:
        task = op_task(op, target, dtype=dtype)
        space, rng = space_of(task), np.random.default_rng(1)
        kernels = [RULE.default_kernel(task), *(space.sample(rng) for _ in range(4))]
        seconds = RULE.estimate_s(task, kernels, extents_of(task.workload, task.shapes(8)))
        assert np.isfinite(seconds).all()
        features = RULE.features(task, kernels, extents_of(task.workload, task.shapes(8)))
        # As many for every workload: each axis that there is, each kind of segment, and all together.
        assert features.shape[2] == len(DEFAULTS) + 4 + 1


def test_a_gpu_and_a_cpu_share_no_rule() -> None:
    workload, cpu = dense().workload, Target.from_json({"kind": "llvm", "mcpu": "x86-64-v3"})
    for target, own in ((ON_H100, True), (cpu, False)):
        answers = explain(workload, target)
        assert isinstance(answers["gpu"], NoMatch) is not own
        others = [answer for name, answer in answers.items() if name != "gpu"]
        assert all(isinstance(answer, NoMatch) for answer in others) is own
    assert isinstance(refused := explain(workload, cpu)["gpu"], NoMatch)
    assert refused.reason == "its kernels are for targets of kind cuda, not llvm"


def test_what_the_hardware_cannot_carry_is_not_legal() -> None:
    """A block of an RTX 4090 has less than half of the shared memory of one of an H100."""
    large = {"block_m": 128, "block_n": 128, "block_k": 128, "split_k": 1, "warps": 8, "stages": 3, "parts": 1}
    on_h100, on_4090 = (RULE.space(dense(target=target)) for target in (ON_H100, TARGETS[2]))
    kernel = on_h100.kernel({**large, "descriptors": 0, "pack": 0})
    assert choices_of(kernel, gpus.PRODUCTS["h100"]).product.num_stages == 3
    with pytest.raises(IllegalKernel, match="more registers or shared memory than there are"):
        on_4090.kernel({**large, "pack": 0})
    with pytest.raises(IllegalKernel, match="2 warps for a tile of 128 x 128"):
        on_h100.kernel({**large, "warps": 2, "descriptors": 0, "pack": 0, "stages": 2, "block_k": 32})


def test_axes_are_those_that_matter() -> None:
    def names(task: SearchTask) -> set[str]:
        return {axis.name for axis in RULE.space(task).axes}

    assert "descriptors" in names(dense())
    assert "descriptors" not in names(dense(target=TARGETS[1]))
    assert "precision" not in names(dense())
    assert "precision" in names(dense("float32"))
    # Three products of TF32, or multiply-adds over columns that are packed as neighbours; no less than float32.
    of = {axis.name: axis.choices for axis in RULE.space(dense("float32")).axes}
    assert (of["precision"], of["pack"]) == ((0, 2), (0, 2))
    attention = op_task("attention", ON_H100)
    assert {name.partition("_")[0] for name in names(attention)} == {"attention"}
    assert names(op_task("softmax", ON_H100)) == {"rows", "row_block", "row_warps"}
    assert names(op_task("max_pool2d", ON_H100)) == {"outputs", "stage_warps"}


def test_offsets_are_wide_where_a_tensor_is() -> None:
    wide = SearchTask("dense", {"m": "T", "n": 65536, "k": 64}, [ShapeVar("T", range(1, 40001))], target=ON_H100)
    for task, is_wide in ((wide, True), (dense(), False)):
        assert RULE.emit(task, RULE.default_kernel(task), "kernel").is_wide is is_wide


def test_a_new_instruction_set_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product besides, and everything follows: targets, spaces, theory."""
    newer = replace(gpus.ARCHITECTURES["sm_100"], product="x100", tensor_flops={"float16": 16384, "tf32": 8192})
    x100 = replace(gpus.PRODUCTS["b200"], product="x100", arch="sm_130", sms=200)
    monkeypatch.setattr(gpus, "ARCHITECTURES", {**gpus.ARCHITECTURES, "sm_130": newer})
    monkeypatch.setattr(gpus, "PRODUCTS", {**gpus.PRODUCTS, "x100": x100})
    target = Target.from_json({"kind": "cuda", "arch": "sm_130"})
    assert Target.from_json(target.to_json()) == target
    tasks = [dense(target=each) for each in (target, Target.from_json({"kind": "cuda", "product": "b200"}))]
    kernels = [RULE.default_kernel(tasks[0])]
    extents = extents_of(tasks[0].workload, [{"T": 128}])
    one, other = (RULE.estimate_s(task, kernels, extents)[0, 0] for task in tasks)
    assert one < other


@pytest.mark.parametrize("op", ["dense", "attention"])
def test_tf32_is_a_choice_where_the_workload_allows_it(op: str) -> None:
    args = {"dense": {"m": "T", "n": 64, "k": 64}, "attention": {"b": 1, "h": 2, "i": "T", "j": "T", "d": 64}}[op]
    choices = []
    for fields in ({}, {"tf32": True}):
        workload = workload_from_json({"op": op, "args": args, **fields})
        task = SearchTask(workload, shape_vars=(ShapeVar("T", (1, 64)),), target={"kind": "cuda", "arch": "sm_90"})
        choices.append([axis.choices for axis in RULE.space(task).axes if axis.name.endswith("precision")])
    assert choices == [[(IEEE, TF32X3)], [(IEEE, TF32, TF32X3)]]


def test_theory_prefers_descriptors_to_rounding_in_registers() -> None:
    workload = workload_from_json({"op": "dense", "args": {"m": "16*T", "n": 2304, "k": 768}, "tf32": True})
    task = SearchTask(workload, shape_vars=(ShapeVar("T", (1, 128)),), target={"kind": "cuda", "arch": "sm_90"})
    tile = dict(RULE.default_kernel(task).values) | {"block_m": 128, "block_n": 128, "block_k": 32, "warps": 8}
    seconds = {
        (precision, descriptors): float(RULE.estimate_s(
            task, [RULE.space(task).kernel({**tile, "precision": precision, "descriptors": descriptors})],
            extents_of(workload, [{"T": 128}]),
        )[0, 0])
        for precision in (TF32, TF32X3) for descriptors in (0, 1)
    }  # fmt: skip
    assert seconds[TF32, 1] < 0.7 * seconds[TF32, 0]
    assert seconds[TF32, 0] < seconds[TF32X3, 1]
