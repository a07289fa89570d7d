"""Small functions of vectors, compiled for a target and called with NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as I  # noqa: N812

from tuner.library.codegen import LOWERING
from tuner.program.target import Target, native
from tuner.schedule.packing import row_major
from tuner.schedule.tir import i64
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import loaded, stored, stored_type
from tuner.schedule.vector.elementary import fusing
from tuner.schedule.vector.memory import Vectors

Expr = Any
Array = NDArray[Any]
Body = Callable[..., Expr]

TARGETS = {
    name: target
    for name, target in {
        **{cpu: Target.from_json({"kind": "llvm", "mcpu": cpu, "num-cores": 1}) for cpu in ("x86-64", "x86-64-v3")},
        "native": native(),
    }.items()
    if set(target.hardware.features) <= set(native().hardware.features)
}
"""The targets whose code this CPU can run."""


def numpy_type(dtype: str) -> np.dtype[Any]:
    return np.dtype(stored_type(dtype))


def elementwise(
    folder: Path, target: Target, inputs: Sequence[str], outputs: Sequence[tuple[str, Body]], lanes: int | None = None
) -> Callable[..., list[Array]]:
    """Compiles ``out[i] = body(*in[i])`` for each of ``outputs``, by dtype and body; the last vector is masked.

    The result takes one array for each input and returns one for each output, surrounded by poison that it checks.
    """
    lanes = lanes or target.hardware.lanes()
    dtypes = [*inputs, *(dtype for dtype, _ in outputs)]
    with fusing(target.hardware), IRBuilder() as builder, I.prim_func():
        I.func_name("kernel")
        I.func_attr({"tirx.noalias": True, "global_symbol": "kernel"})
        n = tirx.Var("n", "int64")
        buffers = [
            I.arg(f"t{i}", I.buffer((n,), stored_type(dtype), align=numpy_type(dtype).itemsize))
            for i, dtype in enumerate(dtypes)
        ]
        whole = I.Bind(tirx.floordiv(n, i64(lanes)))
        with I.serial(i64(0), whole) as index:
            _vector(Vectors(lanes), buffers, inputs, outputs, index * i64(lanes), None)
        with I.If(whole * i64(lanes) < n), I.Then():
            _vector(Vectors(lanes), buffers, inputs, outputs, whole * i64(lanes), n)
    executable = tvm.compile(
        tvm.IRModule({"kernel": builder.get()}),
        target=tvm.target.Target({"kind": "llvm", "mcpu": target.mcpu, "num-cores": 1}),
        tir_pipeline=LOWERING,
    )
    path = folder / f"kernel{len(list(folder.iterdir()))}.so"
    executable.export_library(str(path))
    function = tvm.runtime.load_module(str(path))["kernel"]
    return lambda *arrays: _called(function, arrays, [dtype for dtype, _ in outputs])


def _vector(
    vectors: Vectors,
    buffers: Sequence[Expr],
    inputs: Sequence[str],
    outputs: Sequence[tuple[str, Body]],
    column: Expr,
    limit: Expr | None,
) -> None:
    values = [
        bound(loaded(vectors.load(buffer, (), column, limit), dtype))
        for buffer, dtype in zip(buffers, inputs, strict=False)
    ]
    for buffer, (dtype, body) in zip(buffers[len(inputs) :], outputs, strict=True):
        result = stored(bound(body(*values)), dtype)
        vectors.store(buffer, result, (), column, limit)


def _called(function: Any, arrays: Sequence[Array], dtypes: Sequence[str]) -> list[Array]:
    size, past = len(arrays[0]), 64
    results = [np.full(size + past, 1, numpy_type(dtype)) for dtype in dtypes]
    function(*(tvm_ffi.from_dlpack(row_major(array)) for array in (*arrays, *(result[:size] for result in results))))
    for result in results:
        assert (result[size:] == 1).all(), "something was stored past the end"
    return [result[:size] for result in results]
