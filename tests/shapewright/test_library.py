"""Libraries in use: any alignment, any threads, any number of rows; everything that does not fit is a clear error."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import shapewright as sw
from shapewright.library import Library
from shapewright.loading import load
from shapewright.packed import PackedWeight
from tests.shapewright.libraries import save
from tuner.errors import InvalidInput, ShapewrightError
from tuner.library import package as files_of
from tuner.library.build import build_library
from tuner.library.dispatcher import Dispatcher, Leaf, Node, bounded
from tuner.measure.tensors import tensor_of
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar
from tuner.program.reference import compute
from tuner.program.target import native
from tuner.schedule import rules_of

Floats = NDArray[np.float32]
Change = Callable[[Path], object]
N, K = 45, 24
T = ShapeVar("T", range(1, 65))
DENSE = SearchTask("dense", {"m": 2 * T, "n": N, "k": K}, (T,), target=native(), epilogue=["bias", "relu"])
DYNAMIC = SearchTask("dense", {"m": 3, "n": T, "k": 2 * T}, (T,), target=native())
MATMUL = SearchTask("matmul", {"m": T, "n": N, "k": T}, (T,), target=native())


def built(task: SearchTask, directory: Path) -> Path:
    """A library of two kernels, compiled and written without a search."""
    rule = rules_of(task)[0]
    values = dict(rule.default_kernel(task).values)
    kernels = tuple(rule.space(task).kernel(values | change) for change in ({"mr": 4}, {"mr": 2, "tail": 1, "ku": 2}))
    tree = bounded(Node("m", 10, Leaf(1), Leaf(0)), {"m": (2, 128)}, 0)
    dispatcher = Dispatcher(task, kernels, 0, tree)
    result = build_library(dispatcher, "job-1")
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in result.files.items():
        (directory / name).write_bytes(content)
    return directory


@pytest.fixture(scope="module")
def dense_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(DENSE, tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="module")
def dense(dense_dir: Path) -> Library:
    return sw.load(dense_dir)


@pytest.fixture(scope="module")
def matmul(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return load(built(MATMUL, tmp_path_factory.mktemp("matmul")))


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """Of a weight whose dims depend on T."""
    rule = rules_of(DYNAMIC)[0]
    dispatcher = Dispatcher(DYNAMIC, (rule.default_kernel(DYNAMIC),), 0, Leaf(0))
    directory = tmp_path_factory.mktemp("dynamic")
    for name, content in build_library(dispatcher, "job-1").files.items():
        (directory / name).write_bytes(content)
    return load(directory)


@pytest.fixture
def copy(dense_dir: Path, tmp_path: Path) -> Path:
    """The dense library's files, to be tampered with."""
    for file in dense_dir.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def random(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng([seed, *shape]).uniform(-1, 1, shape).astype(np.float32)


X, W, BIAS = random(6, K), random(N, K), random(N)


def zeros(*shape: int) -> Floats:
    return np.zeros(shape, np.float32)


def assert_right(x: Floats, out: Floats) -> None:
    (expected,) = compute(DENSE.workload, [x, W, BIAS], {"m": len(x)})
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=2e-5)


def refused(library: Library, *operands: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        library(*operands)
    return caught.value


# -- calls that fit ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("m", [1, 2, 5, 10, 11, 128, 129, 500])
def test_any_number_of_rows_is_computed(dense: Library, m: int) -> None:
    x, out = random(m, K), zeros(m, N)
    dense(x, dense.pack(W), BIAS, out)
    assert_right(x, out)


def test_no_rows_are_nothing_to_do(dense: Library) -> None:
    dense(zeros(0, K), dense.pack(W), BIAS, zeros(0, N))


def test_empty_operands_are_computed_too(matmul: Library) -> None:
    out = np.full((3, N), np.nan, np.float32)[:0]
    matmul(zeros(0, 0), zeros(0, N), out)
    a, b, out = random(7, 7), random(7, N), zeros(7, N)
    matmul(a, b, out)
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-5)


def placed(array: Floats, offset: int) -> Floats:
    """A copy that starts ``offset`` bytes past a cache line."""
    raw = np.zeros(array.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    result: Floats = raw[start : start + array.nbytes].view(np.float32).reshape(array.shape)
    result[...] = array
    assert result.ctypes.data % 64 == offset
    return result


@pytest.mark.parametrize("offset", range(64))
def test_arrays_may_start_at_any_byte(dense: Library, offset: int) -> None:
    out = placed(zeros(6, N), (offset * 7) % 64)
    dense(placed(X, offset), dense.pack(placed(W, offset)), placed(BIAS, (offset + 13) % 64), out)
    assert_right(X, out)


def test_threads_may_call_at_once(dense: Library) -> None:
    packed = dense.pack(W)
    problems: list[BaseException] = []

    def call(seed: int) -> None:
        try:
            for m in (1, 3, 17, 40, 129):
                x, out = random(m, K, seed=seed), zeros(m, N)
                for _ in range(20):
                    out[...] = np.nan
                    dense(x, packed, BIAS, out)
                    assert_right(x, out)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert problems == []


def test_threads_may_call_a_library_of_two_threads_at_once(tmp_path: Path) -> None:
    """Each call packs its operand into a workspace of its own, and each caller has a pool of its own."""
    task = SearchTask(MATMUL.workload, shape_vars=(T,), target=native(), threads=2)
    library = load(built(task, tmp_path))
    right: list[bool] = []

    def call(seed: int) -> None:
        for m in (1, 9, 33):
            a, b, out = random(m, m, seed=seed), random(m, N, seed=seed), zeros(m, N)
            for _ in range(5):
                out[...] = np.nan
                library(a, b, out)
                right.append(np.allclose(out, a @ b, rtol=1e-4, atol=1e-5))

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert right == [True] * 60


def test_inputs_may_be_read_only(dense: Library) -> None:
    x, bias, weight = X.copy(), BIAS.copy(), W.copy()
    for array in (x, bias, weight):
        array.flags.writeable = False
    out = zeros(6, N)
    dense(x, dense.pack(weight), bias, out)
    assert_right(X, out)


def test_arrays_of_bfloat16_are_handed_over_without_a_second_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "short", SearchTask("softmax", {"m": T, "n": 8}, (T,), target=native(), dtype="bfloat16"))
    library = load(tmp_path / "short")
    x, out = random(3, 8).astype(ml_dtypes.bfloat16), np.zeros((3, 8), ml_dtypes.bfloat16)
    with monkeypatch.context() as patched:
        patched.setattr(library, "_retry_checked", pytest.fail)
        library(x, out)
        library(tensor_of(x), tensor_of(out))
    assert np.abs(out.astype(np.float32).sum(axis=1) - 1).max() < 0.02
    before, x.flags.writeable = out.copy(), False
    library(x, out)
    assert (out == before).all()
    out.flags.writeable = False
    assert refused(library, x, out).problem == "is read-only"
    assert refused(library, x.astype(np.float32), out).problem == "dtype float32"
    assert refused(library, x).field == "operands"


def test_a_weight_may_have_any_strides(dense: Library) -> None:
    out = zeros(6, N)
    dense(X, dense.pack(np.asfortranarray(W)), BIAS, out)
    assert_right(X, out)
    dense(X, dense.pack(np.repeat(W, 2, axis=1)[:, ::2]), BIAS, out)
    assert_right(X, out)


def test_tensors_of_other_libraries_are_taken(dense: Library) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'shapewright[bench]'")
    x, bias, out = (torch.from_numpy(array.copy()) for array in (X, BIAS, zeros(6, N)))
    dense(x, dense.pack(torch.from_numpy(W)), bias, out)
    assert_right(X, out.numpy())


def test_a_weight_that_wants_a_gradient_is_refused_with_the_remedy(dense: Library) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'shapewright[bench]'")
    weight = torch.from_numpy(W.copy()).requires_grad_()
    with pytest.raises(InvalidInput, match="detached from any gradient") as caught:
        dense.pack(weight)
    assert caught.value.field == "w"
    out = zeros(6, N)
    dense(X, dense.pack(weight.detach()), BIAS, out)
    assert_right(X, out)


def test_no_gradient_flows_through_a_call(dense: Library) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'shapewright[bench]'")
    x, out = torch.from_numpy(X.copy()).requires_grad_(), torch.zeros(6, N)
    dense(x, dense.pack(W), BIAS, out)
    assert_right(X, out.numpy())
    assert not out.requires_grad


# -- calls that do not ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("index", "bad", "field", "says"),
    [
        (0, X.astype(np.float64), "x", "dtype float64"),
        (0, X.astype(">f4"), "x", "dtype >f4"),
        (0, X.astype(np.int32), "x", "dtype int32"),
        (0, zeros(6, K + 1), "x", f"shape [m, {K}]"),
        (0, zeros(6), "x", "shape (6,)"),
        (0, zeros(1, 6, K), "x", f"shape (1, 6, {K})"),
        (0, zeros(6, 2 * K)[:, ::2], "x", "leave gaps"),
        (0, zeros(12, K)[::2], "x", "leave gaps"),
        (0, np.asfortranarray(X), "x", "leave gaps"),
        (0, [[1.0] * K] * 6, "x", "list cannot be read through DLPack"),
        (0, None, "x", "NoneType cannot be read through DLPack"),
        (1, W, "w", "ndarray is not a packed weight"),
        (1, None, "w", "NoneType is not a packed weight"),
        (2, zeros(N + 1), "bias", f"shape [{N}]"),
        (2, zeros(1, N), "bias", f"shape [{N}]"),
        (3, zeros(6, N - 1), "out", f"shape [m, {N}]"),
        (3, zeros(6, N).astype(np.float64), "out", "dtype float64"),
        (3, zeros(12, N)[::2], "out", "leave gaps"),
        (3, zeros(7, N), "operands", ""),
        (3, zeros(5, N), "operands", ""),
    ],
)
def test_an_operand_that_does_not_fit_is_named(dense: Library, index: int, bad: Any, field: str, says: str) -> None:
    operands: list[Any] = [X, dense.pack(W), BIAS, zeros(6, N)]
    operands[index] = bad
    error = refused(dense, *operands)
    assert error.field == field
    assert says in str(error)
    operands[index] = [X, dense.pack(W), BIAS, zeros(6, N)][index]
    dense(*operands)
    assert_right(X, operands[3])


def test_an_output_that_is_read_only_is_refused_and_stays_as_it_is(dense: Library) -> None:
    out = np.full((6, N), 7, np.float32)
    out.flags.writeable = False
    error = refused(dense, X, dense.pack(W), BIAS, out)
    assert (error.field, error.problem) == ("out", "is read-only")
    assert (out == 7).all()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
def test_the_number_of_operands_is_checked(dense: Library, count: int) -> None:
    operands = [X, dense.pack(W), BIAS, zeros(6, N), zeros(6, N)][:count]
    assert refused(dense, *operands).field in ("operands", "w")


def test_a_weight_packed_for_another_library_is_refused(dense: Library) -> None:
    foreign = PackedWeight("0" * 64, "w", W.shape, dense.pack(W).tensor)
    error = refused(dense, X, foreign, BIAS, zeros(6, N))
    assert "was packed for library 000000000000" in error.problem
    assert dense.digest[:12] in error.problem


@pytest.mark.parametrize("size", [1, 5, 16, 33])
def test_a_weight_of_dynamic_dims_is_packed_for_each_size(dynamic: Library, size: int) -> None:
    x, weight, out = random(3, 2 * size), random(size, 2 * size), zeros(3, size)
    packed = dynamic.pack(weight)
    assert packed.shape == weight.shape
    dynamic(x, packed, out)
    np.testing.assert_allclose(out, x @ weight.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rows", "columns", "dim"), [(17, 32, 0), (16, 30, 1)])
def test_a_packed_weight_of_another_size_is_refused(dynamic: Library, rows: int, columns: int, dim: int) -> None:
    """Even where it fills as many panels."""
    packed = dynamic.pack(random(rows, columns))
    error = refused(dynamic, random(3, 32), packed, zeros(3, 16))
    assert error.field == "w"
    assert f"shape[{dim}] is {(rows, columns)[dim]}" in error.problem


@pytest.mark.parametrize("bad", [W.T, W.astype(np.float64), W[:-1], W[0], W.astype(">f4")])
def test_a_weight_that_does_not_fit_is_not_packed(dense: Library, bad: Any) -> None:
    with pytest.raises(InvalidInput, match=rf"float32 of shape \[{N}, {K}\]") as caught:
        dense.pack(bad)
    assert caught.value.field == "w"


def test_there_is_nothing_to_pack_for_a_matmul(matmul: Library) -> None:
    with pytest.raises(InvalidInput, match="has no constants"):
        matmul.pack(W)
    with pytest.raises(InvalidInput, match="'x' is not a constant"):
        matmul.pack("x", W)


def test_dims_that_disagree_are_refused(matmul: Library) -> None:
    assert refused(matmul, random(4, 4), random(5, N), zeros(4, N)).field in ("operands", "y")
    assert refused(matmul, random(4, 5), random(5, N), zeros(4, N)).field in ("operands", "x", "y")


def test_operands_that_disagree_are_told_from_each_other(matmul: Library) -> None:
    error = refused(matmul, random(4, 4), random(5, N), zeros(4, N))
    assert error.problem == "y.shape[0] is 5, x.shape[0] is 4"
    assert error.remedy == f"x [m, m], y [m, {N}], out [m, {N}]"


# -- what would run ---------------------------------------------------------------------------------------------------
def test_it_says_which_kernel_would_run(dense: Library) -> None:
    safe, small = dense.kernels
    assert [dense.kernel_for(T=t) for t in (0, 1, 5, 6, 64, 65)] == [safe, small, small, safe, safe, safe]
    wrong: list[dict[str, Any]] = [{}, {"S": 1}, {"T": 1, "S": 1}, {"T": -1}, {"T": 1.0}, {"T": True}]
    for shape in wrong:
        with pytest.raises(InvalidInput, match="give a size of 0 or more for: T"):
            dense.kernel_for(**shape)
    assert repr(dense).startswith("<Library dense(m=2*T")


# -- files ------------------------------------------------------------------------------------------------------------
def _flip(name: str) -> Change:
    def flip(directory: Path) -> None:
        content = bytearray((directory / name).read_bytes())
        content[len(content) // 2] ^= 1
        (directory / name).write_bytes(bytes(content))

    return flip


def _manifest(**change: Any) -> Change:
    def write(directory: Path) -> None:
        file = directory / files_of.MANIFEST
        manifest = json.loads(file.read_text()) | change
        file.write_text(json.dumps(manifest | {files_of.SEAL: files_of.seal_of(manifest)}))

    return write


def _without(field: str) -> Change:
    def write(directory: Path) -> None:
        manifest = json.loads((directory / files_of.MANIFEST).read_text())
        del manifest[field]
        manifest[files_of.SEAL] = files_of.seal_of(manifest)
        (directory / files_of.MANIFEST).write_text(json.dumps(manifest))

    return write


def _in_place_of(name: str, make: Change) -> Change:
    def put(directory: Path) -> None:
        (directory / name).unlink()
        make(directory / name)

    return put


def _rebuilt(name: str, content: bytes) -> Change:
    """A file of other content, of which the manifest knows."""

    def write(directory: Path) -> None:
        (directory / name).write_bytes(content)
        digests = json.loads((directory / files_of.MANIFEST).read_text())["files"]
        parts = {part: (directory / part).read_bytes() for part in (files_of.LIBRARY, files_of.DISPATCH)}
        digests |= {name: hashlib.sha256(content).hexdigest()}
        _manifest(files=digests, digest=files_of.digest_of(parts))(directory)

    return write


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_flip(files_of.LIBRARY), "library.so is not what was built"),
        (_flip(files_of.DISPATCH), "dispatch.json is not what was built"),
        (_flip(files_of.IR), "is not what was built"),
        (_flip(files_of.KERNELS), "is not what was built"),
        (lambda directory: (directory / files_of.LIBRARY).unlink(), "library.so is not what was built"),
        (lambda directory: (directory / files_of.DISPATCH).unlink(), "dispatch.json is not what was built"),
        (lambda directory: (directory / files_of.MANIFEST).unlink(), "manifest.json is missing"),
        (lambda directory: (directory / files_of.MANIFEST).write_text("{"), "manifest.json is not JSON"),
        (lambda directory: (directory / files_of.MANIFEST).write_text("[]"), "has format None"),
        (_manifest(format=2), "has format 2"),
        (_manifest(digest="0" * 64), "is not what was built"),
        (_manifest(files={}), "does not name library.so and dispatch.json"),
        (_manifest(files=None), "does not name library.so and dispatch.json"),
    ],
)
def test_a_library_that_is_not_whole_is_refused(copy: Path, change: Change, says: str) -> None:
    load(copy)
    change(copy)
    with pytest.raises(ShapewrightError, match=says):
        load(copy)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_manifest(threads=100_000), r"manifest.json: threads: 100000 is not an integer from 1 to 1024 \(pull"),
        (_manifest(threads=1024), r"manifest.json: threads: is 1024, the library is for 1 \(pull"),
        (_manifest(target=None), r"manifest.json: target: None is not a target"),
        (_manifest(ranges={"m": [None, 1]}), r"manifest.json: ranges: "),
        (_without("target"), r"manifest.json: target: is missing \(pull"),
        (lambda copy: (copy / files_of.MANIFEST).write_text("[" * 200_000), "manifest.json is not JSON .*: pull"),
        (_in_place_of(files_of.MANIFEST, os.mkfifo), "manifest.json is not a regular file: pull"),
        (_in_place_of(files_of.LIBRARY, os.mkfifo), "library.so is not a regular file: pull"),
        (_in_place_of(files_of.DISPATCH, os.mkdir), "dispatch.json is not a regular file: pull"),
        (_in_place_of(files_of.IR, lambda file: file.symlink_to("/dev/zero")), "ir.json.gz is not a regular file"),
        (_rebuilt(files_of.LIBRARY, b"no machine code"), "library.so cannot be loaded .*: pull"),
        (_rebuilt(files_of.DISPATCH, b"{}"), "dispatch.json cannot be read .*: pull"),
    ],
)
def test_a_library_that_says_or_is_something_odd_is_refused_by_its_file(copy: Path, change: Change, says: str) -> None:
    before = threading.active_count()
    change(copy)
    with pytest.raises(ShapewrightError, match=f"^{re.escape(str(copy))}/{says}"):
        load(copy)
    assert threading.active_count() == before


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ShapewrightError, match="is not a directory: pull a library there first"):
        load(tmp_path / "nowhere")
    with pytest.raises(ShapewrightError, match=r"manifest\.json is missing"):
        load(tmp_path)


def test_a_library_for_another_cpu_is_refused_before_it_is_loaded(copy: Path) -> None:
    target = native()
    beyond = replace(target, hardware=replace(target.hardware, features=(*target.hardware.features, "avx10_9")))
    _manifest(target=beyond.to_json())(copy)
    _rebuilt(files_of.LIBRARY, b"would crash")(copy)
    with pytest.raises(ShapewrightError, match="this CPU lacks avx10_9"):
        load(copy)


def test_the_library_outlives_its_directory(copy: Path) -> None:
    library = load(copy)
    for file in copy.iterdir():
        file.unlink()
    out = zeros(6, N)
    library(X, library.pack(W), BIAS, out)
    assert_right(X, out)


def test_a_library_that_was_replaced_on_disk_is_the_new_one(tmp_path: Path) -> None:
    plain = SearchTask("dense", {"m": 2 * T, "n": N, "k": K}, (T,), target=native())
    built(DENSE, tmp_path)
    first = load(tmp_path)
    built(plain, tmp_path)
    second = load(tmp_path)
    out = zeros(6, N)
    second(X, second.pack(W), out)
    assert (out < 0).any(), "no relu in the new one"
    first(X, first.pack(W), BIAS, out)
    assert_right(X, out)
