"""Rows of bfloat16, or of bytes, and small integers are multiplied in words of both: by this CPU's instructions, and in
tiles."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.compiled import assembly, built_problems, innermost_loops, shortest
from tests.shares import chosen, diagonal, spread
from tests.tuner.schedule.product.emulated_amx import emulated
from tuner.errors import IllegalKernel
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import Target, native
from tuner.schedule import extents_of
from tuner.schedule.product import atoms
from tuner.schedule.rules.quantized import Quantized
from tuner.schedule.space import MicroKernel

RULE = Quantized()
PAIRS, DEPTH = 2, 32
HAS_PAIRS = "avx512_bf16" in native().hardware.features
NO_PAIRS = "this CPU does not multiply pairs of bfloat16"
AMX = Target.from_json({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 1})
ZEN4 = Target.from_json({"kind": "llvm", "mcpu": "znver4", "num-cores": 1})
CODE = "cast((w[n, k // 2] >> (4 * (k % 2))) & 15, float32)"
CODES: dict[str, Any] = {"x": "bfloat16", "w": "uint8"}


def program(weight: str, k: int, constant: tuple[str, ...] = ("w",), **dtype: str) -> dict[str, Any]:
    text = f"out[m, n] = sum(k) x[m, k] * ({weight})"
    return {"program": text, "extents": {"m": "T", "n": 45, "k": k}, "constant": constant, "dtype": CODES | dtype}


def int4(k: int, group: int, n: int = 45) -> dict[str, Any]:
    args = {"m": "T", "n": n, "k": k, "group": group}
    return {"op": "dense_int4", "args": args, "dtype": {"x": "bfloat16", "out": "bfloat16"}}


WORKLOADS: Mapping[str, dict[str, Any]] = {
    "groups": int4(320, 128),
    "groups of one multiplication": int4(96, 32),
    "a scale for each column": program(f"({CODE} - 8) * s[n]", 70),
    "bytes": program("w[n, k] * s[n]", 70, w="int8", out="bfloat16"),
    "zeros": program(f"({CODE} - z[n, k // 64]) * s[n, k // 64]", 192, ("w", "z", "s"), z="uint8", s="bfloat16"),
    "no factor": program("w[n, k] - 128.0", 70),
}
ROWS = "out[m, n] = cast(z[m, n], float32) * a[m] * s[n]"


def of_bytes(left: str, weight: str, k: int, constant: tuple[str, ...] = ("w",), **dtype: str) -> dict[str, Any]:
    """With a scale for each row behind."""
    text = f"z[m, n] = sum(k) x[m, k] * ({weight})\n{ROWS}"
    types = {"x": left, "w": "uint8", "s": "float32"} | dtype
    return {"program": text, "extents": {"m": "T", "n": 45, "k": k}, "constant": constant, "dtype": types}


INTEGER = "cast((w[n, k // 2] >> (4 * (k % 2))) & 15, int32)"
OF_BYTES: Mapping[str, dict[str, Any]] = {
    "int8 by groups": of_bytes("int8", f"({CODE} - 8) * g[n, k // 64]", 320, ("w", "g")),
    "uint8 by groups": of_bytes("uint8", f"({CODE} - 8) * g[n, k // 128]", 384, ("w", "g"), g="bfloat16"),
    "int8 by columns": of_bytes("int8", f"({CODE} - 8) * g[n]", 76),
    "uint8 by codes": of_bytes("uint8", f"{CODE} * g[n]", 76),
    "int8 by zeros": of_bytes(
        "int8", f"({CODE} - (zero[n, k // 64] & 15)) * g[n, k // 64]", 192, ("w", "zero", "g"), zero="uint8"
    ),
    "int8 by bytes": of_bytes("int8", "w[n, k] * g[n, k // 64]", 192, ("w", "g"), w="int8"),
    "integers": of_bytes("int8", f"{INTEGER} - 8", 76),
    "integers without sign": of_bytes("uint8", INTEGER, 140),
}


def task_of(data: Mapping[str, Any], target: Target | None = None, threads: int = 1) -> SearchTask:
    variables = (ShapeVar("T", range(130)),)
    return SearchTask(
        workload_from_json(dict(data)), shape_vars=variables, target=target or native(), threads=threads
    )  # fmt: skip


def kernel_of(task: SearchTask, group: int, **values: int) -> MicroKernel:
    """The shortest of some that multiply so many steps at once."""
    space, random = RULE.space(task), np.random.default_rng(0)
    drawn = (space.legal({**space.values_of(space.sample(random)), **values, "group": group}) for _ in range(300))
    return shortest(kernel for kernel in drawn if kernel is not None and kernel.get("group") == group)


def groups(data: Mapping[str, Any], target: Target) -> tuple[int, ...]:
    axes = RULE.space(task_of(data, target)).axes
    return next((axis.choices for axis in axes if axis.name == "group"), ())


@pytest.fixture
def words(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The depth of an instruction on words."""
    if request.param == "pairs":
        if not HAS_PAIRS:
            pytest.skip(NO_PAIRS)
        return PAIRS
    vectors = [atom for atom in atoms.ATOMS if atom.unit is None]
    monkeypatch.setattr(atoms, "ATOMS", [*vectors, *emulated(native().hardware.lanes())])
    return 2 * native().hardware.lanes()


@pytest.mark.parametrize(
    ("words", "name", "threads"), diagonal(["pairs", "tiles"], WORKLOADS, [1, 2], every=7), indirect=["words"]
)
def test_kernels_are_right(words: int, name: str, threads: int) -> None:
    task = task_of(WORKLOADS[name], threads=threads)
    kernel = kernel_of(task, words)
    assert kernel["late"] == (name != "no factor")
    sizes = [dict.fromkeys(task.workload.symbols, size) for size in (0, 1, 5, 16, 17, 33, 100)]
    assert built_problems(task, kernel, sizes) == []


GPTQ = "cast((w[k // 8, n] >> (4 * (k % 8))) & 15, float32) - 8"
AWQ = "cast((w[k, n // 8] >> (n % 2 * 16 + n % 8 // 2 * 4)) & 15, float32) - 8"
GGUF = "cast((w[n, k // 32, k % 16] >> (4 * (k % 32 // 16))) & 15, float32) - 8"
LOOKED_UP: Mapping[str, dict[str, Any]] = {
    "two in a byte": int4(320, 64),
    "the upper one first": program("(cast((w[n, k // 2] >> (4 - 4 * (k % 2))) & 15, float32) - 8) * s[n]", 72),
    "two's complement": program(f"(where({CODE} > 7, {CODE} - 16, {CODE})) * s[n, k // 32]", 96, ("w", "s")),
    "GPTQ": program(f"({GPTQ}) * s[k // 32, n]", 96, ("w", "s"), w="int32"),
    "AWQ": program(f"({AWQ}) * s[k // 32, n]", 96, ("w", "s"), w="int32"),
    "GGUF": program(f"({GGUF}) * s[n, k // 32]", 96, ("w", "s")),
    "no factor": program(f"{CODE} + 100", 40),
}


@pytest.mark.parametrize(("name", "threads"), diagonal(LOOKED_UP, [1, 2], every=2))
@pytest.mark.skipif(not HAS_PAIRS, reason=NO_PAIRS)
def test_words_of_four_bits_are_looked_up_by_every_tile_or_once_for_a_block(name: str, threads: int) -> None:
    task = task_of(LOOKED_UP[name], threads=threads)
    sizes = [dict.fromkeys(task.workload.symbols, size) for size in (0, 1, 5, 17, 33)]
    for pack in (0, 1):
        kernel = kernel_of(task, PAIRS, pack=pack)
        assert kernel["pack"] == pack
        assert built_problems(task, kernel, sizes) == [], kernel


def test_a_word_of_four_bits_takes_three_instructions() -> None:
    """A shift, a lookup and a multiplication, of a tile of one row."""
    task = task_of(int4(4096, 1024, 64), ZEN4)
    text = assembly(task, kernel_of(task, PAIRS, pack=0, mr=1, nv=4, ku=4, rows=0))
    loop = max((each for each in innermost_loops(text) if any("vdpbf16ps" in line for line in each)), key=len)
    counts = {name: sum(line.startswith(name) for line in loop) for name in ("vdpbf16ps", "vpermw", "vpsrlw", "vmov")}
    assert counts["vdpbf16ps"] == counts["vpermw"] > 0
    # One word in four lies lowest.
    assert 4 * counts["vpsrlw"] == 3 * counts["vpermw"]
    assert len(loop) < 4 * counts["vpermw"]


@pytest.mark.parametrize(
    ("data", "pack"),
    [
        (int4(96, 32), 0),
        (program(f"({CODE} - 8) * s[n]", 72), 0),
        (WORKLOADS["a scale for each column"], 1),  # Its last word of 32 bits is not whole.
        (WORKLOADS["zeros"], 1),
        (WORKLOADS["bytes"], 1),
    ],
)
def test_other_words_are_unpacked_first(data: Mapping[str, Any], pack: int) -> None:
    assert kernel_of(task_of(data, ZEN4), PAIRS, pack=0)["pack"] == pack
    assert kernel_of(task_of(data, AMX), DEPTH, pack=0)["pack"] == 1


QUICK = (
    ("words", "int8 by groups", 1),
    ("tiles", "uint8 by groups", 2),
    ("words", "int8 by columns", 2),
    ("words", "uint8 by codes", 1),
    ("tiles", "int8 by zeros", 2),
    ("tiles", "int8 by bytes", 1),
    ("words", "integers", 1),
    ("tiles", "integers without sign", 2),
)


@pytest.mark.parametrize(
    ("unit", "name", "threads"), spread(chosen(QUICK, itertools.product(["words", "tiles"], OF_BYTES, [1, 2])))
)
def test_rows_of_bytes_are_right(unit: str, name: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By each instruction of this CPU, or in tiles."""
    if unit == "tiles":
        vectors = [atom for atom in atoms.ATOMS if atom.unit is None]
        monkeypatch.setattr(atoms, "ATOMS", [*vectors, *emulated(native().hardware.lanes())])
    task = task_of(OF_BYTES[name], threads=threads)
    found = RULE.product(task.workload).atoms(native().hardware)
    depths = [depth for depth, atom in found.items() if depth > 1 and (atom.unit is not None) == (unit == "tiles")]
    assert depths or (unit == "words" and not HAS_PAIRS)
    for depth in depths:
        kernel = kernel_of(task, depth)
        sizes = [dict.fromkeys(task.workload.symbols, size) for size in (0, 1, 5, 16, 17, 33)]
        assert built_problems(task, kernel, sizes) == []


def test_products_of_bytes_have_the_instructions_for_them() -> None:
    for name, alone in (("int8 by groups", (1,)), ("uint8 by codes", (1,)), ("integers", ())):
        assert groups(OF_BYTES[name], AMX) == (*alone, 2, 4, 64)
    # The sums of a group could be larger than an int32 holds; what has no factor is no float.
    assert groups(of_bytes("uint8", "w[n, k] * g[n]", 2**17), AMX) == ()
    assert groups(of_bytes("int8", f"{CODE} - 8", 64), AMX) == ()


@pytest.mark.parametrize("words", chosen(["tiles"], ["pairs", "tiles"]), indirect=True)
def test_parts_of_k_are_cut_where_groups_end(words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(int4(1664, 128), threads=2)
    kernel = kernel_of(task, words, tb=1, tn=1, split_k=2)
    assert kernel.get("split_k") == 2
    assert built_problems(task, kernel, [dict.fromkeys(task.workload.symbols, size) for size in (1, 33)]) == []


def test_words_are_for_integers_that_bfloat16_has() -> None:
    assert groups(WORKLOADS["groups"], AMX) == (1, PAIRS, DEPTH)
    assert groups(WORKLOADS["groups"], ZEN4) == (1, PAIRS)
    # Half a multiplication is of another group; k is odd.
    assert groups(int4(96, 48), AMX) == (1, PAIRS)
    assert groups(program(f"({CODE} - 8) * s[n]", 71), AMX) == ()
    for weight, dtype in (
        (f"({CODE} - z[n, k // 64]) * s[n, k // 64]", {"z": "bfloat16"}),
        ("w[n, k] * s[n]", {"w": "bfloat16"}),
        (f"({CODE} - 300) * s[n]", {}),
        ("cast(w[n, k] - 200, int8) * s[n]", {}),
        (f"{CODE} * s[n]", {"x": "float32"}),
        (f"exp({CODE}) * s[n]", {}),
    ):
        constant = tuple(name for name in "wzs" if f"{name}[n, k" in weight)
        assert groups(program(weight, 128, constant, **dtype), AMX) == (), weight
    assert groups(program("(w[n, k] - 200) * s[n]", 128), AMX) == (1, PAIRS, DEPTH)


def test_words_are_unpacked_once_for_a_block_and_factors_multiplied_late() -> None:
    task = task_of(WORKLOADS["groups"], AMX)
    space, values = RULE.space(task), dict(kernel_of(task, DEPTH).values)
    assert (values["pack"], values["late"], values["kc"], values["rows"]) == (1, 1, 0, 1)
    for wrong in ({"pack": 0}, {"late": 0}, {"kc": 128}, {"rows": 0}):
        with pytest.raises(IllegalKernel):
            space.kernel(values | wrong)


def test_what_is_multiplied_in_tiles_stays_there() -> None:
    """Sums of a group leave once for it, and of a scale for each column once for all."""
    # A loop of few turns is unrolled.
    for data in (int4(4096, 1024, 64), program(f"({CODE} - 8) * s[n]", 4096)):
        task = task_of(data, AMX)
        text = assembly(task, kernel_of(task, DEPTH, mr=32, nv=2))
        loops = [loop for loop in innermost_loops(text) if any("tdpbf16ps" in line for line in loop)]
        assert loops
        assert not any(line.startswith(("call", "tilestored")) for loop in loops for line in loop)


def test_theory_multiplies_words() -> None:
    task = task_of(int4(4096, 128, 4096), AMX)
    extents = extents_of(task.workload, [{"T": 512}])
    plain = {"mr": 8, "nv": 3, "tail": 0, "ku": 1}
    kernels = [
        kernel_of(task, 1, **plain, pack=1, mb=256, rows=0),
        kernel_of(task, PAIRS, **plain, rows=0),
        kernel_of(task, DEPTH, mr=32, nv=2, mb=16),
    ]
    single, pair, unit = RULE.estimate_s(task, kernels, extents)[:, 0]
    assert unit < 0.8 * pair
    assert pair < 0.8 * single


def test_bytes_and_four_bits_stay_in_tiles_inside_the_loop_over_k() -> None:
    # A loop of few turns is unrolled.
    grouped = of_bytes("int8", f"({CODE} - 8) * g[n, k // 8192]", 32768, ("w", "g"))
    for data in (grouped, of_bytes("int8", f"{INTEGER} - 8", 8192)):
        task = task_of(data, AMX)
        text = assembly(task, kernel_of(task, 64, mr=32, nv=2))
        loops = [loop for loop in innermost_loops(text) if any("tdpbss" in line or "tdpbsu" in line for line in loop)]
        assert loops
        assert not any(line.startswith(("call", "tilestored")) for loop in loops for line in loop)


def test_theory_multiplies_words_of_bytes() -> None:
    task = task_of(of_bytes("int8", f"({CODE} - 8) * g[n, k // 128]", 4096, ("w", "g")), AMX)
    extents = extents_of(task.workload, [{"T": 512}])
    kernels = [
        kernel_of(task, 1, mr=8, nv=2, tail=0, ku=1, pack=1),
        kernel_of(task, 4, mr=8, nv=2, tail=0, ku=1),
        kernel_of(task, 64, mr=32, nv=2, mb=16),
    ]
    single, word, unit = RULE.estimate_s(task, kernels, extents)[:, 0]
    assert unit < word < 0.8 * single
