"""Libraries for GPUs as files, and machine code that is not that of a module."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tuner.library.gpu.driven import TARGET, build, dense, fake_cubins, task_of
from tuner.library.dispatcher import Dispatcher, Leaf
from tuner.library.gpu.build import build_gpu_library
from tuner.library.gpu.source import BadCubins
from tuner.library.manifest import check_fields
from tuner.library.package import check_files, dispatcher_of, kernel_scripts
from tuner.schedule.gpu.cubin import Cubin, parameters_of, target_of
from tuner.schedule.gpu.module import Module
from tuner.schedule.gpu.plan import Choices, emit
from tuner.schedule.gpu.tiling import Tiling
from tuner.schedule.layout import MatrixLayout, layout_from_json
from tuner.schedule.space import MicroKernel

DESCRIBED = Choices(product=Tiling(64, 64, 32, descriptors=True))
PACKED = Choices(product=Tiling(64, 64, 32, pack="kn"))
PTX = """//
.version 8.7
.target sm_90a
.visible .entry kernel_0(
	.param .u64 .ptr .global .align 1 kernel_0_param_0,
	.param .align 64 .b8 kernel_0_param_1[128],
	.param .u32 kernel_0_param_2,
	.param .u8 kernel_0_param_3
)
.reqntid 128
{"""


def library_of(module: Module, cubins: list[Cubin]) -> object:
    kernels = (MicroKernel("gpu", 1, (("number", 0),)),)
    return build_gpu_library(Dispatcher(task_of(module.workload), kernels, 0, Leaf(0)), [(module, cubins)])


def test_a_library_says_for_which_gpus_it_has_code_and_how_it_packs() -> None:
    modules, built = build(dense(), [PACKED, PACKED], targets=("sm_90a", "sm_80"))
    manifest = check_files(built.files)
    check_fields(manifest, "manifest.json")
    assert manifest["code_for"] == ["sm_90a", "sm_80"]
    assert manifest["target"]["arch"] == "sm_90"
    assert "ir.json.gz" not in built.files
    assert manifest["packed_layouts"] == {
        "w": {"kind": "matrix", "dims": [64, 48], "order": [1, 0], "matrix": [48, 64]}
    }
    assert layout_from_json(manifest["packed_layouts"]["w"]) == MatrixLayout((64, 48), (1, 0), (48, 64))
    dispatcher = dispatcher_of(built.files, manifest)
    assert dispatcher.kernel_for({"T": 37}) == dispatcher.kernels[0]
    assert list(kernel_scripts(built.files).values()) == [module.text for module in modules]


def test_equal_code_is_there_once() -> None:
    _, one = build(dense(), [Choices()])
    _, two = build(dense(), [Choices(), Choices()])
    code = fake_cubins(emit(dense(), Choices()))[0].binary
    assert one.files["library.so"].count(code) == two.files["library.so"].count(code) == 1


def test_what_is_built_twice_is_the_same() -> None:
    assert build(dense(), [DESCRIBED])[1].manifest["digest"] == build(dense(), [DESCRIBED])[1].manifest["digest"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"target": "gfx942"}, "is for 'gfx942', which is no target like sm_90a"),
        ({"num_warps": 8}, "has 8 warps, the module launches 4"),
        ({"maps": ()}, "takes 0 tensor maps, the module has 2 descriptors: leave them out there"),
        ({"parameters": (8, 8)}, r"takes parameters of \[8, 8\] bytes, a launch passes"),
    ],
)
def test_code_of_another_module_is_refused(change: dict[str, object], said: str) -> None:
    module = emit(dense(), DESCRIBED)
    (cubin,) = fake_cubins(module)
    with pytest.raises(BadCubins, match=said):
        library_of(module, [replace(cubin, **change)])  # type: ignore[arg-type]


def test_code_is_there_for_every_launch_and_target() -> None:
    module = emit(dense(), Choices(product=Tiling(split_k=2)))
    with pytest.raises(BadCubins, match="1 functions for sm_90a, the module launches 2"):
        library_of(module, fake_cubins(module)[:1])
    kernels = tuple(MicroKernel("gpu", 1, (("number", number),)) for number in range(2))
    dispatcher = Dispatcher(task_of(dense()), kernels, 0, Leaf(0))
    with pytest.raises(BadCubins, match="have code for the same targets"):
        build_gpu_library(dispatcher, [(module, fake_cubins(module)), (module, fake_cubins(module, "sm_80"))])
    with pytest.raises(BadCubins, match="the dispatcher has 2 kernels, 1 are given"):
        build_gpu_library(dispatcher, [(module, fake_cubins(module))])
    packed = emit(dense(), PACKED)
    with pytest.raises(BadCubins, match="share their packed layouts"):
        build_gpu_library(dispatcher, [(module, fake_cubins(module)), (packed, fake_cubins(packed))])


def test_ptx_says_what_a_function_takes() -> None:
    assert parameters_of(PTX) == (8, 128, 4, 1)
    assert target_of(PTX) == TARGET
    with pytest.raises(ValueError, match="has no function"):
        parameters_of("")
    with pytest.raises(ValueError, match="names no target"):
        target_of("")
