"""Products in the tiles of AMX: emulated on any CPU, and in the real ones where there are such."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.compiled import assembly, built_problems, loops_over
from tests.shares import chosen, diagonal, every, shares, spread
from tests.tuner.schedule.product.emulated_amx import emulated
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.expr import reads
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import Target, native
from tuner.schedule import rules_of
from tuner.schedule.product import atoms
from tuner.schedule.product.axes import ROWS_PACKED
from tuner.schedule.space import MicroKernel

BYTES = [(left, right) for left in ("int8", "uint8") for right in ("int8", "uint8")]
BF16 = {"dtype": "bfloat16"}
WORKLOADS: dict[str, dict[str, Any]] = {
    "dense": {"op": "dense", "args": {"m": "T", "n": 37, "k": 70}, "epilogue": ["bias", "gelu"], **BF16},
    "float16": {"op": "dense", "args": {"m": "T", "n": 37, "k": 70}, "epilogue": ["bias"], "dtype": "float16"},
    "float16, dynamic": {"op": "dense", "args": {"m": "T", "n": "S", "k": "U"}, "dtype": "float16"},
    "split": {"op": "dense", "args": {"m": "T", "n": 37, "k": 661}, "dtype": {"x": "bfloat16", "w": "bfloat16"}},
    "split, rounded": {"op": "dense", "args": {"m": "T", "n": 37, "k": 661}, "epilogue": ["bias", "relu"], **BF16},
    "split, of so many rows": {"op": "dense", "args": {"m": 33, "n": 37, "k": 662}, **BF16},
    "packed ahead": {"op": "dense", "args": {"m": "T", "n": 64, "k": 4096}, **BF16},
    "dynamic": {"op": "dense", "args": {"m": "T", "n": "S", "k": "U"}, **BF16},
    "batched": {"op": "batch_matmul_nt", "args": {"b": 2, "m": "T", "n": "S", "k": 71}, **BF16},
    "batched, rows": {"op": "batch_matmul_nn", "args": {"b": 2, "m": "T", "n": "S", "k": 70}, **BF16},
    "experts": {"op": "moe_dense", "args": {"t": "T", "e": 3, "n": 33, "k": 71}, "epilogue": ["bias"], **BF16},
    "convolution": {
        "op": "conv2d", "args": {"b": "T", "c": 16, "h": 7, "w": 9, "o": 18, "r": 3, "s": 3, "pad": 1}, **BF16,
    },
    "channels last": {
        "op": "conv2d", "args": {"b": "T", "c": 8, "h": 5, "w": 6, "o": 21, "r": 3, "s": 2, "layout": "nhwc"}, **BF16,
    },
    **{
        f"{left} by {right}": {
            "op": "dense", "args": {"m": "T", "n": 37, "k": 77}, "dtype": {"x": left, "w": right, "out": "int32"},
        }
        for left, right in BYTES
    },
}  # fmt: skip
KERNELS = 3
HAS_TILES = "amx_tile" in native().hardware.features
HAS_FLOAT16 = "amx_fp16" in native().hardware.features


@pytest.fixture
def unit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "real":
        if not HAS_TILES:
            pytest.skip("this CPU has no AMX")
    else:
        vectors = [atom for atom in atoms.ATOMS if atom.unit is None]
        monkeypatch.setattr(atoms, "ATOMS", [*vectors, *emulated(native().hardware.lanes())])


def task_of(name: str, target: Target | None = None, threads: int = 1) -> SearchTask:
    workload = workload_from_json(WORKLOADS[name])
    variables = tuple(ShapeVar(symbol, range(130)) for symbol in sorted(workload.variables))
    return SearchTask(workload, shape_vars=variables, target=target or native(), threads=threads)


def kernels_of(task: SearchTask, count: int = KERNELS) -> list[MicroKernel]:
    """The first that multiply in tiles."""
    rule, random = rules_of(task)[0], np.random.default_rng(0)
    space = rule.space(task)
    (depth,) = (atom.depth for atom in space_atoms(task) if atom.unit is not None)
    found: dict[str, MicroKernel] = {}
    for _ in range(3000):
        if len(found) < count and (kernel := space.sample(random)).get("group") == depth:
            found[kernel.id] = kernel
    return list(found.values())


def space_atoms(task: SearchTask) -> list[Any]:
    types = task.workload.tensors
    first = task.workload.program.stages[0]
    left, right, *_ = (types[read.tensor].dtype for read in reads(first.body) if types[read.tensor].dtype != "int32")
    total = "int32" if "int" in left else "float32"
    return list(atoms.atoms_of(left, right, total, task.known_target.hardware).values())


@pytest.mark.parametrize(("unit", "name"), diagonal(["emulated", "real"], WORKLOADS, every=7), indirect=["unit"])
@pytest.mark.usefixtures("unit")
@shares(KERNELS)
def test_kernels_are_right(share: int, name: str, request: pytest.FixtureRequest) -> None:
    if "float16" in name and request.node.callspec.params["unit"] == "real" and not HAS_FLOAT16:
        pytest.skip("this CPU has no AMX for float16")
    task = task_of(name)
    kernel = kernels_of(task, share + 1)[share]
    most = 5 if "conv" in name or "channels" in name else 130
    sizes = [dict.fromkeys(task.workload.symbols, size) for size in (0, 1, 5, 16, 17, 33, 100) if size <= most]
    sizes += [dict(zip(task.workload.symbols, (min(19, most), 3, 45), strict=False))]
    assert built_problems(task, kernel, sizes) == []


LONG: dict[str, dict[str, Any]] = {
    "rounded": {"op": "dense", "args": {"m": "T", "n": 101, "k": 700}, "epilogue": ["bias", "gelu"], **BF16},
    "float32": {"op": "dense", "args": {"m": "T", "n": 101, "k": 700}, "dtype": {"x": "bfloat16", "w": "bfloat16"}},
    "bytes": {
        "op": "dense", "args": {"m": "T", "n": 101, "k": 1300}, "dtype": {"x": "int8", "w": "int8", "out": "int32"},
    },
}  # fmt: skip
BLOCKS: dict[str, dict[str, int]] = {
    "2x2": {"mr": 32, "nv": 2},
    "1x4": {"mr": 16, "nv": 4},
    "3x1": {"mr": 48, "nv": 1},
}
"""Of tiles, down and across."""
ORDERS: dict[str, dict[str, int]] = {
    "a tile at once": {"mb": 1, "tn": 2, "tail": 0},
    "some tiles at once": {"mb": 4, "tn": 1, "tail": 1},
}
QUICK = [("rounded", "2x2", "a tile at once"), ("bytes", "2x2", "some tiles at once")]


def blocked(task: SearchTask, **values: int) -> MicroKernel:
    space, random = rules_of(task)[0].space(task), np.random.default_rng(0)
    depth = next(atom.depth for atom in space_atoms(task) if atom.unit is not None)
    drawn = (space.legal({**space.values_of(space.sample(random)), "group": depth, **values}) for _ in range(3000))
    return next(kernel for kernel in drawn if kernel is not None and values.items() <= dict(kernel.values).items())


@pytest.mark.usefixtures("unit")
@pytest.mark.parametrize("unit", ["emulated", "real"], indirect=True)
@pytest.mark.parametrize(("name", "block", "order"), spread(chosen(QUICK, itertools.product(LONG, BLOCKS, ORDERS))))
def test_blocks_of_tiles_are_right_with_k_in_chunks_and_ragged_rows(name: str, block: str, order: str) -> None:
    workload = workload_from_json(LONG[name])
    variables = (ShapeVar("T", range(1, 200)),)
    task = SearchTask(workload, shape_vars=variables, target=native(), threads=2)
    values = {axis: value for axis, value in ORDERS[order].items() if (axis, value) != ("tail", 1) or block != "1x4"}
    kernel = blocked(task, kc=128, **BLOCKS[block], **values)
    sizes = [dict.fromkeys(task.workload.symbols, size) for size in (1, 16, 33, 64, 101, 150)]
    assert built_problems(task, kernel, sizes) == []


@pytest.mark.parametrize("name", every(2, ["batched", "batched, rows"]))
def test_packed_rows_and_panels_start_on_cache_lines(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of a tile that lies on two lines takes two reads. Both operands are packed at the call here: weights that
    were packed before may begin anywhere in these checks."""
    vectors = [atom for atom in atoms.ATOMS if atom.unit is None]
    line, found = 4 * native().hardware.lanes(), []
    for to in (line, 2 * line):
        monkeypatch.setattr(atoms, "ATOMS", [*vectors, *emulated(native().hardware.lanes(), to)])
        task = task_of(name)
        sizes = [dict.fromkeys(task.workload.symbols, size) for size in (1, 16, 33)]
        found.append(built_problems(task, blocked(task, rows=ROWS_PACKED, mr=16, nv=1), sizes))
    assert not found[0]
    assert found[1], "what begins elsewhere is loaded wrong"


def test_the_next_panel_is_asked_for_in_the_loop_over_k() -> None:
    target = Target.from_json({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 1})
    for ahead, rows in ((0, 0), (16, 1), (4, 4)):
        task = task_of("packed ahead", target)
        text = assembly(task, blocked(task, mr=32, nv=2, kc=0, tail=0, ahead=ahead))
        loops = loops_over(text, "tdpbf16ps")
        assert loops
        for loop in loops:
            # Of four products each; a line for each vector of a row.
            turns = sum(line.startswith("tdpbf16ps") for line in loop) // 4
            assert sum(line.startswith("prefetcht1") for line in loop) == turns * rows * 2


@pytest.mark.parametrize(("k", "epilogue"), [(4096, []), (4096, ["bias", "gelu"]), ("T", [])])
def test_what_becomes_of_a_tile_is_done_between_the_multiplications_of_the_next(k: Any, epilogue: list[str]) -> None:
    target = Target.from_json({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 1})
    data = {"op": "dense", "args": {"m": "T", "n": 96, "k": k}, "dtype": "bfloat16", "epilogue": epilogue}
    task = SearchTask(workload_from_json(data), shape_vars=(ShapeVar("T", range(130)),), target=target, threads=1)
    loops = loops_over(assembly(task, blocked(task, mr=32, nv=2, kc=0, tail=0)), "tdpbf16ps")
    assert len(loops) >= 2, "whole tiles, and a ragged rest of the rows"
    # Where k may be 0 there is no multiplication to do it behind.
    assert all(any(line.startswith("vcvtneps2bf16") for line in loop) == (k != "T") for loop in loops)


def test_totals_that_would_take_much_go_through_the_output_or_k_is_whole() -> None:
    target = Target.from_json({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 1})
    for dtypes, chunk in (("bfloat16", 0), ({"x": "bfloat16", "w": "bfloat16"}, 128)):
        data = {"op": "dense", "args": {"m": "T", "n": 2**16, "k": 4096}, "dtype": dtypes}
        variables = (ShapeVar("T", range(1, 200)),)
        task = SearchTask(workload_from_json(data), shape_vars=variables, target=target, threads=1)
        space = rules_of(task)[0].space(task)
        values = dict(blocked(task, mr=32, nv=2, mb=2).values)
        assert space.canonicalise(values | {"mb": 1, "kc": 128})["kc"] == 128
        assert space.canonicalise(values | {"mb": 8, "kc": 128})["kc"] == chunk


INSTRUCTIONS: dict[Any, str] = {
    "bfloat16": "tdpbf16ps",
    "float16": "tdpfp16ps",
    **{pair: f"tdpb{pair[0][0]}{pair[1][0]}d".replace("i", "s") for pair in BYTES},
}


@pytest.mark.parametrize(
    ("dtypes", "count"), spread(every(2, [(each, 3 if each == "bfloat16" else 1) for each in INSTRUCTIONS]))
)
def test_the_code_has_the_instructions_and_spills_no_tile(dtypes: Any, count: int) -> None:
    mcpu = "graniterapids" if dtypes == "float16" else "sapphirerapids"
    of_each = dtypes if isinstance(dtypes, str) else {"x": dtypes[0], "w": dtypes[1], "out": "int32"}
    # A loop of few turns is unrolled.
    workload = workload_from_json({"op": "dense", "args": {"m": "T", "n": 64, "k": 4096}, "dtype": of_each})
    target = Target.from_json({"kind": "llvm", "mcpu": mcpu, "num-cores": 1})
    task = SearchTask(workload, shape_vars=(ShapeVar("T", range(130)),), target=target, threads=1)
    kernels = kernels_of(task, count)
    assert len(kernels) == count
    for kernel in kernels:
        text, name = assembly(task, kernel), INSTRUCTIONS[dtypes]
        loops = loops_over(text, name)
        assert loops
        assert not any(line.startswith(("call", "tilestored")) for loop in loops for line in loop)
        assert "ldtilecfg" in text and "tilerelease" in text
