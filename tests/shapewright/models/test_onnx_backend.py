"""ONNX's backend tests through extraction: nothing wrong, nothing crashes, and what is left has a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

import shapewright as sw
from shapewright.models.onnx_model import from_onnx
from tests.shapewright.models.checking import TARGET
from tests.shapewright.models.onnx_cases import KINDS, Case, check, negated, node_tests, runs_of, stored_tests

SAMPLED = (
    *("abs", "add", "batch_normalization", "cast", "clip", "constant", "conv", "convtranspose", "div", "dropout"),
    *("elu", "exp", "expand", "flatten", "gelu", "gemm", "globalaveragepool", "hardsigmoid", "hardswish", "identity"),
    *("celu", "if_", "instance_normalization", "logsoftmax", "mish", "prelu", "selu", "thresholdedrelu"),
    *("leakyrelu", "log", "loop", "matmul", "max", "mean", "min", "mul", "optionalgetelement", "pow", "relu"),
    *("reducemax", "reducemean", "reducesum", "reshape", "rmsnormalization", "round", "sequence_map", "softmax"),
    *("softplus", "split", "sqrt", "squeeze", "sub", "sum", "tanh", "transpose", "unsqueeze"),
)
"""Modules of node tests whose loading takes milliseconds."""
EVERY = 6
"""Of the sampled modules' tests, one of as many."""
LIFTED = 475
"""Models of which something is lifted, and right. It may become more."""
DEFECT = "a defect of Shapewright"
"""What only a fault of ours gives as its reason."""


def faults(case: Case, counts: Counter[str]) -> list[str]:
    """What is wrong with a model as it is, with single elementwise nodes, and between negations."""
    found, runs = [], runs_of(case)
    own = {name for node in case.model.graph.node for name in node.output}
    variants = {"as it is": (case.model, runs, 2), "single nodes": (case.model, runs, 1)}
    if between := negated(case.model, runs):
        variants["negated"] = (*between, 2)
    compared: set[str] = set()
    for name, variant in variants.items():
        try:
            answer = check(*variant)
        except Exception as error:  # every kind is told, with the model's name
            found.append(f"{case.name}, {name}: {type(error).__name__}: {str(error)[:600]}")
            continue
        compared |= answer.compared & own
        bad = [f"{node}: {why}" for node, why in answer.left.items() if not why or DEFECT in why]
        found += [f"{case.name}, {name}: left without a reason of its own: {each}" for each in bad]
    counts["lifted" if compared else "left"] += 1
    counts["nodes compared"] += len(compared)
    return found


def extracted(cases: Iterable[Case], counts: Counter[str]) -> list[str]:
    """What is wrong with models, and with what ``sw.extract`` says of them."""
    found = []
    for case in cases:
        found += faults(case, counts)
        symbols = {symbol: range(1, 65) for symbol in from_onnx(case.model).graph.symbols}
        tasks = sw.extract(case.model, shape_vars=symbols, target=TARGET)
        found += [f"{case.name}: {one} has no reason" for one in tasks.left if not one.reason]
    return found


def test_a_sample_of_onnxs_backend_tests_is_right_or_left_with_a_reason() -> None:
    counts: Counter[str] = Counter()
    chosen = sorted(node_tests(SAMPLED), key=lambda case: case.name)[::EVERY]
    stored = [case for kind in KINDS for case in stored_tests(kind)][::EVERY]
    assert extracted([*chosen, *stored], counts) == []
    assert counts["lifted"] >= 30
    assert counts["left"] > 10


@pytest.mark.soak
def test_all_of_onnxs_backend_tests_are_right_or_left_with_a_reason() -> None:
    counts: Counter[str] = Counter()
    stored = (case for kind in KINDS for case in stored_tests(kind))
    found = [*extracted(node_tests(), counts), *extracted(stored, counts)]
    print(dict(counts))
    assert found == []
    assert counts["lifted"] >= LIFTED
