"""Every sample of the rules' contract suite as kernels for a GPU, run in Triton's interpreter."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.contract.rule_samples import SAMPLES
from tests.shares import shares
from tests.tuner.schedule.gpu.interpreting import problems, sample_problems
from tuner.program.job.build import workload_from_json
from tuner.schedule.gpu.attention import AttentionTile
from tuner.schedule.gpu.plan import Choices, segments
from tuner.schedule.gpu.tiling import Tiling

TIMEOUT_S = 200.0
CASES = [
    (rule, title, dtype)
    for rule, samples in SAMPLES.items()
    for title, sample in samples.items()
    for dtype in (None, *(["float16"] if sample.get("dtype", "float32") == "float32" else []))
]


@pytest.mark.parametrize(("number", "case"), list(enumerate(CASES)), ids=lambda value: "-".join(map(str, value))
                         if isinstance(value, tuple) else "")  # fmt: skip
@shares(2)
def test_kernels_compute_what_the_reference_does(
    share: int, interpreter: ProcessPoolExecutor, number: int, case: tuple[str, str, str | None]
) -> None:
    """`make test` takes one set of tiles for each sample, `make soak` two."""
    found = interpreter.submit(sample_problems, *case, number + 5 * share).result(TIMEOUT_S)
    assert found == []


PRODUCTS = {
    "shares of k": Tiling(16, 16, 16, split_k=3),
    "swapped": Tiling(16, 32, 16, swap=True),
    "by descriptors": Tiling(16, 16, 16, descriptors=True),
    "parts": Tiling(16, 16, 16, parts=3),
    "parts, swapped, in shares": Tiling(16, 16, 16, parts=3, swap=True, split_k=2),
    "packed for sums": Tiling(16, 16, 16, pack="kn"),
    "one by one": Tiling(2, 16, 32, dot=False),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_each_axis_of_a_product(interpreter: ProcessPoolExecutor, name: str, dtype: str) -> None:
    args = {"m": "T", "n": 40, "k": 56}
    workload = workload_from_json({"op": "dense", "args": args, "dtype": dtype, "epilogue": ["bias", "gelu"]})
    shapes = [{"m": size} for size in (1, 53)]
    assert interpreter.submit(problems, workload, Choices(product=PRODUCTS[name]), shapes).result(TIMEOUT_S) == []


TF32 = {
    "by pointers": Choices(product=Tiling(16, 16, 16, precision="tf32", pack="kn")),
    "by descriptors": Choices(product=Tiling(16, 16, 16, precision="tf32", descriptors=True)),
    "in eight warps": Choices(product=Tiling(16, 16, 16, precision="tf32", descriptors=True, num_warps=8)),
}


@pytest.mark.parametrize("name", TF32)
def test_products_in_tf32(interpreter: ProcessPoolExecutor, name: str) -> None:
    """Within the bounds of a workload that allows it, and beyond those of one that does not: they are rounded."""
    dense = {"op": "dense", "args": {"m": "T", "n": 40, "k": 56}, "epilogue": ["bias"]}
    shapes = [{"m": size} for size in (1, 53)]
    for tf32, is_right in ((True, True), (False, False)):
        workload = workload_from_json({**dense, "tf32": tf32})
        found = interpreter.submit(problems, workload, TF32[name], shapes).result(TIMEOUT_S)
        assert (found == []) is is_right


def test_products_in_tf32_by_bytes(interpreter: ProcessPoolExecutor) -> None:
    program = {"program": "out[m, n] = sum(k) x[m, k] * w[n, k]", "extents": {"m": "T", "n": 32, "k": 64}}
    workload = workload_from_json(program | {"dtype": {"x": "float32", "w": "int8", "out": "float32"}, "tf32": True})
    shapes = [{"m": size} for size in (1, 19)]
    assert interpreter.submit(problems, workload, TF32["by descriptors"], shapes).result(TIMEOUT_S) == []


def test_attention_in_tf32(interpreter: ProcessPoolExecutor) -> None:
    args = {"b": 1, "h": 2, "i": "T", "j": "S", "d": 16}
    workload = workload_from_json({"op": "attention", "args": args, "tf32": True})
    tile = AttentionTile(rows=16, columns=16, values=16, precision="tf32")
    shapes = [dict(zip(workload.symbols, sizes, strict=True)) for sizes in ((50, 67), (1, 40))]
    assert interpreter.submit(problems, workload, Choices(attention=tile), shapes).result(TIMEOUT_S) == []


@pytest.mark.parametrize("tiling", [Tiling(16, 16, 32, swap=True), Tiling(16, 32, 16, split_k=2)], ids=["swapped", ""])
@pytest.mark.parametrize("bits", [4, 8])
def test_integers_become_float16_by_their_bits(interpreter: ProcessPoolExecutor, bits: int, tiling: Tiling) -> None:
    dtypes = {"x": "float16", "s": "float16", "out": "float16"}
    int4 = {"op": "dense_int4", "args": {"m": "T", "n": 24, "k": 96, "group": 32}, "dtype": dtypes}
    int8 = {
        "program": "out[m, n] = sum(k) x[m, k] * w[n, k] * s[n]", "extents": {"m": "T", "n": 24, "k": 70},
        "constant": ["w", "s"], "dtype": dtypes | {"w": "int8"},
    }  # fmt: skip
    workload = workload_from_json(int4 if bits == 4 else int8)
    shapes = [{"m": size} for size in (1, 19)]
    assert interpreter.submit(problems, workload, Choices(product=tiling), shapes).result(TIMEOUT_S) == []


@pytest.mark.parametrize("causal", [False, True])
def test_attention_with_blocks_that_need_no_mask(interpreter: ProcessPoolExecutor, causal: bool) -> None:
    args = {"b": 1, "h": 2, "i": "T", "j": "S", "d": 16, "causal": causal}
    workload = workload_from_json({"op": "attention", "args": args, "dtype": "float16"})
    tile = AttentionTile(rows=16, columns=16, values=16)
    shapes = [dict(zip(workload.symbols, sizes, strict=True)) for sizes in ((50, 67), (35, 35), (1, 40), (3, 0))]
    assert interpreter.submit(problems, workload, Choices(attention=tile), shapes).result(TIMEOUT_S) == []


WEIGHTS = """\
dots[b, h, i, j] = sum(d) q[b, h, i, d] * k[b, h, j, d]
scores[b, h, i, j] = 0.25 * dots[b, h, i, j]
top[b, h, i] = max(j) scores[b, h, i, j]
e[b, h, i, j] = exp(scores[b, h, i, j] - top[b, h, i])
z[b, h, i] = sum(j) e[b, h, i, j]
mixed[b, h, i, d] = sum(j) e[b, h, i, j] * v[b, h, j, d]
out[b, h, i, d] = mixed[b, h, i, d] / z[b, h, i]
"""
SHORT = dict.fromkeys(("q", "k", "v", "out"), "bfloat16")


@pytest.mark.parametrize(
    ("more", "dtypes", "splits"),
    [
        ("", {}, False),
        ("", {"out": "float32"}, True),
        ("s[b, h, i] = sum(d) q[b, h, i, d]\n", {"s": "bfloat16"}, False),
        ("s[b, h, i] = sum(d) q[b, h, i, d]\n", {"s": "float32"}, True),
        ("s[b, h, i] = sum(d) out[b, h, i, d]\n", {"s": "float32"}, True),
    ],
    ids=["alone", "float32", "another output", "another in float32", "a short value in between"],
)
def test_weights_are_rounded_where_the_whole_program_allows_it(
    interpreter: ProcessPoolExecutor, more: str, dtypes: dict[str, str], splits: bool
) -> None:
    """However it is cut: what a segment gives is not all that the program gives."""
    extents = {"b": 1, "h": 1, "i": "T", "j": 64, "d": 16}
    workload = workload_from_json({"program": WEIGHTS + more, "extents": extents, "dtype": SHORT | dtypes})
    (chained,) = (each for each in segments(workload) if each.chain)
    assert chained.splits_weights is splits
    choices = Choices(attention=AttentionTile(rows=16, columns=16, values=16))
    (symbol,) = workload.symbols
    assert interpreter.submit(problems, workload, choices, [{symbol: size} for size in (1, 37)]).result(TIMEOUT_S) == []
