"""Kernels of the rule compute what the reference does, with errors of each row's and each column's own size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.compiled import built_problems, computes_with_denormals, loaded, runnable, spills
from tests.shares import shares
from tuner.errors import IllegalKernel
from tuner.library.codegen import compile_candidate
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import Target, native
from tuner.schedule import extents_of, layout_group
from tuner.schedule.packing import aligned
from tuner.schedule.product.axes import IN_BLOCKS, OF_VECTORS
from tuner.schedule.rule import NoMatch
from tuner.schedule.rules.matmul import Matmul
from tuner.schedule.rules.strassen import Strassen
from tuner.schedule.space import MicroKernel

RULE, CONTRACTION = Strassen(), Matmul()
SERVER = Target.from_json({"kind": "llvm", "mcpu": "znver4", "num-cores": 2})


def task(target: Target, threads: int = 1, epilogue: tuple[str, ...] = (), **sizes: int) -> SearchTask:
    workload = workload_from_json({"op": "dense", "args": {"m": "T", **sizes}, "epilogue": list(epilogue)})
    return SearchTask(workload, shape_vars=(ShapeVar("T", range(1, 1025)),), target=target, threads=threads)


def default(own: SearchTask, **values: int) -> MicroKernel:
    space = RULE.space(own)
    return space.kernel({**space.values_of(RULE.default_kernel(own)), **values})


def called(
    own: SearchTask, kernel: MicroKernel, x: NDArray[np.float32], weight: NDArray[np.float32]
) -> NDArray[np.float32]:
    found = np.full((len(x), len(weight)), np.nan, np.float32)
    ((_, layout),) = layout_group(own, kernel)
    loaded(compile_candidate(own, kernel).binary)([aligned(x), layout.pack(weight), found])
    return found


def normal(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("mcpu", ["x86-64-v3", "native"])
@shares(2)
@settings(max_examples=3)
@given(data=st.data())
def test_kernels_are_right_at_any_size(share: int, mcpu: str, data: st.DataObject) -> None:
    target = native() if mcpu == "native" else runnable(mcpu)
    epilogue = data.draw(st.sampled_from([(), ("bias", "gelu"), ("bias", "add")]))
    sizes = {"n": data.draw(st.integers(1, 150)), "k": 2 * data.draw(st.integers(48, 150))}
    own = task(target, data.draw(st.sampled_from([1, 2, 4])), epilogue, **sizes)
    kernel = RULE.space(own).sample(np.random.default_rng(data.draw(st.integers(0, 2**32 - 1))))
    rows = data.draw(st.sets(st.integers(1, 130), min_size=1, max_size=3))
    assert built_problems(own, kernel, [own.workload.dims({"T": number}) for number in rows]) == []


@pytest.mark.parametrize("rows", [1, 2, 27, 28, 29, 113])
def test_blocks_end_anywhere(rows: int) -> None:
    own = task(native(), n=40, k=128)
    for tail in (0, 1):
        kernel = default(own, mr=4, nv=2, mb=2, tail=tail)
        assert built_problems(own, kernel, [own.workload.dims({"T": rows})]) == []


def test_errors_are_about_those_of_sums_in_order() -> None:
    """The root mean square of the errors, beside that of sums in float32 in order."""
    x, weight, own = np.maximum(normal(0, 64, 512), 0), normal(1, 48, 512), task(native(), n=48, k=512)
    exact = x.astype(np.float64) @ weight.T.astype(np.float64)
    in_order = np.zeros((64, 48), np.float32)
    for step in range(512):
        in_order += x[:, step, None] * weight[:, step]
    assert rms(called(own, default(own), x, weight) - exact) < 2 * rms(in_order - exact)


def rms(errors: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(errors**2)))


def test_rows_and_columns_err_by_their_own_sizes() -> None:
    """However large their neighbours are: as far as float32 goes."""
    x, weight, own = normal(0, 40, 128), normal(1, 70, 128), task(native(), n=70, k=128)
    plain = called(own, default(own), x, weight)
    rng = np.random.default_rng(2)
    down, across = (np.ldexp(1.0, rng.integers(-55, 55, size)).astype(np.float32) for size in (40, 70))
    found = called(own, default(own), x * down[:, None], weight * across[:, None])
    assert (found == plain * down[:, None] * across).all()


def test_rows_and_columns_of_zeros_have_results_of_zero() -> None:
    x, weight, own = normal(0, 40, 128), normal(1, 70, 128), task(native(), n=70, k=128)
    x[3], weight[5], weight[20] = 0, 0, 0
    found = called(own, default(own), x, weight)
    assert not found[3].any()
    assert not found[:, [5, 20]].any()
    assert np.count_nonzero(found) == 39 * 68


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_no_number_is_in_the_results_of_its_own_row_alone(value: float) -> None:
    x, weight, own = normal(0, 40, 128), normal(1, 70, 128), task(native(), n=70, k=128)
    plain = called(own, default(own), x, weight)
    x[7, 9], x[30, 127] = value, value
    found = called(own, default(own), x, weight)
    assert np.isnan(found[[7, 30]]).all()
    others = np.delete(np.arange(40), [7, 30])
    assert np.allclose(found[others], plain[others], rtol=0, atol=1e-4)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_so_it_is_with_columns(value: float) -> None:
    x, weight, own = normal(0, 40, 128), normal(1, 70, 128), task(native(), n=70, k=128)
    plain, space = called(own, default(own), x, weight), CONTRACTION.space(own)
    weight[20, 100] = value
    in_blocks = space.kernel({**space.values_of(CONTRACTION.default_kernel(own)), "nv": 2, "panel": IN_BLOCKS})
    others = np.delete(np.arange(70), 20)
    for kernel in (default(own), in_blocks):
        found = called(own, kernel, x, weight)
        assert np.isnan(found[:, 20]).all()
        assert np.allclose(found[:, others], plain[:, others], rtol=0, atol=1e-4)


@pytest.mark.parametrize("size", [1e-44, 1e-38, 3e38])
def test_the_smallest_and_the_largest_numbers_have_factors(size: float) -> None:
    x, weight, own = np.sign(normal(0, 6, 128)), np.sign(normal(1, 33, 128)), task(native(), n=33, k=128)
    x *= np.float32(size)
    weight /= 256
    exact = x.astype(np.float64) @ weight.T.astype(np.float64)
    # Denormal numbers have fewer digits.
    bound = 2.0**-20 * np.abs(x).max() + 2.0**-149
    assert np.abs(called(own, default(own), x, weight) - exact).max() <= bound


@pytest.mark.parametrize("nv", [1, 2, 3])
def test_sums_as_they_are_written_are_the_same_from_blocks(nv: int) -> None:
    """To the last bit, in one library with kernels of the rule."""
    own, space = (one := task(native(), n=70, k=128)), CONTRACTION.space(one)
    values = space.values_of(CONTRACTION.default_kernel(own)) | {"nv": nv, "mr": 4}
    as_vectors, in_blocks = (space.kernel(values | {"panel": panel}) for panel in (OF_VECTORS, IN_BLOCKS))
    assert layout_group(own, in_blocks) == layout_group(own, default(own)) != layout_group(own, as_vectors)
    x, weight = normal(0, 29, 128), normal(1, 70, 128) * np.float32(1e-3)
    assert (called(own, in_blocks, x, weight) == called(own, as_vectors, x, weight)).all()


@pytest.mark.parametrize("args", [{"k": 127, "n": 64}, {"k": 94, "n": 64}, {"k": 128, "n": "S"}, {"k": "S", "n": 64}])
def test_other_products_are_left_to_others(args: dict[str, object]) -> None:
    workload = workload_from_json({"op": "dense", "args": {"m": "T", **args}})
    assert isinstance(RULE.match(workload, SERVER), NoMatch)
    own = SearchTask(
        workload, shape_vars=tuple(ShapeVar(name, range(1, 65)) for name in workload.variables), target=SERVER
    )
    (panel,) = (axis for axis in CONTRACTION.space(own).axes if axis.name == "panel")
    assert IN_BLOCKS not in panel.choices


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
def test_other_dtypes_are_left_to_others(dtype: str) -> None:
    workload = workload_from_json({"op": "dense", "args": {"m": "T", "n": 64, "k": 128}, "dtype": dtype})
    assert isinstance(RULE.match(workload, SERVER), NoMatch)


def test_lanes_and_rows_that_nobody_wrote_are_not_computed_with() -> None:
    own = task(native(), n=33, k=128)
    assert not computes_with_denormals(own, default(own), own.workload.dims({"T": 5}))


def test_rows_of_a_block_are_bounded() -> None:
    own = task(SERVER, n=768, k=768)
    with pytest.raises(IllegalKernel, match="mb=64 mr=14 packs 896 rows, limit 512"):
        default(own, mb=64, mr=14, nv=2)


def test_accumulators_stay_in_registers() -> None:
    own = task(SERVER, n=768, k=768)
    assert spills(own, default(own, mr=14, nv=2, ku=2, mb=4, ahead=4, tail=0)) <= 2 * 14


def test_theory_expects_them_to_be_faster_where_rows_are_many() -> None:
    own, rng = task(SERVER, n=3072, k=768), np.random.default_rng(0)
    extents, best = extents_of(own.workload, [{"T": 4}, {"T": 1024}]), []
    for rule in (CONTRACTION, RULE):
        space = rule.space(own)
        kernels = [space.sample(rng) for _ in range(1500)]
        best.append(rule.estimate_s(own, kernels, extents).min(axis=0))
    (few, many), (few_of_blocks, many_of_blocks) = best
    assert few < few_of_blocks
    assert many_of_blocks < many
