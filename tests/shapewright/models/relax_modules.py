"""Modules of Relax with what its text and its importers seldom have, and Relax allows."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

WIDTH = 32


def rows(size: Any) -> Any:
    return relax.TensorType((size, WIDTH), "float32")


def alike() -> Any:
    """Two dense layers; every variable is called x, and both sizes n."""
    rng = np.random.default_rng(3)
    weight, bias = (relax.const(rng.standard_normal(shape).astype("float32")) for shape in ((WIDTH, WIDTH), (WIDTH,)))
    sizes = [tirx.Var("n", "int64") for _ in range(2)]
    params = [relax.Var("x", rows(size)) for size in sizes]
    outputs, bindings = [], []
    for size, param in zip(sizes, params, strict=True):
        product, out = relax.DataflowVar("x", rows(size)), relax.Var("x", rows(size))
        bindings += [relax.VarBinding(product, relax.op.matmul(param, weight))]
        bindings += [relax.VarBinding(out, relax.op.add(product, bias))]
        outputs.append(out)
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], relax.Tuple(outputs))
    function = relax.Function(params, body, relax.TupleType([rows(size) for size in sizes]))
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    return relax.transform.Normalize()(module)


def branches() -> Any:
    """A tuple as input, values behind branches, a cast to a shape that is known from there on, and a shape."""
    n = tirx.Var("n", "int64")
    pair, flag = relax.Var("pair", relax.TupleType([rows(n)] * 2)), relax.Var("flag", relax.TensorType((), "bool"))
    loose = relax.Var("loose", relax.TensorType(ndim=2, dtype="float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [pair, loose, flag]):
        x = builder.emit(pair[0])
        whole = builder.emit(relax.op.nn.softmax(x))
        builder.emit(relax.op.shape_of(x))
        known = builder.match_cast(loose, rows(n))
        total = builder.emit(relax.op.nn.softmax(relax.op.add(known, x)))
        either = builder.emit(relax.If(flag, relax.op.add(whole, total), whole))
        both = builder.emit(relax.Tuple([either, total]))
        builder.emit_func_output(both)
    return relax.transform.Normalize()(builder.finalize())


def joined_heads(is_split: bool, width: int = WIDTH, heads: int = 2) -> Any:
    """Attention over a product of constants that gives queries, keys and values side by side, which are split, or
    sliced one by one."""
    rng = np.random.default_rng(3)
    weight = relax.const(rng.standard_normal((width, 3 * width)).astype("float32") / 8)
    b, s = tirx.Var("batch", "int64"), tirx.Var("length", "int64")
    x = relax.Var("x", relax.TensorType((b, s, width), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x], attrs={"num_input": 1}):
        with builder.dataflow():
            y = builder.emit(relax.op.matmul(x, weight))
            if is_split:
                all_parts = builder.emit(relax.op.split(y, [width, 2 * width], axis=-1))
                parts = [builder.emit(all_parts[place]) for place in range(3)]
            else:
                ends = [(place * width, (place + 1) * width) for place in range(3)]
                parts = [builder.emit(relax.op.strided_slice(y, [2], [first], [end])) for first, end in ends]
            q, k, v = (builder.emit(relax.op.reshape(each, (b, s, heads, width // heads))) for each in parts)
            out = builder.emit_output(relax.op.nn.attention(q, k, v))
        builder.emit_func_output(out)
    return builder.finalize()


def turned() -> Any:
    """A rotary embedding of heads before positions."""
    b, s, heads, size = tirx.Var("batch", "int64"), tirx.Var("length", "int64"), 2, 8
    x, cos, sin = (
        relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in (("x", (b, heads, s, size)), ("cos", (s, size)), ("sin", (s, size)))
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x, cos, sin]):
        with builder.dataflow():
            halves = builder.emit(relax.op.split(x, 2, axis=-1))
            lower, upper = builder.emit(halves[0]), builder.emit(halves[1])
            other = builder.emit(relax.op.concat([builder.emit(relax.op.negative(upper)), lower], axis=-1))
            straight = builder.emit(relax.op.multiply(x, cos))
            out = builder.emit_output(relax.op.add(straight, builder.emit(relax.op.multiply(other, sin))))
        builder.emit_func_output(out)
    return builder.finalize()
