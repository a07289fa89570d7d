"""What to write instead: remedies for constructs that users of other notations try."""

from __future__ import annotations

from collections.abc import Mapping

STAGE_OF_ITS_OWN = "a reducer stands first and takes all of its stage: give it a stage of its own"
SCATTER = "data would say which elements are written; each element of a stage is computed from what it reads: a gather"
SCAN = "each stage is computed as a whole, in no order: scans and recurrences are not supported"

_POSITIONS = "reducers give values, no positions; the largest value is max(k) x[m, k]"
_ORDER = "sorting is not supported: an element's place would depend on data"
_SIZE = "sizes that depend on data are not supported: mask by where(condition, x[m], 0)"

FUNCTIONS_OF_OTHERS: Mapping[str, str] = {
    "argmax": _POSITIONS,
    "argmin": _POSITIONS,
    "topk": _ORDER,
    "sort": _ORDER,
    "argsort": _ORDER,
    "cumsum": SCAN,
    "cumprod": SCAN,
    "scan": SCAN,
    "nonzero": _SIZE,
    "unique": _SIZE,
    "scatter": SCATTER,
    "scatter_add": SCATTER,
    "gather": "an index may be an element of an integer tensor: x[rows[m], n]",
    "mean": "total[m] = sum(k) x[m, k], then out[m] = total[m] / extent(k)",
    "avg": "total[m] = sum(k) x[m, k], then out[m] = total[m] / extent(k)",
    "var": "the sum of squares of x[m, k] - mean, over extent(k)",
    "softmax": "max, exp, sum and a division, a stage each",
    "any": "max(k) of a condition",
    "all": "min(k) of a condition",
    "relu": "max(x[m], 0)",
    "gelu": "x[m] * 0.5 * (1 + erf(x[m] * 0.7071067811865476))",
    "silu": "x[m] * sigmoid(x[m])",
    "clip": "min(max(x[m], low), high)",
    "clamp": "min(max(x[m], low), high)",
    "pow": "x[m] * x[m], or exp(y * log(x[m]))",
    "square": "x[m] * x[m]",
    "select": "where(condition, a, b)",
    "ceil": "-floor(-x[m])",
    "len": "extent(k) is the size of an axis",
    "shape": "extent(k) is the size of an axis",
    "size": "extent(k) is the size of an axis",
    "float": "cast(x[m], float32)",
    "int": "cast(floor(x[m]), int32)",
}
"""What to write for a function that the notation does not have, by the function's name."""

WORDS_OF_OTHERS: Mapping[str, str] = {
    "and": "conditions are joined by &",
    "or": "conditions are joined by |",
    "not": "where(condition, 0, 1)",
    "if": "where(condition, a, b)",
    "else": "where(condition, a, b)",
    "for": "axes are loops of their own: out[m] = sum(k) x[m, k]",
}
"""What to write for a word of other languages, by the word."""
