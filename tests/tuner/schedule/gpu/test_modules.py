"""What an emitted module says, without Triton: how a program is cut into kernels, and that its text is Python."""

from __future__ import annotations

import ast

import pytest

from tests.contract.rule_samples import SAMPLES
from tests.tuner.schedule.gpu.sampled import sample_choices
from tuner.program.job.build import workload_from_json
from tuner.schedule.gpu.plan import Choices, emit, segments
from tuner.schedule.gpu.tiling import Tiling

EVERY = [
    pytest.param(sample, number, id=f"{rule}-{title}")
    for number, (rule, title, sample) in enumerate(
        (rule, title, sample) for rule, samples in SAMPLES.items() for title, sample in samples.items()
    )
]


def kinds(sample: object) -> list[str]:
    return [segment.kind for segment in segments(workload_from_json(sample))]


@pytest.mark.parametrize(("sample", "number"), EVERY)
def test_every_sample_is_a_module_of_its_own(sample: dict[str, object], number: int) -> None:
    workload = workload_from_json(sample)
    module = emit(workload, sample_choices(number))
    tree = ast.parse(module.text)
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert len(names) == len(set(names))
    run = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "run")
    assert len(run.args.args) == len(workload.operands) + len(workload.symbols)
    assert {launch.function.name for launch in module.launches} <= set(names)
    scratch = [each.name for each in module.scratch]
    assert len(scratch) == len(set(scratch))
    # Builders import it, and need not have PyTorch.
    imported = {each.name for node in tree.body if isinstance(node, ast.Import) for each in node.names}
    imported |= {str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} == {"triton"}


@pytest.mark.parametrize(
    ("rule", "title", "wanted"),
    [
        ("x86_contraction", "dense-epilogue", ["product"]),
        ("x86_gathered", "conv2d", ["product"]),
        ("x86_gathered", "conv2d_transpose", ["product"]),
        ("x86_quantized", "int4-groups", ["product"]),
        ("x86_grouped", "bias", ["product"]),
        ("x86_chain", "gated", ["product", "product", "product"]),
        ("x86_chain", "mlp", ["product", "product"]),
        ("attention", "grouped", ["attention"]),
        ("row_reduction", "softmax", ["rows"]),
        ("windows", "avg_pool2d", ["rows"]),
        ("fallback", "columns-half", ["stages", "stages"]),
        ("injective", "several", ["stages"]),
    ],
)
def test_a_program_is_cut_into_as_few_kernels_as_there_are_emitters_for(
    rule: str, title: str, wanted: list[str]
) -> None:
    assert kinds(SAMPLES[rule][title]) == wanted


def test_a_phase_of_a_transposed_convolution_is_a_launch() -> None:
    module = emit(workload_from_json(SAMPLES["x86_gathered"]["conv2d_transpose"]))
    assert len(module.launches) == 4


def test_two_products_in_shares_have_partial_sums_of_their_own() -> None:
    module = emit(workload_from_json(SAMPLES["x86_chain"]["mlp"]), Choices(product=Tiling(split_k=2)))
    assert {each.name for each in module.scratch} >= {"partial_sums_kernel_0", "partial_sums_kernel_1"}
    assert len(module.launches) == 4


def test_shares_are_added_in_the_tiles_that_a_product_takes() -> None:
    """Two sides without a sign: products are added one by one, in tiles of 16 at most."""
    workload = workload_from_json(SAMPLES["x86_gathered"]["several-axes-bytes"])
    added = emit(workload, Choices(product=Tiling(split_k=2))).text.partition("def kernel_0_added")[2]
    assert "tl.zeros((16, 16), tl.int32)" in added


def test_steps_that_share_a_scale_are_whole_blocks() -> None:
    workload = workload_from_json(SAMPLES["x86_quantized"]["int4-two-scales"])
    assert "tl.arange(0, 16)" in emit(workload, Choices(product=Tiling(64, 64, 64))).text


def test_offsets_of_64_bits_are_asked_for() -> None:
    workload = workload_from_json(SAMPLES["x86_contraction"]["dense"])
    assert "tl.int64" not in emit(workload).text.partition("def kernel_0")[2]
    assert "tl.int64" in emit(workload, Choices(is_wide=True)).text.partition("def kernel_0")[2]


@pytest.mark.parametrize(("precision", "warps", "count"), [("tf32x3", 8, 2), ("tf32", 4, 2), ("tf32", 8, 2)])
def test_descriptors_round_to_tf32_on_the_way(precision: str, warps: int, count: int) -> None:
    workload = workload_from_json({"op": "dense", "args": {"m": "T", "n": 64, "k": 64}})
    tiling = Tiling(128, 128, 32, num_warps=warps, precision=precision, descriptors=True)
    (launch,) = emit(workload, Choices(product=tiling)).launches
    assert len(launch.function.descriptors) == count
    assert all(each.is_rounded is (precision == "tf32") for each in launch.function.descriptors)


def test_descriptors_round_floats_alone() -> None:
    """Bytes are brought as they are, also where what they are multiplied by is rounded."""
    workload = workload_from_json({
        "program": "out[m, n] = sum(k) x[m, k] * w[n, k]", "extents": {"m": "T", "n": 64, "k": 64}, "tf32": True,
        "dtype": {"x": "float32", "w": "int8", "out": "float32"},
    })  # fmt: skip
    tiling = Tiling(64, 64, 32, precision="tf32", descriptors=True)
    (launch,) = emit(workload, Choices(product=tiling)).launches
    assert {each.tensor: each.is_rounded for each in launch.function.descriptors} == {"x": True, "w": False}


@pytest.mark.parametrize(("warps", "brought"), [(4, {"x", "w"}), (8, {"x"})])
def test_eight_warps_convert_nothing_that_a_descriptor_brings(warps: int, brought: set[str]) -> None:
    """Their products were wrong on one H200: the next tile came before all warps had read the last one."""
    workload = workload_from_json({
        "program": "out[m, n] = sum(k) x[m, k] * w[n, k]", "extents": {"m": "T", "n": 64, "k": 64},
        "dtype": {"x": "float16", "w": "int8", "out": "float16"},
    })  # fmt: skip
    tiling = Tiling(128, 128, 32, num_warps=warps, descriptors=True)
    (launch,) = emit(workload, Choices(product=tiling)).launches
    assert {each.tensor for each in launch.function.descriptors} == brought
