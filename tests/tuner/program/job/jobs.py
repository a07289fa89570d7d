"""Job files that are right, as changes to a small one; what is ``...`` is left out."""

from __future__ import annotations

from typing import Any

ARGS = {"m": "16*T", "n": 64, "k": 64}
JOBS: list[dict[str, Any]] = [
    {},
    {"name": "x", "seed": 3, "threads": 2, "max_kernels": 4, "priority": -1, "device": "rack-3", "policy": "random"},
    {"budget": {"seconds": 1.5}},
    {"budget": {"trials": 0, "seconds": None}},
    {"shape_vars": {"T": {"values": [5, 24]}}, "instances": [{"T": 5, "weight": 0.5}, {"T": 24}]},
    {"shape_vars": {"T": {"min": 8, "max": 64, "step": 8}}},
    {"shape_vars": {"T": {"min": 1, "max": 64, "powers_of": 2}}},
    {"target": {"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 2}},
    {"targets": ["native", {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1}]},
    {"workload": {"op": "dense", "args": ARGS, "epilogue": ["bias", "gelu"], "dtype": "bfloat16"}},
    {"workload": {"op": "dense", "args": ARGS, "dtype": {"x": "bfloat16", "w": "bfloat16", "out": "float32"}}},
    {"workload": ..., "workloads": [{"op": "dense", "args": ARGS, "count": 3, "layers": ["a", "b"]},
                                    {"op": "softmax", "args": {"m": "T", "n": 8}}]},
    {"workload": {"op": "max_pool2d", "args": {"b": "T", "c": 4, "h": 8, "w": 8, "r": 3, "s": 3, "pad": 1}}},
    {"workload": {"program": "c[m, n] = sum(k) a[m, k] * b[n, k]", "extents": {"m": "T", "n": 8, "k": 8},
                  "constant": ["b"], "domain": {"a": [0, 1]}, "padded": {}, "outputs": ["c"]}},
    {"webhook": {"url": "https://ci.example/tuned"}},
]  # fmt: skip
