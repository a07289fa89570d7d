"""Plain C functions compute what the library does: against the reference, between guard regions, at ragged sizes."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shapewright as sw
from shapewright.c_library import build
from shapewright.c_library.source import CSource
from tests.refusing import answer
from tests.shapewright.c_library.calling import CLibrary, files_of
from tests.shares import chosen
from tuner.library.build import build_library
from tuner.library.dispatcher import Dispatcher, Leaf, Node, bounded, symbol_bounds
from tuner.measure.verification.ragged import ragged_dims
from tuner.measure.verification.verify import Case
from tuner.program.job.task import SearchTask
from tuner.program.target import native
from tuner.program.target.cpu import FROM_LINUX
from tuner.schedule import default_kernel, rules_of
from tuner.schedule.product.atoms import AMX
from tuner.schedule.space import MicroKernel

pytestmark = pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="there is no C compiler here")

T = sw.ShapeVar("T", range(1, 65))
BYTES = {"x": "uint8", "w": "int8", "out": "int32"}
OK, UNSUPPORTED_CPU, BAD_SIZE, NULL_POINTER, FAILED = range(5)


def task(op: Any, args: dict[str, Any], **fields: Any) -> SearchTask:
    return SearchTask(op, args, (T,), target=native(), **fields)


def program(text: str, sizes: dict[str, Any], constant: tuple[str, ...] = (), **fields: Any) -> SearchTask:
    return task(sw.ops.program(text, constant=constant), sizes, **fields)


FEW: dict[str, Callable[[], SearchTask]] = {
    "two threads": lambda: task("dense", {"m": 16 * T, "n": 45, "k": 24}, threads=2, epilogue=["bias", "relu"]),
    "bytes, with an offset": lambda: task("dense", {"m": T, "n": 45, "k": 50}, dtype=BYTES),
}
MORE: dict[str, Callable[[], SearchTask]] = {
    "a convolution": lambda: task("conv2d", {"b": T, "c": 6, "h": 5, "w": 5, "o": 10, "r": 3, "s": 3}),
    "a convolution by minimal filtering": lambda: task(
        "conv2d", {"b": T, "c": 17, "h": 4, "w": 5, "o": 16, "r": 3, "s": 3, "pad": 1}
    ),
    "a weight of dynamic size": lambda: task("dense", {"m": 3, "n": T, "k": 2 * T}),
    "bfloat16": lambda: task("dense", {"m": T, "n": 40, "k": 24}, dtype="bfloat16"),
    "a transposed convolution": lambda: task("conv1d_transpose", {"b": T, "c": 6, "w": 9, "o": 8, "s": 3, "stride": 2}),
    "two constants of scales": lambda: task("dense_int4", {"m": T, "n": 40, "k": 64}),
    "four bits along the columns": lambda: program(
        "out[m, n] = sum(k) x[m, k] * (cast((w[k, n // 8] >> (4 * (n % 8))) & 15, float32)"
        " - cast((z[k // 16, n // 8] >> (4 * (n % 8))) & 15, float32))",
        {"m": T, "n": 40, "k": 50},
        constant=("w", "z"),
        dtype={"w": "int32", "z": "int32"},
    ),
    "no constants, names of symbols": lambda: task("attention", {"b": 2, "h": 2, "i": T, "j": T, "d": 16}),
    "an index": lambda: task("moe_dense", {"t": T, "e": 3, "n": 20, "k": 24}),
    "names that C has": lambda: program("int[m, n] = double[m, n] * packed[m, n]", {"m": T, "n": 7}),
    "names that C or the source has, and what they are replaced by": lambda: program(
        "sw_size[m, n] = m[m, n] * m_size[m, n] + int[m, n] * int_[m, n] - sw_status[m, n] * asm[m, n] + stdin[m, n]",
        {"m": T, "n": 7},
    ),
}
TASKS = FEW | MORE
RULES = {"a convolution by minimal filtering": "x86_winograd"}
"""Of a task whose library is not of the preferred rule."""


@pytest.mark.parametrize("name", chosen(["bytes, with an offset"], TASKS))
def test_it_computes_what_the_reference_does(name: str, tmp_path: Path) -> None:
    searched = TASKS[name]()
    _check_function(searched, CLibrary(files_of(searched, RULES.get(name)), tmp_path / "c"))


@pytest.mark.skipif(not AMX[0].is_on(native().hardware), reason="this CPU has no AMX")
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_tiles_are_multiplied_and_constants_filled_up_for_them(dtype: str, tmp_path: Path) -> None:
    types: Any = dtype if dtype == "bfloat16" else {"x": dtype, "w": dtype, "out": "int32"}
    searched = task("dense", {"m": T, "n": 45, "k": 35}, dtype=types)
    space, random = rules_of(searched)[0].space(searched), np.random.default_rng(0)
    depths = {unit.depth for unit in AMX}
    kernel = next(each for each in iter(lambda: space.sample(random), None) if each.get("group") in depths)
    files = build_library(Dispatcher(searched, (kernel,), 0, Leaf(0)), "job-1").files
    _check_function(searched, CLibrary(files, tmp_path / "one", "one"))
    _check_symbols(tmp_path / "one" / "lib" / "libshapewright_one.so")


@pytest.mark.skipif("avx512_bf16" not in native().hardware.features, reason="this CPU multiplies no pairs of bfloat16")
def test_numbers_of_four_bits_are_packed_in_words(tmp_path: Path) -> None:
    searched = SearchTask(
        "dense_int4", {"m": T, "n": 40, "k": 64, "group": 32}, (T,),
        dtype={"x": "bfloat16", "s": "bfloat16", "out": "bfloat16"}, target=native(),
    )  # fmt: skip
    space, random = rules_of(searched)[0].space(searched), np.random.default_rng(0)
    kernel = next(each for each in iter(lambda: space.sample(random), None) if each.get("group") == 2)
    files = build_library(Dispatcher(searched, (kernel,), 0, Leaf(0)), "job-1").files
    _check_function(searched, CLibrary(files, tmp_path / "c"))


@pytest.mark.parametrize("stride", [1, 2])
def test_taps_are_packed_for_tiles_of_four_by_four_outputs(stride: int, tmp_path: Path) -> None:
    searched = task("conv2d", {"b": T, "c": 17, "h": 6, "w": 7, "o": 18, "r": 3, "s": 3, "pad": 1, "stride": stride})
    (rule,) = (each for each in rules_of(searched) if each.name == "x86_winograd")
    space = rule.space(searched)
    kernel = space.kernel({**space.values_of(rule.default_kernel(searched)), "pairs": 2})
    files = build_library(Dispatcher(searched, (kernel,), 0, Leaf(0)), "job-1").files
    _check_function(searched, CLibrary(files, tmp_path / "c"))


@pytest.mark.parametrize("value", [0.0, 1e-42, np.inf])
def test_blocks_are_packed_as_in_python(value: float, tmp_path: Path) -> None:
    searched = task("dense", {"m": T, "n": 75, "k": 98})
    library = CLibrary(files_of(searched, "x86_strassen"), tmp_path / "c")
    _check_function(searched, library)
    weight = np.random.default_rng(0).standard_normal((75, 98)).astype(np.float32)
    weight[3] *= 1e30
    weight[7:9] = value
    (tensor,) = (each for each in searched.workload.inputs if each.constant)
    packed = library.packed(tensor, weight, {})
    assert np.array_equal(packed, library.texts.layouts[tensor.name].pack(weight), equal_nan=True)


def test_it_says_that_tiles_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = native()
    if own.hardware.vector_bytes != 64:
        pytest.skip("this CPU has no AVX-512")
    features = tuple(dict.fromkeys((*own.hardware.features, "amx_tile", "amx_bf16")))
    target = replace(own, hardware=replace(own.hardware, features=features))
    searched = SearchTask("dense", {"m": T, "n": 45, "k": 35}, (T,), dtype="bfloat16", target=target)
    space, random = rules_of(searched)[0].space(searched), np.random.default_rng(0)
    depth = AMX[0].depth
    kernel = next(each for each in iter(lambda: space.sample(random), None) if each.get("group") == depth)
    files = build_library(Dispatcher(searched, (kernel,), 0, Leaf(0)), "job-1").files
    # As the CPU says that it has tiles.
    linux = {ours: linux for linux, ours in FROM_LINUX.items()}
    says = tmp_path / "cpuinfo"
    says.write_text(f"flags\t\t: {' '.join(linux.get(name, name) for name in features)}\n")
    source = CSource.source
    told = partialmethod(lambda self, kernels: source(self, kernels).replace("/proc/cpuinfo", str(says)))
    monkeypatch.setattr(CSource, "source", told)
    monkeypatch.setattr(build, "verify", lambda *_: None)  # it cannot run here
    CLibrary(files, tmp_path / "c")

    (status, message), _ = answer(errno.EPERM, "c library", tmp_path / "c" / "lib" / "libshapewright_layer.so")

    assert status == UNSUPPORTED_CPU
    assert message.startswith("amx_tile: Linux does not let this process use it: allow arch_prctl")


@pytest.mark.soak
def test_parts_of_a_sum_are_added_up_once_all_threads_are_done(tmp_path: Path) -> None:
    searched = task("dense", {"m": T, "n": 45, "k": 1100}, threads=2, epilogue=["bias"])
    rule, space = rules_of(searched)[0], rules_of(searched)[0].space(searched)
    kernel = space.kernel(space.values_of(rule.default_kernel(searched)) | {"tn": 1, "split_k": 2})
    files = build_library(Dispatcher(searched, (kernel,), 0, Leaf(0)), "job-1").files
    _check_function(searched, CLibrary(files, tmp_path / "c"))


@pytest.mark.soak
def test_features_of_a_dispatcher_are_compiled_from_the_ir(tmp_path: Path) -> None:
    """A shared object has the same code, and `make test` asks it which kernel runs where."""
    searched = task("matmul", {"m": T, "n": 2 * T, "k": 9})
    safe = default_kernel(searched)
    other = MicroKernel(safe.rule, safe.rule_version, tuple((dict(safe.values) | {"mr": 3}).items()))
    inner = Node("((m+2)//3)*((n+15)//16)", 40, Leaf(1), Node("m*n", 900, Leaf(0), Leaf(1)))
    tree = bounded(Node("m%5", 2, Leaf(0), inner), symbol_bounds(searched), 0)
    files = build_library(Dispatcher(searched, (safe, other), 0, tree), "job-1").files
    _check_function(searched, CLibrary(files, tmp_path / "c"))


def _check_function(searched: SearchTask, library: CLibrary) -> None:
    workload, layouts = searched.workload, library.texts.layouts
    for dims in ragged_dims(workload):
        case = Case.of(workload, dims)
        inputs = []
        for tensor, array in zip(workload.inputs, case.inputs, strict=True):
            if tensor.name in layouts:
                packed = library.packed(tensor, array, dims)
                np.testing.assert_array_equal(packed.view(np.uint8), layouts[tensor.name].pack(array).view(np.uint8))
                inputs.append(packed)
            else:
                inputs.append(array)
        statuses: list[int] = []

        problem = case.check(inputs, lambda operands: statuses.append(library.call(operands, dims)))  # noqa: B023

        assert (problem, statuses) == (None, [OK]), library.error()


def test_what_does_not_fit_is_a_status_with_a_message(tmp_path: Path) -> None:
    wide = sw.ShapeVar("T", range(8, 65))
    conv = SearchTask("conv1d", {"b": 1, "c": 2, "w": wide, "o": 4, "s": 3}, (wide,), target=native())
    library = CLibrary(files_of(conv), tmp_path / "c", "conv")
    dims = library.workload.dims({"T": 8})
    assert list(library.texts.symbols) == list(dims) and len(dims) == 2, "the sizes before and after"
    x, w, out = (np.zeros(64, np.float32) for _ in range(3))
    for symbol in dims:
        for size in (-1, 2**31):
            assert library.call([x, w, out], dims | {symbol: size}) == BAD_SIZE
            assert library.error().decode() == f"{symbol}: is not a size from 0 to 2147483647"
    assert (
        library.call([x, w, out], {name: 1 if name == list(dims)[1] else size for name, size in dims.items()}) == FAILED
    )
    assert "reads of x pass the end" in library.error().decode()
    assert library.call([None, w, out], dims) == NULL_POINTER
    assert library.error() == b"x: is NULL"


@pytest.mark.soak
def test_several_libraries_and_callers_share_a_process(tmp_path: Path) -> None:
    """Each has the same names inside, and a pool of threads of its own that one caller at a time uses."""
    searched = FEW["two threads"]()
    files, (symbol,) = files_of(searched), searched.workload.symbols
    libraries = [CLibrary(files, tmp_path / name, name) for name in ("one", "other")]
    case = Case.of(searched.workload, {symbol: 301})
    inputs = list(case.inputs)
    inputs[1] = libraries[0].packed(searched.workload.inputs[1], inputs[1], {})

    def problems(index: int) -> set[str | None]:
        library = libraries[index % 2]
        return {case.check(inputs, lambda operands: library.call(operands, {symbol: 301})) for _ in range(10)}

    with ThreadPoolExecutor(4) as pool:
        assert set().union(*pool.map(problems, range(4))) == {None}
    _check_symbols(tmp_path / "one" / "lib" / "libshapewright_one.so")


def _check_symbols(library: Path) -> None:
    """It needs the C library alone, and exports its functions alone."""

    def read(option: str) -> list[str]:
        line = ["readelf", "--wide", option, str(library)]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout.splitlines()

    needed = {line.split("[")[1].rstrip("]") for line in read("--dynamic") if "(NEEDED)" in line}
    assert needed <= {"libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2"}
    symbols = [
        line.split() for line in read("--dyn-syms") if line.split()[:1] and line.split()[0].rstrip(":").isdigit()
    ]
    exported = {line[7] for line in symbols if len(line) > 7 and line[6] != "UND"}
    assert exported == {f"shapewright_one{end}" for end in ("", "_error", "_pack_w", "_packed_w_bytes")}
    assert not any("tvm" in line[-1].lower() for line in symbols)
