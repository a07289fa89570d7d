"""Programs of one's own among the operators that are compared, by the names that the benchmark gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CHAINS: Mapping[str, str] = {
    "swiglu": "out[m, n] = x[m, n] * sigmoid(x[m, n]) * y[m, n]",
    "gelu_residual": "out[m, n] = x[m, n] * 0.5 * (1.0 + erf(x[m, n] * 0.7071067811865476)) + y[m, n]",
    "column_sum": "out[n] = sum(m) x[m, n]",
    "vector_matrix": "y[n] = sum(k) x[k] * w[k, n]",
    "transpose": "out[a, c, b] = x[a, b, c]",
    "depthwise_nhwc": "out[b, p, q, c] = sum(r, s) x[b, p + r - 1, q + s - 1, c] * w[r, s, c]",
    "dense_bfloat16": "out[m, n] = sum(k) x[m, k] * w[n, k]",
    "dense_int8": "z[m, n] = sum(k) x[m, k] * w[n, k]; out[m, n] = cast(z[m, n], float32) * s[n]",
    "conv2d_int8": (
        "z[b, o, p, q] = sum(c, r, s) x[b, c, p + r - 1, q + s - 1] * w[o, c, r, s]; "
        "out[b, o, p, q] = cast(z[b, o, p, q], float32) * scale[o]"
    ),
    "conv2d_int8_nhwc": (
        "z[b, p, q, o] = sum(r, s, c) x[b, p + r - 1, q + s - 1, c] * w[o, r, s, c]; "
        "out[b, p, q, o] = cast(z[b, p, q, o], float32) * scale[o]"
    ),
    "segment_attention": (
        "dots[h, i, j] = sum(d) q[h, i, d] * k[h, j, d]\n"
        "scores[h, i, j] = where(seg[i] == seg[j], 0.125 * dots[h, i, j], -inf)\n"
        "top[h, i] = max(j) scores[h, i, j]\n"
        "e[h, i, j] = exp(scores[h, i, j] - top[h, i])\n"
        "z[h, i] = sum(j) e[h, i, j]\n"
        "mixed[h, i, d] = sum(j) e[h, i, j] * v[h, j, d]\n"
        "out[h, i, d] = mixed[h, i, d] / z[h, i]"
    ),
    "mlp": (
        "h[m, f] = sum(k) x[m, k] * w1[f, k]; a[m, f] = h[m, f] + b1[f]; "
        "g[m, f] = a[m, f] * 0.5 * (1.0 + erf(a[m, f] * 0.7071067811865476)); "
        "y[m, n] = sum(f) g[m, f] * w2[n, f]; out[m, n] = y[m, n] + b2[n]"
    ),
    "swiglu_mlp": (
        "u[m, f] = sum(k) x[m, k] * w1[f, k]; v[m, f] = sum(k) x[m, k] * w3[f, k]; "
        "g[m, f] = u[m, f] * sigmoid(u[m, f]) * v[m, f]; out[m, n] = sum(f) g[m, f] * w2[n, f]"
    ),
}
"""Compared by themselves."""
RMS_NORM_MUL = (
    "square[m] = sum(n) x[m, n] * x[m, n]\n"
    "out[m, n] = x[m, n] * rsqrt(square[m] / extent(n) + 1e-05) * gamma[n] * y[m, n]"
)
PROGRAMS: Mapping[str, str] = {**CHAINS, "rms_norm_mul": RMS_NORM_MUL}
_PADDED: Mapping[str, Any] = {"padded": {"x": 0}, "constant": ["w"]}
_BYTES: Mapping[str, Any] = {"dtype": {"x": "uint8", "w": "int8"}}
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "depthwise_nhwc": {**_PADDED, "shapes": {"x": ["b", "p", "q", "c"]}},
    "conv2d_int8": {**_PADDED, **_BYTES, "shapes": {"x": ["b", "c", "p", "q"]}},
    "conv2d_int8_nhwc": {**_PADDED, **_BYTES, "shapes": {"x": ["b", "p", "q", "c"]}},
    "dense_bfloat16": {"dtype": "bfloat16", "constant": ["w"]},
    "dense_int8": {**_BYTES, "constant": ["w"]},
    "segment_attention": {"dtype": {"seg": "int32"}, "domain": {"seg": [0, 3]}},
    "mlp": {"constant": ["w1", "w2"]},
    "swiglu_mlp": {"constant": ["w1", "w2", "w3"], "domain": {name: [-0.1, 0.1] for name in ("w1", "w2", "w3")}},
}
"""What else is said of a program."""
