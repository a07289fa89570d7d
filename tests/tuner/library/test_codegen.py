"""Machine code against the reference: ragged shapes, guard regions, misaligned arrays, epilogues, threads, targets.

Every build takes a good part of a second, so each covers several things at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.compiled import built_problems, loaded, problems
from tests.measuring import PAST_THE_END, kernel, program
from tests.measuring import TASK as C_TASK
from tests.shares import every, spread
from tuner.errors import IllegalKernel
from tuner.library import codegen
from tuner.library.codegen import compile_candidate, link, module_json, module_of, object_of, toolchain
from tuner.library.dispatcher import Leaf, Node, Tree, bounded, choose, feature
from tuner.library.fitting import features_of
from tuner.library.package import ENTRY
from tuner.program.job.task import SearchTask
from tuner.program.language.dims import DimExpr, DimLike
from tuner.program.language.workload import ShapeVar
from tuner.program.reference import compute
from tuner.program.target import Target, native
from tuner.schedule import default_kernel, rule_of, space_of
from tuner.schedule.product.axes import OF_VECTORS, WIDE
from tuner.schedule.space import MicroKernel

T = ShapeVar("T", range(0, 301))
NATIVE = native()
AVX2 = Target.from_json({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
ROWS = (0, 1, 2, 5, 13, 31, 64, 257)


@pytest.fixture(autouse=True)
def as_served(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Dispatchers are optimised here, as in what users get."""
    codegen._compiled_entry.cache_clear()
    monkeypatch.setattr(codegen, "ENTRY_LEVEL", None)
    yield
    codegen._compiled_entry.cache_clear()


def task_of(op: str, m: DimLike, n: DimLike, k: DimLike, target: Target = NATIVE, **fields: Any) -> SearchTask:
    return SearchTask(op, {"m": m, "n": n, "k": k}, (T,), target=target, **fields)


def kernel_of(task: SearchTask, **values: int) -> MicroKernel:
    """The task's safe kernel with other values; on CPUs of few registers with as many rows as they hold."""
    safe = default_kernel(task)
    space = rule_of(safe).space(task)
    wanted = dict(safe.values) | values
    fitting = (space.legal(wanted | {"mr": mr}) for mr in range(wanted["mr"], 0, -1))
    result = next(kernel for kernel in fitting if kernel is not None)
    assert {name: result[name] for name in values if name != "mr"} == {n: v for n, v in values.items() if n != "mr"}
    return result


def stored_kernel_of(task: SearchTask, **values: int) -> MicroKernel:
    """A kernel as earlier releases stored them: panels packed ahead are as wide as the tile."""
    return rule_of(default_kernel(task)).space(task).kernel(dict(kernel_of(task, **values).values) | {"panel": WIDE})


def rows(*sizes: int, symbol: str = "m") -> list[dict[str, int]]:
    return [{symbol: size} for size in sizes or ROWS]


COMPUTED: list[tuple[str, int, int, tuple[str, ...], int, dict[str, int]]] = [
    ("dense", 53, 37, (), 1, {"mr": 6, "nv": 2, "ku": 4, "near": 8, "ahead": 16, "tail": 1}),
    ("dense", 64, 1, ("bias", "gelu"), 1, {"mr": 4, "nv": 2, "mb": 2, "ku": 8, "tail": 0}),
    ("dense", 33, 20, ("bias", "gelu_tanh", "add"), 2, {"mr": 3, "nv": 1, "tail": 1, "tn": 2}),
    ("dense", 7, 9, ("add", "relu"), 2, {"mr": 8, "nv": 2, "ahead": 1, "tail": 0, "tn": 1, "pack": 0}),
    ("dense", 7, 41, ("bias", "gelu"), 1, {"mr": 3, "nv": 3, "pack": 3}),
    ("matmul", 53, 37, ("relu",), 1, {"mr": 5, "nv": 2, "ku": 2, "tail": 1, "pack": 0, "mb": 3}),
    ("matmul", 70, 1, ("bias",), 1, {"mr": 4, "nv": 2, "near": 16, "pack": 1}),
    ("matmul", 31, 16, ("gelu", "bias", "add"), 2, {"mr": 2, "nv": 1, "tail": 1, "pack": 1, "tn": 2}),
    ("dense", 53, 300, ("bias", "gelu"), 1, {"mr": 4, "nv": 2, "mb": 3, "kc": 128, "ku": 4, "tail": 1, "rows": 1}),
    ("dense", 40, 257, ("add",), 2, {"mr": 5, "nv": 1, "mb": 2, "kc": 128, "ahead": 4, "fetch": 1, "rows": 1}),
    ("matmul", 70, 390, ("relu",), 1, {"mr": 4, "nv": 2, "mb": 4, "kc": 192, "ahead": 8, "pack": 2, "rows": 1}),
    ("matmul", 20, 31, (), 2, {"mr": 3, "nv": 1, "mb": 2, "pack": 2, "tn": 2}),
    ("batch_matmul_nn", 37, 140, ("bias", "add"), 1, {"mr": 4, "nv": 2, "mb": 3, "kc": 128, "pack": 0, "tail": 1}),
    ("batch_matmul_nn", 20, 24, (), 2, {"mr": 6, "nv": 1, "pack": 2, "tb": 1, "tn": 2, "tail": 1}),
    ("batch_matmul_nt", 37, 50, ("bias", "gelu", "add"), 1, {"mr": 3, "nv": 4, "mb": 256, "pack": 0}),
    ("batch_matmul_nt", 6, 16, (), 2, {"mr": 4, "nv": 4, "mb": 256, "pack": 0, "tb": 1, "tn": 2}),
    ("batch_matmul_nt", 37, 50, ("gelu", "add"), 1, {"mr": 4, "nv": 2, "pack": 1, "near": 8}),
    ("dense", 300, 300, ("bias", "gelu"), 1, {"mr": 4, "nv": 2, "mb": 3, "nb": 4, "kc": 128, "ahead": 8}),
    ("matmul", 200, 37, ("relu",), 2, {"mr": 3, "nv": 1, "mb": 256, "nb": 2, "pack": 2, "tn": 2}),
    ("matmul", 131, 40, (), 1, {"mr": 5, "nv": 1, "mb": 8, "nb": 16, "pack": 0, "rows": 1, "tail": 1}),
    ("batch_matmul_nt", 150, 50, ("add",), 1, {"mr": 4, "nv": 1, "mb": 8, "nb": 4, "pack": 2}),
    ("batch_matmul_nt", 5, 161, (), 2, {"mr": 2, "nv": 1, "pack": 2, "kc": 128, "mb": 4, "tb": 2, "tn": 1}),
]


@pytest.mark.parametrize(
    ("op", "n", "k", "epilogue", "threads", "values"),
    spread(every(6, COMPUTED)),
)
def test_kernels_compute_what_the_reference_does(
    op: str, n: int, k: int, epilogue: tuple[str, ...], threads: int, values: dict[str, int]
) -> None:
    batch = {"b": 3} if op.startswith("batch") else {}
    task = SearchTask(op, batch | {"m": T, "n": n, "k": k}, (T,), target=NATIVE, epilogue=epilogue, threads=threads)
    kernel = kernel_of(task, **values)
    assert built_problems(task, kernel, rows(symbol=task.workload.symbols[0])) == []


@pytest.mark.parametrize(
    "values", every(2, [{"nv": 2, "ku": 4, "near": 8, "ahead": 16}, {"nv": 3, "mb": 3, "nb": 2, "rows": 1}], first=1)
)
def test_stored_kernels_with_panels_as_wide_as_the_tile_are_right(values: dict[str, int]) -> None:
    task = task_of("dense", T, 85, 37, epilogue=("bias",))
    kernel = stored_kernel_of(task, mr=4, **values)
    assert "panel" not in dict(kernel.values)
    assert built_problems(task, kernel, rows(0, 3, 64, 257)) == []


def test_a_constant_of_dynamic_columns_is_not_read_past_its_last_vector() -> None:
    task = SearchTask("dense", {"m": 7, "n": T, "k": 21}, (T,), target=NATIVE)
    kernel = kernel_of(task, mr=4, nv=3)
    assert (kernel.get("panel"), kernel["edge"]) == (OF_VECTORS, 1)
    with pytest.raises(IllegalKernel, match="needs edge=1"):
        space_of(task).space_of(kernel).kernel(dict(kernel.values) | {"edge": 0})
    lanes = NATIVE.hardware.lanes()
    assert built_problems(task, kernel, rows(0, 1, lanes, lanes + 1, 3 * lanes, 6 * lanes + 1, symbol="n")) == []


@pytest.mark.parametrize("seed", every(4, range(4), first=3))
def test_sampled_kernels_compute_what_the_reference_does(seed: int) -> None:
    task = task_of(("dense", "matmul")[seed % 2], T, 100, 65, epilogue=("bias", "gelu"), threads=1 + seed // 2)
    kernel = space_of(task).sample(np.random.default_rng(seed))
    assert built_problems(task, kernel, rows(0, 1, 13, 130)) == [], str(kernel)


@pytest.mark.parametrize(
    ("pack", "threads", "values"),
    spread(
        every(
            3,
            [
                (0, 1, {}),
                (1, 2, {}),
                (0, 1, {"mb": 3, "nb": 2, "nv": 1, "edge": 0}),
                (2, 2, {"mb": 3, "nb": 4, "nv": 2, "edge": 1, "tn": 2}),
            ],
        )
    ),
)
def test_every_dim_of_a_matmul_may_be_dynamic(pack: int, threads: int, values: dict[str, int]) -> None:
    s = ShapeVar("S", range(0, 65))
    task = SearchTask("matmul", {"m": T, "n": 2 * s, "k": s}, (T, s), target=NATIVE, threads=threads)
    kernel = kernel_of(task, **({"pack": pack, "mr": 4, "nv": 2, "ku": 4, "tail": 1} | values))
    shapes = [(1, 1, 1), (0, 4, 3), (5, 0, 3), (5, 3, 0), (0, 0, 0), (7, 33, 5), (40, 64, 32), (33, 130, 65)]
    # More panels than any of these strips has.
    shapes.append((41, 5 * kernel["nv"] * NATIVE.hardware.lanes() + 3, 21))
    dims = [dict(zip("mnk", shape, strict=True)) for shape in shapes]
    assert built_problems(task, kernel, dims) == []


@pytest.mark.parametrize(
    "values",
    every(3, [{"pack": 1}, {"pack": 0, "ku": 1, "tail": 0}, {"pack": 2, "kc": 128, "mb": 2, "tb": 2, "tn": 1}]),
)
def test_every_dim_of_a_batched_product_may_be_dynamic(values: dict[str, int]) -> None:
    s, b = ShapeVar("S", range(0, 65)), ShapeVar("B", range(0, 8))
    args = {"b": b, "m": T, "n": 2 * s, "k": s}
    task = SearchTask("batch_matmul_nt", args, (T, s, b), target=NATIVE, threads=values.get("tb", 1))
    kernel = kernel_of(task, **({"mr": 4, "nv": 2, "ku": 4, "tail": 1} | values))
    shapes = [(1, 1, 1, 1), (0, 4, 4, 3), (3, 0, 3, 3), (2, 5, 0, 3), (2, 5, 3, 0), (3, 7, 33, 150), (1, 33, 130, 65)]
    dims = [dict(zip(task.workload.symbols, shape, strict=True)) for shape in shapes]
    assert built_problems(task, kernel, dims) == []


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_activations_are_right_from_the_smallest_to_the_largest(name: str) -> None:
    task = task_of("matmul", T, 20, 4, epilogue=("bias", name))
    magnitudes = (0.0, 1e-30, 1e-3, 0.1, 0.7, 1.0, 3.0, 6.0, 1e4, 1e30)
    bias = np.array([sign * size for size in magnitudes for sign in (1, -1)], np.float32)
    a, b, out = (np.zeros(shape, np.float32) for shape in ((3, 4), (4, 20), (3, 20)))
    loaded(compile_candidate(task, kernel_of(task)).binary)([a, b, bias, out])
    np.testing.assert_allclose(out, compute(task.workload, [a, b, bias], {"m": 3})[0], rtol=1e-6, atol=3e-7)


def test_one_dim_may_stand_on_three_axes() -> None:
    task = task_of("matmul", T, T, T)
    kernel = kernel_of(task)
    assert built_problems(task, kernel, rows(1, 2, 17, 50)) == []


def test_a_workload_of_fixed_size_has_code() -> None:
    task = SearchTask("dense", {"m": 13, "n": 40, "k": 24}, target=NATIVE, epilogue=["bias"])
    kernel = kernel_of(task, tail=1)
    assert built_problems(task, kernel, [{}]) == []


@pytest.mark.parametrize("op", every(2, ["dense", "matmul"]))
def test_code_for_an_older_cpu_is_right_here_too(op: str) -> None:
    if not set(AVX2.hardware.features) <= set(NATIVE.hardware.features):
        pytest.skip("this CPU has no AVX2 and FMA, which x86-64-v3 code needs")
    task = task_of(op, T, 43, 29, AVX2, epilogue=("bias", "gelu"))
    kernel = kernel_of(task, mr=4, nv=2, tail=1, ku=2)
    binary = compile_candidate(task, kernel).binary
    assert problems(task, kernel, loaded(binary), rows(0, 1, 6, 37, 120)) == []


@pytest.mark.parametrize("op", every(2, ["dense", "matmul"]))
def test_a_library_dispatches_by_its_tree(op: str) -> None:
    task = task_of(op, T, 45, 21, epilogue=("bias",))
    tiles = ((8, 1, 0, 1), (2, 3, 1, 2), (6, 2, 1, 4))
    kernels = [kernel_of(task, mr=mr, nv=nv, tail=tail, ku=ku) for mr, nv, tail, ku in tiles]
    tree = bounded(Node("m", 6, Leaf(1), Leaf(2)), {"m": (1, 300)}, 0)
    module = module_of(task, kernels, tree)
    names = sorted(str(var.name_hint) for var in module.get_global_vars())
    assert names == [ENTRY, "kernel_0", "kernel_1", "kernel_2"]
    assert "kernel_2" in module_json(module)
    call = loaded(link(task, kernels, tree, [compile_candidate(task, kernel).code for kernel in kernels]))
    assert problems(task, kernels[0], call, rows(0, 1, 6, 7, 300, 301, 350)) == []


def test_the_kernel_that_the_tree_names_is_the_one_that_runs() -> None:
    """The second kernel is put in place of one that also cuts off what is negative, and so is wrong."""
    task = task_of("matmul", T, 16, 4)
    kernels = [kernel_of(task, mr=1), kernel_of(task, mr=2)]
    tree = bounded(Node("m", 9, Leaf(0), Leaf(1)), {"m": (5, 20)}, 0)
    other = task_of("matmul", T, 16, 4, epilogue=("relu",))
    call = loaded(link(task, kernels, tree, [object_of(task, kernels[0]), object_of(other, kernels[1])]))
    wrong = [m for m in range(25) if problems(task, kernels[0], call, rows(m))]
    assert wrong == list(range(10, 21))


def test_features_are_computed_in_code_as_they_are_here() -> None:
    """Random trees over random features, each compiled: the second kernel of each is wrong, as above."""
    s = ShapeVar("S", range(0, 41))
    of_two = SearchTask("matmul", {"m": T, "n": s, "k": 3}, (T, s), target=NATIVE)
    cut_off = SearchTask("matmul", {"m": T, "n": s, "k": 3}, (T, s), target=NATIVE, epilogue=("relu",))
    kernels = [kernel_of(of_two, mr=1), kernel_of(of_two, mr=2)]
    objects = [object_of(of_two, kernels[0]), object_of(cut_off, kernels[1])]
    rng = np.random.default_rng(5)
    points = [{"m": int(m), "n": int(n)} for m, n in rng.integers(0, 45, (60, 2))]
    for _ in range(3):
        tree = bounded(random_tree(rng, 4), {"m": (2, 40), "n": (0, 40)}, 0)
        call = loaded(link(of_two, kernels, tree, objects))
        wrong = [dims for dims in points if problems(of_two, kernels[0], call, [dims])]
        assert wrong == [dims for dims in points if choose(tree, dims) == 1 and min(dims.values()) > 0]
        assert wrong


def random_tree(rng: np.random.Generator, depth: int) -> Tree:
    if depth == 0:
        return Leaf(int(rng.integers(2)))
    tiles = {DimExpr.of(name): [int(size) for size in rng.integers(2, 17, 2)] for name in "mn"}
    features = ["m", "n", *features_of(["m", "n"], tiles)]
    values = [feature(text, {"m": 20, "n": 20}) for text in features]
    at = int(rng.integers(len(features)))
    return Node(features[at], values[at], random_tree(rng, depth - 1), random_tree(rng, depth - 1))


def test_kernels_of_different_layouts_make_no_library() -> None:
    task = task_of("dense", T, 64, 16)
    kernels = [kernel_of(task, nv=2), stored_kernel_of(task, nv=2)]
    with pytest.raises(ValueError, match="share their packed layouts"):
        module_of(task, kernels, Leaf(0))
    with pytest.raises(ValueError, match="share their packed layouts"):
        link(task, kernels, Leaf(0), [b"", b""])


def test_a_broken_build_is_found_out() -> None:
    call = loaded(program(PAST_THE_END))
    (problem,) = problems(C_TASK, kernel(), call, rows(4, 5, 8))
    assert "past the end of its output" in problem
    assert "m=5" in problem


def test_a_kernel_of_another_workload_is_found_out() -> None:
    task, other = task_of("matmul", T, 16, 8), task_of("matmul", T, 16, 8, epilogue=("relu",))
    kernel = kernel_of(task, mr=4)
    (problem,) = problems(task, kernel, loaded(compile_candidate(other, kernel).binary), rows(3))
    assert "elements are wrong: max error" in problem


def test_a_call_with_wrong_tensors_raises() -> None:
    task = task_of("matmul", T, 16, 8)
    call = loaded(compile_candidate(task, kernel_of(task)).binary)
    a, b, out = (np.zeros(shape, np.float32) for shape in ((3, 8), (8, 16), (3, 16)))
    call([a, b, out])
    for bad in ([a, b], [a, b.T, out], [a, b, out[:2]], [a.astype(np.float64), b, out], [a[:, :4], b, out]):
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            call(bad)


def test_the_same_kernel_gives_the_same_ir() -> None:
    task = task_of("dense", T, 64, 16)
    texts = {module_of(task, [kernel_of(task)], Leaf(0)).script() for _ in range(2)}
    assert len(texts) == 1


def test_the_toolchain_is_named() -> None:
    result = toolchain()
    assert set(result) == {"tvm", "llvm"}
    assert int(result["llvm"]) >= 15


def test_nothing_is_compiled_for_an_unknown_target() -> None:
    task = SearchTask("matmul", {"m": T, "n": 8, "k": 8}, (T,))
    with pytest.raises(ValueError, match="is not known yet"):
        object_of(task, kernel_of(task.on(NATIVE)))
