"""Both products of attention by instructions on several bfloat16: this CPU's, and others in their place anywhere."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.compiled import assembly, built_problems, innermost_loops, loaded, problems
from tests.shares import chosen
from tests.tuner.schedule.product.emulated_amx import emulated
from tests.tuner.schedule.rules.attention.programs import (
    GUARDED,
    NARROW,
    RULE,
    attention,
    chain,
    kernel_of,
    ragged,
    task_of,
)
from tuner.errors import IllegalKernel
from tuner.library.codegen import compile_candidate
from tuner.measure.verification.inputs import random_inputs
from tuner.program.job.build import workload_from_json
from tuner.program.language.rounding import rounded_weights
from tuner.program.target import Target, native
from tuner.schedule import extents_of
from tuner.schedule.product import atoms
from tuner.schedule.tir import TirExpr, tirx
from tuner.schedule.vector.dtypes import constant, lanes_of, vector_type

BF16: dict[str, Any] = {"dtype": "bfloat16"}
PAIRS = 2
HAS_PAIRS = "avx512_bf16" in native().hardware.features
DEPTH = 32
"""Of a multiplication in the tiles of AMX."""
AMX = Target.from_json({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 2})
ZEN4 = Target.from_json({"kind": "llvm", "mcpu": "znver4", "num-cores": 2})


def _add_pairs(total: TirExpr, left: TirExpr, right: TirExpr) -> TirExpr:
    """What the instruction does, of vectors of any length."""
    lanes = lanes_of(total)
    words = [tirx.reinterpret(vector_type("uint32", lanes), each) for each in (left, right)]

    def halves(high: bool) -> list[TirExpr]:
        sixteen, upper = constant(16, "uint32", lanes), constant(0xFFFF0000, "uint32", lanes)
        bits = [tirx.bitwise_and(word, upper) if high else tirx.shift_left(word, sixteen) for word in words]
        return [tirx.reinterpret(vector_type("float32", lanes), each) for each in bits]

    (low, other_low), (high, other_high) = halves(high=False), halves(high=True)
    return total + low * other_low + high * other_high


EMULATED = replace(atoms.DPBF16, needs={}, add=_add_pairs, code="")


@pytest.fixture
def pairs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "emulated":
        others = [atom for atom in atoms.ATOMS if atom.unit is None and atom.depth == 1]
        monkeypatch.setattr(atoms, "ATOMS", [*others, EMULATED])
    elif not HAS_PAIRS:
        pytest.skip("this CPU does not multiply pairs of bfloat16")


SHARED_HEADS: dict[str, Any] = {
    "program": (
        "a[b, h, i, j] = sum(d) q[b, i, h, d] * k[b, h // 3, d, j]\n"
        "top[b, h, i] = max(j) a[b, h, i, j]\n"
        "p[b, h, i, j] = exp(a[b, h, i, j] - top[b, h, i])\n"
        "z[b, h, x] = sum(y) p[b, h, x, y]\n"
        "w[b, h, i, j] = p[b, h, i, j] / z[b, h, i]\n"
        "out[b, i, h, e] = sum(j) v[b, j, h // 3, e] * w[b, h, i, j]"
    ),
    "extents": {"b": 2, "h": 6, "i": "T", "j": "S", "d": 9, "e": 21, "x": "T", "y": "S"},
    "shapes": {"k": ["b", 2, "d", "j"], "v": ["b", "j", 2, "e"]},
    **BF16,
}
"""k lies along its columns."""
PROGRAMS: Mapping[str, Mapping[str, Any]] = {
    "d5": attention(d=5) | BF16,
    "d40-causal": attention(d=40, causal=True, kv_heads=2, h=4) | BF16,
    "window": attention(d=17, window=9, causal=True, softcap=3.0) | BF16,
    "masked": chain("a[b, i, j] * 0.5 + mask[i, j]", GUARDED, **BF16),
    "ragged": ragged(d=19, kv_heads=1) | BF16,
    "ragged-window": ragged(causal=True, window=9, softcap=2.0) | BF16,
    "shared-heads": SHARED_HEADS,
    "sizes": chain("a[b, i, j] * 0.25 + bias[j]", extents={"b": 1, "d": "D", "e": "E"}, **BF16),
    "to-float32": chain(dtype={"q": "bfloat16", "k": "bfloat16", "v": "bfloat16"}, extents={"d": 7, "e": 33}),
}
IN_UNITS = {**PROGRAMS, "float16": attention(d=40, causal=True, kv_heads=2, h=4) | {"dtype": "float16"}}
KERNELS: Mapping[str, Mapping[str, int]] = {
    "safe": {},
    "online": {"mr": 3, "nv": 1, "ev": 1, "rows": 1, "cols": 1},
    "padded": {"mr": 5, "nv": 2, "ev": 1, "rows": 2, "cols": 1, "tail": 0, "ku": 2},
    "whole": {"cols": 0, "mr": 4, "nv": 3, "ev": 1, "rows": 2, "ku": 4},
}
TARGETS = {"real": native(), "emulated": NARROW}
QUICK_PAIRS = "real" if HAS_PAIRS else "emulated"
"""The two differ in an instruction: `test_what_is_hidden_takes_no_part` has both in `make test`."""
QUICK = [("ragged", "whole"), ("shared-heads", "online")]


@pytest.mark.parametrize("pairs", chosen([QUICK_PAIRS], TARGETS), indirect=True)
@pytest.mark.parametrize("case", chosen(QUICK, itertools.product(PROGRAMS, KERNELS)), ids="-".join)
@pytest.mark.usefixtures("pairs")
def test_kernels_are_right(case: tuple[str, str], request: pytest.FixtureRequest) -> None:
    program, kernel = case
    target = TARGETS[request.node.callspec.params["pairs"]]
    task = task_of(dict(PROGRAMS[program]), target, threads=1 + (kernel == "online"))
    chosen = kernel_of(task, group=PAIRS, **KERNELS[kernel])
    assert chosen.get("group") == PAIRS
    sizes = [dict.fromkeys(task.workload.symbols, size) for size in (0, 1, 2, 7, 33, 64)]
    sizes += [dict(zip(task.workload.symbols, each, strict=False)) for each in ((3, 70, 5, 21), (71, 2, 3, 40))]
    assert built_problems(task, chosen, sizes) == []


UNITS: Mapping[str, Mapping[str, int]] = {
    "online": {"mr": 16, "nv": 1, "ev": 1, "rows": 1, "cols": 1},
    "two": {"mr": 32, "nv": 2, "ev": 1, "rows": 1, "cols": 2},
    "whole": {"mr": 16, "nv": 3, "ev": 1, "rows": 2, "cols": 0},
}


QUICK_UNITS = [("masked", "online"), ("shared-heads", "two")]
OF_UNITS = [*itertools.product([name for name in IN_UNITS if name != "to-float32"], UNITS)]


@pytest.mark.parametrize("case", chosen(QUICK_UNITS, OF_UNITS), ids="-".join)
def test_kernels_in_the_tiles_of_a_unit_are_right(case: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    program, kernel = case
    vectors = [atom for atom in atoms.ATOMS if atom.unit is None]
    monkeypatch.setattr(atoms, "ATOMS", [*vectors, *emulated(native().hardware.lanes())])
    task = task_of(dict(IN_UNITS[program]), threads=1 + (kernel == "online"))
    depth = RULE.space(task).axes[-1].choices[-1]
    chosen = kernel_of(task, group=depth, **UNITS[kernel])
    assert chosen["group"] == depth > PAIRS
    sizes = [dict.fromkeys(task.workload.symbols, size) for size in (0, 1, 2, 17, 33, 64)]
    sizes += [dict(zip(task.workload.symbols, each, strict=False)) for each in ((3, 70, 5, 21), (71, 2, 3, 40))]
    assert built_problems(task, chosen, sizes) == []


def test_tiles_of_a_unit_are_whole_and_are_counted() -> None:
    task = task_of(attention(d=64) | BF16, AMX)
    space, values = RULE.space(task), dict(RULE.default_kernel(task).values) | {"tail": 0, "group": DEPTH}
    for wrong, said in (
        ({"mr": 8}, "no multiple of the 16 rows"),
        ({"mr": 32, "nv": 3}, "more than 8 tiles"),
        ({"mr": 16, "group": 1}, "for the tiles of a matrix unit"),
        ({"mr": 48, "nv": 1, "ev": 1, "group": PAIRS}, "for the tiles of a matrix unit"),
    ):
        with pytest.raises(IllegalKernel, match=said):
            space.kernel(values | wrong)
    unit = space.legal(values | {"mr": 16, "nv": 2, "ev": 2, "tail": 1, "ku": 4})
    assert unit is not None
    assert (unit["tail"], unit["ku"]) == (0, 1)


def test_what_is_multiplied_in_a_unit_stays_there() -> None:
    task = task_of(attention(d=64) | BF16, AMX)
    loops = innermost_loops(assembly(task, kernel_of(task, group=DEPTH, mr=16, nv=2, ev=2)))
    tiles = [loop for loop in loops if any("tdpbf16ps" in line for line in loop)]
    lines = [line for loop in tiles for line in loop]
    assert not any(line.startswith("call") or ("tile" in line and "(%rsp" in line) for line in lines)
    # Scores of a d of 64 are two multiplications, without a loop; the output is a sum over all columns.
    assert any(not any(line.startswith("tilestored") for line in loop) for loop in tiles)


def test_theory_multiplies_tiles() -> None:
    task = task_of(attention(d=64) | BF16, AMX)
    extents = extents_of(task.workload, [{"T": 512, "S": 512}])
    wide = {"nv": 2, "ev": 2, "tail": 0}
    kernels = [kernel_of(task, group=group, mr=mr, **wide) for group, mr in ((1, 8), (PAIRS, 8), (DEPTH, 32))]
    single, pair, unit = RULE.estimate_s(task, kernels, extents)[:, 0]
    assert unit < 0.8 * pair < 0.8 * single


@pytest.mark.parametrize("pairs", ["real", "emulated"], indirect=True)
@pytest.mark.usefixtures("pairs")
def test_what_is_hidden_takes_no_part(request: pytest.FixtureRequest) -> None:
    """Whatever stands behind the diagonal, but for rows of a tile that it goes through."""
    task = task_of(dict(PROGRAMS["d40-causal"]), TARGETS[request.node.callspec.params["pairs"]])
    kernel = kernel_of(task, group=PAIRS, **KERNELS["online"])
    call = loaded(compile_candidate(task, kernel).binary)
    shapes = [dict(zip(task.workload.symbols, each, strict=True)) for each in ((0, 2), (7, 33), (64, 64), (71, 2))]
    assert problems(task, kernel, call, shapes) == []
    dims = task.workload.dims({"T": 65, "S": 65})
    q, k, v = (array.copy() for array in random_inputs(task.workload, dims))
    clean, spoilt = (np.zeros((2, 4, 65, 40), q.dtype) for _ in range(2))
    call([q, k, v, clean])
    v[:, :, 49:] = np.nan
    k[:, :, 49:] = np.nan
    call([q, k, v, spoilt])
    # The last row that sees column 48 alone shares a word with the next one.
    assert np.array_equal(spoilt[:, :, :45], clean[:, :, :45])
    assert np.isnan(spoilt[:, :, 49:].astype(np.float32)).all()


def test_the_code_has_the_instructions_and_spills_no_total() -> None:
    task = task_of(attention(d=64) | BF16, ZEN4)
    loops = innermost_loops(assembly(task, kernel_of(task, group=PAIRS, mr=6, nv=4, ev=4, tail=0)))
    products = [loop for loop in loops if any("vdpbf16ps" in line for line in loop)]
    assert len(products) >= 2
    for line in (line for loop in products for line in loop):
        assert not line.startswith("call")
        assert not ("vmovaps" in line and "(%rsp)" in line)


# -- which programs and kernels have it -------------------------------------------------------------------------------
def test_only_products_of_bfloat16_have_the_axis() -> None:
    def groups(data: Mapping[str, Any], target: Target) -> list[tuple[int, ...]]:
        return [axis.choices for axis in RULE.space(task_of(dict(data), target)).axes if axis.name == "group"]

    assert groups(attention() | BF16, ZEN4) == [(1, 2)]
    assert groups(attention() | BF16, AMX) == [(1, 2, DEPTH)]
    assert groups(PROGRAMS["to-float32"], AMX) == [(1, 2)]
    assert groups(attention() | BF16, NARROW) == []
    assert groups(attention(), ZEN4) == []
    assert groups(attention() | {"dtype": "float16"}, ZEN4) == []
    assert groups(attention() | {"dtype": "float16"}, AMX) == []
    granite_rapids = Target.from_json({"kind": "llvm", "mcpu": "graniterapids", "num-cores": 2})
    assert groups(attention() | {"dtype": "float16"}, granite_rapids) == [(1, DEPTH)]
    text = str(chain()["program"]).replace("q[b, i, d]", "q[b, d, i]")
    assert groups({**chain(**BF16), "program": text, "shapes": {"q": ["b", "d", "i"]}}, ZEN4) == []


def test_kernels_of_single_elements_are_those_that_were_stored() -> None:
    task = task_of(attention() | BF16, ZEN4)
    assert "group" not in dict(kernel_of(task, group=1).values)
    in_place = {"pack": 0, "nv": 1, "mr": 2}
    assert kernel_of(task, group=PAIRS, **in_place) == kernel_of(task, group=1, **in_place)


@pytest.mark.parametrize(
    ("data", "rounded"),
    [
        (attention() | BF16, True),
        (attention() | {"dtype": "float16"}, True),
        (ragged() | BF16, True),
        (SHARED_HEADS, True),
        (chain(behind=GUARDED, **BF16), True),
        (attention(), False),
        (PROGRAMS["to-float32"], False),
        ({"op": "softmax", "args": {"m": "T", "n": 8}, **BF16}, False),
        ({"op": "dense", "args": {"m": "T", "n": 8, "k": 8}, **BF16}, False),
    ],
)
def test_exponentials_may_be_rounded_where_values_and_results_are_short(data: Mapping[str, Any], rounded: bool) -> None:
    workload = workload_from_json(dict(data))
    dtypes = {name: tensor.dtype for name, tensor in workload.tensors.items()}
    assert bool(rounded_weights(workload.program, dtypes)) == rounded


def test_a_kernel_that_leaves_a_column_out_is_wrong() -> None:
    """What rounding may change is less than what is missing then."""
    task = task_of(attention(d=16, b=1) | BF16)
    kernel = kernel_of(task, **KERNELS["online"])
    call = loaded(compile_candidate(task, kernel).binary)

    def without_the_last(operands: Sequence[Any]) -> object:
        q, k, v, out = operands
        return call([q, k[:, :, :-1].copy(), v[:, :, :-1].copy(), out])

    dims = task.workload.dims({"T": 96, "S": 96})
    assert problems(task, kernel, call, [dims]) == []
    assert problems(task, kernel, without_the_last, [dims]) != []


def test_theory_multiplies_pairs() -> None:
    task = task_of(attention(d=64) | BF16, ZEN4)
    values = dict(RULE.default_kernel(task).values)
    kernels = [RULE.space(task).kernel(values | {"group": group}) for group in (1, PAIRS)]
    extents = extents_of(task.workload, [{"T": 512, "S": 512}])
    single, pair = RULE.estimate_s(task, kernels, extents)[:, 0]
    assert 0.4 < pair / single < 0.8
    features = RULE.features(task, kernels, extents)
    assert features.shape == RULE.features(task, kernels[:1], extents).repeat(2, axis=0).shape
    assert not np.array_equal(features[0], features[1])
