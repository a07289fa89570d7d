"""Which programs are attention, by what they compute; and what their masks bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.tuner.schedule.rules.attention.programs import (
    GUARDED,
    GUARDED_FIRST,
    NARROW,
    PRODUCTS,
    RULE,
    SOFTMAX,
    SOME,
    attention,
    chain,
    ragged,
    task_of,
)
from tuner.errors import IllegalKernel
from tuner.program.job.build import workload_from_json
from tuner.program.language.expr import text_of
from tuner.schedule import NoMatch, extents_of, rules_of
from tuner.schedule.rules.attention.chain import Chain, mask_of
from tuner.schedule.rules.attention.pattern import match

FIRST_DIVIDED = """
top[b, i] = max(j) s[b, i, j]
p[b, i, j] = exp(s[b, i, j] - top[b, i])
z[b, i] = sum(j) p[b, i, j]
w[b, i, j] = p[b, i, j] / z[b, i]
out[b, i, e] = sum(j) w[b, i, j] * v[b, j, e]"""
OTHER_NAMES = """
m[b, x] = max(y) s[b, x, y]
z[c, u] = sum(w) exp(s[c, u, w] - m[c, u])
o[i, b, e] = sum(w) v[b, w, e] * exp(s[b, i, w] - m[b, i])
out[b, i, e] = o[i, b, e] / z[b, i] + r[e]"""


def matched(data: dict[str, Any]) -> Chain:
    answer = match(workload_from_json(data))
    assert isinstance(answer, Chain), answer
    return answer


def test_the_catalogue_entry_is_one() -> None:
    task = task_of(attention(causal=True))
    assert rules_of(task)[0].name == "attention"
    roles = RULE.match(task.workload, task.known_target)
    assert roles == {"b": "batch", "h": "batch", "i": "row", "j": "column", "d": "reduction"}


@pytest.mark.parametrize(
    ("data", "is_zero_of_nothing"),
    [
        (chain(behind=SOME), True),
        (chain(behind=SOME + " + r[e]"), True),
        (chain(behind=SOME.replace("0.0)", "1.0)")), False),
        (chain(behind=SOME.replace("extent(j)", "extent(i)")), False),
        (chain(), False),
        (chain(behind=FIRST_DIVIDED), True),
        (chain(behind=OTHER_NAMES, extents={"x": "T", "y": "S", "c": 2, "u": "T", "w": "S"}), False),
        (chain("max(a[b, i, j], 0) * 0.5 + i - extent(j)"), False),
    ],
)
def test_names_and_stages_do_not_matter(data: dict[str, Any], is_zero_of_nothing: bool) -> None:
    found = matched(data)
    assert found.is_zero_of_nothing == is_zero_of_nothing
    assert (found.q.tensor, found.k.tensor, found.v.tensor) == ("q", "k", "v")
    assert [found.axis[name] for name in "de"] == ["d", "e"]


def test_the_axis_that_k_does_not_have_counts_the_rows() -> None:
    text = PRODUCTS.replace("k[b, j, d]", "k[j, d]") + "\ns[b, i, j] = a[b, i, j]" + SOFTMAX
    found = matched({"program": text, "extents": {"b": 2, "i": "T", "j": "S", "d": 8, "e": 8}})
    assert found.axis["i"] == "i"
    text = "a[b, h, j] = sum(d) q[b, h, d] * k[b, j, d]\ns[b, i, j] = a[b, i, j]" + SOFTMAX
    assert matched({"program": text, "extents": {"b": 2, "h": 4, "i": 4, "j": "S", "d": 8, "e": 8}}).axis["i"] == "i"


@pytest.mark.parametrize(
    ("behind", "is_guarded"),
    [
        (SOFTMAX, False),
        (GUARDED, True),
        (GUARDED_FIRST, True),
        (GUARDED.replace("z[b, i])", "z[b, i]) + r[e]"), True),
    ],
)
def test_rows_that_are_hidden_whole_may_be_zero(behind: str, is_guarded: bool) -> None:
    assert matched(chain("a[b, i, j] + mask[i, j]", behind)).is_guarded == is_guarded


PADDED_STAGE = {
    **chain(padded={"t": 1.5}),
    "program": f"t[j] = bias[j] * 2\n{PRODUCTS}\ns[b, i, j] = a[b, i, j] + t[j - 1]{SOFTMAX}",
}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"op": "softmax", "args": {"m": "T", "n": 9}}, "not three sums and a maximum"),
        (chain(behind=SOFTMAX.replace("exp(s[b, i, j] - top", "exp(2 * s[b, i, j] - top")), "is not of exp"),
        (chain(behind=SOFTMAX.replace("max(j)", "min(j)")), "not three sums and a maximum"),
        (chain("a[b, i, j] + a[b, j, i]", extents={"i": "T", "j": "T"}), "at one place"),
        (chain(behind=SOFTMAX.replace("/ z[b, i]", "* z[b, i]")), "not made of the quotient alone"),
        (chain(behind=SOFTMAX.replace("/ z[b, i]", "/ z[b, e]"), extents={"i": 8}), "not made of the quotient alone"),
        (chain(behind=GUARDED.replace("-inf, 0.0,", "-inf, 1.0,")), "not made of the quotient alone"),
        (chain(behind=GUARDED.replace("== -inf", "== 0.0")), "not made of the quotient alone"),
        (chain(behind=GUARDED.replace("z[b, i])", "z[b, i] + r[e])")), "not made of the quotient alone"),
        (chain(behind=SOME + " + o[b, i, e] / z[b, i]"), "not made of the quotient alone"),
        (chain(behind=GUARDED + " + o[b, i, e] / z[b, i]"), "not made of the quotient alone"),
        (chain(behind=SOFTMAX.replace("v[b, j, e]", "where(top[b, i] == -inf, 0, v[b, j, e])")), "times a tensor"),
        (chain(outputs=["z", "out"]), "more than one output"),
        (chain(dtype={"v": "int8"}), "v is int8, none of"),
        (chain(dtype={"z": "float16"}), "z is float16, not float32"),
        (chain(dtype={"s": "float64"}), "float64"),
        (chain("a[b, i, j] * w[j, i]", extents={"i": "T", "j": "T"}), "does not lie along the vectors"),
        (chain("a[b, i, j] + t[ids[j]]", shapes={"t": [9]}, dtype={"ids": "int32"}), "does not lie along the vectors"),
        (chain(behind=SOFTMAX.replace("v[b, j, e]", "v[b, e, j]")), "do not lie along the axis of their own"),
        (chain(behind=SOFTMAX.replace("v[b, j, e]", "v[i, j, e]"), extents={"b": "T"}), "there is none that shares"),
        (chain(behind=SOFTMAX.replace("v[b, j, e]", "v[b, j + 1, e]"), shapes={"v": ["b", "S + 1", "e"]}), "plain j"),
        (
            chain(behind=SOFTMAX.replace("v[b,", "v[b - 1,"), shapes={"v": [1, "S", "e"]}, padded={"v": 0}),
            "v is padded",
        ),
        (PADDED_STAGE, "t is a padded stage"),
        (
            chain(behind=SOFTMAX.replace("[b, i, e]", "[b, i, e, f]").replace("v[b, j, e]", "v[b, j, e, f]"),
                  extents={"f": 3}),
            "several axes of their own",
        ),
    ],
)  # fmt: skip
def test_other_programs_are_refused_with_the_reason(data: dict[str, Any], reason: str) -> None:
    answer = match(workload_from_json(data))
    assert isinstance(answer, NoMatch)
    assert reason in answer.reason


# -- masks ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("score", "bounds", "inside"),
    [
        ("where(j <= i, a[b, i, j], -inf)", ["j <= i"], "a[]"),
        ("where(i >= j, a[b, i, j], -inf)", ["j <= i"], "a[]"),
        ("where(j < i + (extent(j) - extent(i)), a[b, i, j] * 2, -inf)", ["j <= extent(j)+i-extent(i)-1"], "a[] * 2"),
        ("where((j <= i) & (j > i - 7), a[b, i, j], -inf)", ["j <= i", "j >= i-6"], "a[]"),
        ("where(j <= i, where(3 * b <= j, a[b, i, j], -inf), -inf)", ["j <= i", "j >= 3*b"], "a[]"),
        ("where((j <= i) & (seg[j] == 0), a[b, i, j], -inf)", ["j <= i"], "where(seg[j] == 0, a[], -inf)"),
        ("where((j <= i) | (j > 5), a[b, i, j], -inf)", [], "where((j <= i) | (j > 5), a[], -inf)"),
        ("where(j <= i, a[b, i, j], 0)", [], "where(j <= i, a[], 0)"),
        ("where(j <= 9 - i, a[b, i, j], -inf)", [], "where(j <= 9 - i, a[], -inf)"),
        ("where(2 * j <= i, a[b, i, j], -inf)", [], "where(2 * j <= i, a[], -inf)"),
        ("where(j <= i * extent(i), a[b, i, j], -inf)", [], "where(j <= i * extent(i), a[], -inf)"),
    ],
)
def test_bounds_of_a_mask(score: str, bounds: list[str], inside: str) -> None:
    found = matched(chain(score, dtype={"seg": "int32"} if "seg" in score else "float32")).mask
    names = {"b0": "b", "attention.computed": "a"}
    texts = [f"j {'<=' if bound.is_upper else '>='} {bound.limit}" for bound in found.bounds]
    plain = [text.replace("b0", names["b0"]) for text in texts]
    assert sorted(plain) == sorted(bounds)
    assert text_of(found.inside).replace("attention.computed", "a") == inside
    assert mask_of(found.score) == found


@pytest.mark.parametrize(
    ("condition", "limits"),
    [
        ("j < n[b, i]", ["j <= 1*n[b0, i] + -1"]),
        ("n[b, i] <= j", ["j >= 1*n[b0, i] + 0"]),
        ("(j >= n[b, i]) & (j <= m[i] + i)", ["j >= 1*n[b0, i] + 0", "j <= 1*(m[i] + i) + 0"]),
        ("j > i - n[b, 0]", ["j >= 1*(i - n[b0, 0]) + 1"]),
        ("i - j < n[b, 0]", ["j >= -1*n[b0, 0] + 1*i + 1"]),
        ("2 * j < n[b, i]", []),
        ("n[b, i] == j", []),
        ("j < n[b, j]", []),
    ],
)
def test_limits_that_data_sets(condition: str, limits: list[str]) -> None:
    dtypes = {"n": "int32", "m": "int64"}
    used = {name: dtype for name, dtype in dtypes.items() if f"{name}[" in condition}
    extents = {"j": "T"} if "n[b, j]" in condition else {}
    shapes = {"n": ["b", 1]} if "n[b, 0]" in condition else {}
    found = matched(chain(f"where({condition}, a[b, i, j], -inf)", dtype=used, extents=extents, shapes=shapes)).mask
    texts = []
    for limit in found.limits:
        terms = [f"{sign}*{text_of(term, 9)}" for sign, term in limit.terms]
        texts.append(f"j {'<=' if limit.is_upper else '>='} {' + '.join([*terms, str(limit.constant)])}")
    assert texts == limits
    assert (text_of(found.inside) == "attention.computed[]") == bool(limits)


@pytest.mark.parametrize(
    ("args", "positions", "limits", "bounds"),
    [
        ({}, ["start", "stop"], 2, 0),
        ({"causal": True}, ["start", "stop", "last"], 3, 0),
        ({"causal": True, "window": 5, "softcap": 20.0, "kv_heads": 1}, ["start", "stop", "last"], 4, 0),
    ],
)
def test_a_ragged_batch_is_one(args: dict[str, Any], positions: list[str], limits: int, bounds: int) -> None:
    found = matched(ragged(**args))
    assert [stage.tensor for stage in found.positions] == positions
    assert (len(found.mask.limits), len(found.mask.bounds)) == (limits, bounds)
    assert found.is_guarded
    assert found.v.tensor == "v"


def test_integers_that_are_made_of_scores_are_refused() -> None:
    text = chain()["program"] + "\ncount[b, i] = sum(j) s[b, i, j] > 0\nall[b, i, e] = out[b, i, e] * count[b, i]"
    answer = match(workload_from_json({**chain(), "program": text}))
    assert isinstance(answer, NoMatch)


# -- the space and its theory -----------------------------------------------------------------------------------------
def test_what_the_registers_do_not_hold_is_illegal() -> None:
    task = task_of(attention(d=64), NARROW)
    space, values = RULE.space(task), dict(RULE.default_kernel(task).values)
    with pytest.raises(IllegalKernel, match="needs 34 vector registers, there are 16"):
        space.kernel(values | {"mr": 10, "nv": 3})
    with pytest.raises(IllegalKernel, match="pack=0 reads k in place"):
        space.kernel(values | {"pack": 0})


def test_k_that_does_not_lie_along_d_is_always_packed() -> None:
    text = chain()["program"].replace("k[b, j, d]", "k[b, d, j]")
    packings = [axis.choices for axis in RULE.space(task_of({**chain(), "program": text})).axes if axis.name == "pack"]
    assert packings == [(1,)]


def test_theory_knows_what_a_mask_hides() -> None:
    plain, causal = task_of(attention(d=64, j="T")), task_of(attention(d=64, j="T", causal=True))
    times = []
    for task in (plain, causal):
        extents = extents_of(task.workload, [{"T": 512}])
        times.append(float(RULE.estimate_s(task, [RULE.default_kernel(task)], extents)[0, 0]))
    assert 0.45 < times[1] / times[0] < 0.75


def test_theory_knows_how_many_sequences_share_the_rows() -> None:
    task = task_of(ragged(d=64, j="T"), longest=4096)
    extents = extents_of(task.workload, [{"T": 4096, "B": count} for count in (1, 32)])
    times = RULE.estimate_s(task, [RULE.default_kernel(task)], extents)[0]
    assert 0.02 < times[1] / times[0] < 0.2


def test_theory_packs_for_many_rows_and_not_for_one() -> None:
    task = task_of(attention(d=64))
    space, values = RULE.space(task), dict(RULE.default_kernel(task).values) | {"cols": 0}
    kernels = [kernel for pack in (0, 1) if (kernel := space.legal(values | {"pack": pack}))]
    extents = extents_of(task.workload, [{"T": rows, "S": 512} for rows in (1, 512)])
    assert np.argmin(RULE.estimate_s(task, kernels, extents), axis=0).tolist() == [0, 1]
