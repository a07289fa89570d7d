"""Products of a product whose intermediate is of short elements: both by this CPU's instructions on words of them, and
in tiles."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.compiled import assembly, built_problems, loops_over, shortest
from tests.contract.rule_samples import MLP, QUANTISED, SWIGLU
from tests.shares import chosen, spread
from tests.tuner.schedule.product.emulated_amx import emulated
from tuner.errors import IllegalKernel
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import Target, native
from tuner.schedule import NoMatch, extents_of
from tuner.schedule.product import atoms
from tuner.schedule.rules.mlp import Mlp
from tuner.schedule.space import MicroKernel

RULE = Mlp()
SERVER = Target.from_json({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 1})
SHORT = dict.fromkeys(("x", "w1", "w2", "g", "out"), "bfloat16")
BYTES = {"x": "int8", "w1": "int8", "w2": "int8", "g": "int8"}


def workload(text: str, dtype: Mapping[str, str], f: int, n: int, k: int) -> dict[str, Any]:
    constant = [name for name in ("w1", "w2", "w3") if name in text]
    return {"program": text, "extents": {"m": "T", "f": f, "n": n, "k": k}, "constant": constant, "dtype": dict(dtype)}


WORKLOADS: Mapping[str, dict[str, Any]] = {
    "bfloat16": workload(MLP, SHORT, 75, 37, 71),
    "long": workload(MLP, SHORT, 300, 21, 40),
    "gated": workload(SWIGLU, SHORT | {"w3": "bfloat16", "h1": "bfloat16"}, 150, 33, 64),
    "to float32": workload(MLP, SHORT | {"out": "float32"}, 290, 33, 50),
    "bytes": workload(QUANTISED, BYTES, 200, 37, 77),
}


def task_of(name: str, target: Target | None = None, threads: int = 1) -> SearchTask:
    rows = (ShapeVar("T", range(130)),)
    return SearchTask(workload_from_json(WORKLOADS[name]), shape_vars=rows, target=target or native(), threads=threads)


def kernel_of(task: SearchTask, group: int, **values: int) -> MicroKernel:
    """The shortest of some that multiply so many steps at once."""
    space, random = RULE.space(task), np.random.default_rng(0)
    drawn = (space.legal({**space.values_of(space.sample(random)), **values, "group": group}) for _ in range(400))
    known = [kernel for kernel in drawn if kernel is not None and kernel.get("group") == group]
    return shortest(kernel for kernel in known if values.items() <= dict(kernel.values).items())


def groups(task: SearchTask) -> tuple[int, ...]:
    return next((axis.choices for axis in RULE.space(task).axes if axis.name == "group"), ())


@pytest.fixture
def words(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "tiles":
        vectors = [atom for atom in atoms.ATOMS if atom.unit is None]
        monkeypatch.setattr(atoms, "ATOMS", [*vectors, *emulated(native().hardware.lanes())])
    return str(request.param)


ORDERS: Mapping[str, Mapping[str, int]] = {
    "a block": {"whole": 0, "mb": 2, "tail": 0},
    "chunks of a block": {"whole": 0, "mb": 1, "fb": 128},
    "all rows": {"whole": 1, "mb": 3},
    "chunks of all rows": {"whole": 1, "mb": 1, "fb": 128},
}


QUICK = (
    ("tiles", "bfloat16", "a block", 1),
    ("tiles", "gated", "all rows", 2),
    ("tiles", "bytes", "chunks of a block", 1),
    ("words", "bfloat16", "chunks of all rows", 2),
    ("words", "long", "all rows", 2),
    ("words", "to float32", "a block", 2),
    ("words", "bytes", "a block", 1),
)


@pytest.mark.parametrize(
    ("words", "name", "order", "threads"),
    spread(chosen(QUICK, itertools.product(["tiles", "words"], WORKLOADS, ORDERS, [1, 2]))),
    indirect=["words"],
)
def test_kernels_are_right(words: str, name: str, order: str, threads: int) -> None:
    task = task_of(name, threads=threads)
    found = [depth for depth in groups(task) if depth > 1]
    units = [depth for depth, atom in RULE._atoms(task).items() if atom.unit is not None]
    depths = [depth for depth in found if (depth in units) == (words == "tiles")]
    if not depths:
        pytest.skip("this CPU does not multiply words of these")
    # Vectors of totals are kept in the output between chunks, where that can hold them; a short k has none.
    has_chunks = (words == "tiles" or name in ("to float32", "bytes")) and 128 in choices(task, "fb")
    values = {axis: value if axis != "fb" or has_chunks else 0 for axis, value in ORDERS[order].items()}
    kernel = kernel_of(task, depths[-1], **values)
    sizes = [dict.fromkeys(task.workload.symbols, size) for size in (0, 1, 5, 16, 17, 33, 100)]
    assert built_problems(task, kernel, sizes) == []


def choices(task: SearchTask, name: str) -> tuple[int, ...]:
    return next(axis.choices for axis in RULE.space(task).axes if axis.name == name)


def test_tiles_are_for_all_products_or_none() -> None:
    assert groups(task_of("bfloat16", SERVER)) == (1, 2, 32)
    assert groups(task_of("bytes", SERVER)) == (2, 4, 64)
    wide = {**WORKLOADS["bfloat16"], "dtype": dict.fromkeys(("x", "w1", "w2", "out"), "bfloat16")}
    task = SearchTask(workload_from_json(wide), shape_vars=(ShapeVar("T", range(130)),), target=SERVER)
    assert groups(task) == (1, 2)


def test_a_cpu_without_an_instruction_for_bytes_does_not_take_them() -> None:
    plain = Target.from_json({"kind": "llvm", "mcpu": "neoverse-n1", "num-cores": 1})
    answer = RULE.match(
        workload_from_json({**WORKLOADS["bytes"], "dtype": BYTES | {"x": "uint8", "g": "uint8"}}), plain
    )
    assert not isinstance(answer, NoMatch)
    old = Target.from_json({"kind": "llvm", "mcpu": "cortex-a57", "num-cores": 1})
    answer = RULE.match(workload_from_json(WORKLOADS["bytes"]), old)
    assert isinstance(answer, NoMatch)
    assert "no instruction that multiplies int8 by int8" in answer.reason


def test_what_holds_no_partial_sum_is_summed_whole_and_ragged_rows_are_packed() -> None:
    space, kernel = RULE.space(task_of("bfloat16", SERVER)), kernel_of(task_of("bfloat16", SERVER), 2)
    assert (kernel["kc"], kernel["fb"], kernel["rows"]) == (0, 0, 1)
    with pytest.raises(IllegalKernel, match="group=2 needs rows=1"):
        space.kernel({**dict(kernel.values), "rows": 0})


def test_both_products_stay_in_tiles_inside_their_loops() -> None:
    """The intermediate is read as it is kept: nothing of it is packed again."""
    data = workload(MLP, SHORT, 2048, 64, 2048)
    task = SearchTask(workload_from_json(data), shape_vars=(ShapeVar("T", range(130)),), target=SERVER)
    text = assembly(task, kernel_of(task, 32, mr=32, nv=2, ev=2, mb=1, whole=0, fb=0, kc=0, tail=0))
    loops = loops_over(text, "tdpbf16ps")
    assert len(loops) >= 2
    assert not any(line.startswith(("call", "tilestored")) for loop in loops for line in loop)


def test_theory_multiplies_words() -> None:
    data = workload(MLP, SHORT, 3072, 768, 768)
    task = SearchTask(workload_from_json(data), shape_vars=(ShapeVar("T", range(1030)),), target=SERVER)
    extents = extents_of(task.workload, [{"T": 512}])
    plain = {"mr": 8, "nv": 3, "ev": 3, "tail": 0, "ku": 1, "kc": 0, "mb": 8, "whole": 0, "fb": 0}
    kernels = [
        kernel_of(task, 1, **plain),
        kernel_of(task, 2, **plain),
        kernel_of(task, 32, mr=32, nv=2, ev=2, mb=2, whole=0, fb=0),
    ]
    single, pair, unit = RULE.estimate_s(task, kernels, extents)[:, 0]
    assert unit < 0.8 * pair < 0.64 * single
