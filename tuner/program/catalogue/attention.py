"""Attention: whole batches, and ragged ones by offsets; causal masks, windows, capped scores, heads that share keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tuner.errors import InvalidInput
from tuner.program.catalogue.operators import CAUSAL, KV_HEADS, NEAREST, SCALE, SOFTCAP, Op, Values
from tuner.program.language.dims import DimExpr

SETTINGS = {"causal": CAUSAL, "scale": SCALE, "window": NEAREST, "softcap": SOFTCAP, "kv_heads": KV_HEADS}


def attention() -> Op:
    return Op(
        "attention",
        "softmax(scale * q . k^T) . v: q[b, h, i, d], k[b, h, j, d], v[b, h, j, d], out[b, h, i, d]",
        ("b", "h", "i", "j", "d"),
        "dots[b, h, i, j] = sum(d) q[b, h, i, d] * k[b, {kv}, j, d]\n"
        "scores[b, h, i, j] = {scores}\n"
        "top[b, h, i] = max(j) scores[b, h, i, j]\n"
        "e[b, h, i, j] = exp(scores[b, h, i, j] - top[b, h, i])\n"
        "z[b, h, i] = sum(j) e[b, h, i, j]\n"
        "mixed[b, h, i, d] = sum(j) e[b, h, i, j] * v[b, {kv}, j, d]\n"
        "out[b, h, i, d] = where(extent(j) > 0, mixed[b, h, i, d] / z[b, h, i], 0.0)",
        settings=SETTINGS, variant=_whole,
        example={"b": "B", "h": 2, "i": "T", "j": "S", "d": 24, "causal": True},
        synonyms=("sdpa", "scaled_dot_product_attention", "multi_head_attention", "mha", "flash_attention"),
    )  # fmt: skip


def ragged_attention() -> Op:
    """Rows i of a sequence are from the last offset up to i to the first one past it; its keys are those between the
    offsets of keys at the same places. So any offsets mean something: no row sees a key that is not there, whatever
    their order and values. Rows before the first offset and past the last one see nothing, and are 0. A first stage
    reads v, so that the offsets come behind it in a call."""
    between = "where(cu_seqlens_q[n] {side} i, {of}[n], {of}[{rest}])"
    start = between.format(side="<=", of="cu_seqlens_k", rest="0")
    stop = between.format(side=">", of="cu_seqlens_k", rest="extent(n) - 1")
    return Op(
        "ragged_attention",
        "attention of each of b sequences, laid one after the other: q[i, h, d], k[j, h, d], v[j, h, d], "
        "cu_seqlens_q[b + 1] and cu_seqlens_k[b + 1] of int32, out[i, h, d]. Sequence s has the rows from "
        "cu_seqlens_q[s] and the keys from cu_seqlens_k[s] on, up to those of s + 1; other rows are 0, and so are rows "
        "without keys. The last row of a sequence sees all of its keys where causal. i and j count all rows and keys",
        ("b", "h", "i", "j", "d"),
        "dots[h, i, j] = sum(d) q[i, h, d] * k[j, {kv}, d]\n"
        "values[j, h, d] = v[j, {kv}, d]\n"
        f"start[i] = max(n) {start}\n"
        f"stop[i] = min(n) {stop}\n"
        "{last}"
        "scores[h, i, j] = {scores}\n"
        "top[h, i] = max(j) scores[h, i, j]\n"
        "e[h, i, j] = exp(scores[h, i, j] - top[h, i])\n"
        "z[h, i] = sum(j) e[h, i, j]\n"
        "mixed[h, i, d] = sum(j) e[h, i, j] * values[j, h, d]\n"
        "out[i, h, d] = where(top[h, i] == -inf, 0.0, mixed[h, i, d] / z[h, i])",
        settings=SETTINGS | {"causal": replace(CAUSAL, doc="hide the keys behind the row's own, in every sequence")},
        sizes={"n": "b + 1"}, shapes={"cu_seqlens_q": "[n]", "cu_seqlens_k": "[n]"},
        dtypes={"cu_seqlens_q": "int32", "cu_seqlens_k": "int32"}, variant=_ragged,
        example={"b": "B", "h": 2, "i": "T", "j": "S", "d": 24, "causal": True},
        synonyms=("varlen_attention", "flash_attn_varlen_func", "packed_attention", "nested_attention"),
    )  # fmt: skip


LAST = "last[i] = min(n) where(cu_seqlens_q[n] > i, cu_seqlens_q[n], cu_seqlens_q[extent(n) - 1])\n"
"""One past the last row of the sequence of row i."""


def _whole(args: Mapping[str, DimExpr], settings: Values) -> Values:
    seen = _near("i + (extent(j) - extent(i))", settings)
    return {"scores": _scores("dots[b, h, i, j]", seen, args, settings), "kv": _shared_head(args, settings)}


def _ragged(args: Mapping[str, DimExpr], settings: Values) -> Values:
    near = _near("i + (stop[i] - last[i])", settings)
    seen = ["(j >= start[i])", "(j < stop[i])", *near]
    scores = _scores("dots[h, i, j]", seen, args, settings)
    return {"scores": scores, "kv": _shared_head(args, settings), "last": LAST if near else ""}


def _near(own: str, settings: Values) -> list[str]:
    """The conditions of a causal mask and of a window, where the row's own key is at ``own``."""
    window, causal = settings["window"], settings["causal"]
    seen = [f"(j <= {own})"] if causal else []
    if window is not None:
        seen += [f"(j > {own} - {window})", *([] if causal else [f"(j < {own} + {window})"])]
    return seen


def _scores(dots: str, seen: list[str], args: Mapping[str, DimExpr], settings: Values) -> str:
    scale, cap = settings["scale"], settings["softcap"]
    if scale is None:
        if args["d"].constant is None:
            raise InvalidInput("args.scale", f"d={args['d']} is dynamic, so 1/sqrt(d) is no constant", "give scale")
        scale = 1.0 / math.sqrt(max(args["d"].constant, 1))
    scores = f"{scale!r} * {dots}"
    if cap is not None:
        scores = f"{cap!r} * tanh({scores} / {cap!r})"
    return f"where({' & '.join(seen)}, {scores}, -inf)" if seen else scores


def _shared_head(args: Mapping[str, DimExpr], settings: Values) -> str:
    """The head of k and v that head h reads, as an index."""
    heads, shared = args["h"].constant, settings["kv_heads"]
    if shared is None or shared == heads:
        return "h"
    if heads is None or heads % shared:
        remedy = "an h that is constant, and a multiple of kv_heads"
        raise InvalidInput("args.kv_heads", f"{shared} heads of keys beside {args['h']} of queries", remedy)
    return f"h // {heads // shared}"
