"""Documents from outside: plain data, or a reason."""

from __future__ import annotations

import json
import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import InvalidInput
from tuner.program.documents import MAX_DEPTH, read_json, read_yaml

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=16,
)


@given(PLAIN)
def test_plain_data_is_read_as_it_was_written(data: object) -> None:
    assert read_json(json.dumps(data).encode()) == data
    assert read_json(json.dumps(data, ensure_ascii=False)) == data
    assert read_yaml(yaml.safe_dump(data, allow_unicode=True)) == data


@given(st.binary(max_size=60) | TEXT)
def test_any_text_is_read_or_refused(text: bytes | str) -> None:
    for read in (read_json, read_yaml):
        try:
            json.dumps(read(text), allow_nan=False)
        except InvalidInput as error:
            assert error.problem


@pytest.mark.parametrize(
    ("text", "field", "problem"),
    [
        ("budget: {seconds: .inf}", "budget", "not a number"),
        ("a: {b: [1, {c: .nan}]}", "a.b[1].c", "not a number"),
        ("a: 2020-01-01", "a", "date"),
        ("a: !!binary aGk=", "a", "bytes"),
        ("a: {1: 2}", "a", "not text"),
        ("a: 1\na: 2", "job", "'a' stands twice"),
        ("a: {b: 1, b: 2}", "job", "'b' stands twice"),
        ("a: &x [1]\nb: *x", "job", "refers to another part"),
        ("a: &x [*x]", "job", "refers to another part"),
        ("a: !!python/name:os.system x", "job", "YAML"),
        ("a: [1\nb: 2", "job", "line 2"),
    ],
)
def test_yaml_beyond_plain_data_is_refused(text: str, field: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem) as caught:
        read_yaml(text)
    assert caught.value.field.startswith(field)


@pytest.mark.parametrize(
    "text", ["NaN", "[Infinity]", '{"a": -Infinity}', "[1e999]", "9223372036854775808", '"\\u0000"', '{"a": 1, "a": 1}']
)
def test_json_beyond_plain_data_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        read_json(text)


@pytest.mark.parametrize("read", [read_json, read_yaml])
def test_nesting_has_a_limit(read: object) -> None:
    assert callable(read)
    assert read("[" * MAX_DEPTH + "]" * MAX_DEPTH) is not None
    for depth in (MAX_DEPTH + 2, 100_000):
        with pytest.raises(InvalidInput, match="nested"):
            read("[" * depth + "]" * depth)


def test_a_document_of_too_many_values_is_refused_before_it_is_built() -> None:
    with pytest.raises(InvalidInput, match="more than"):
        read_yaml("[" + "1," * 400_000 + "]")
    assert len(read_json("[" + "1," * 400_000 + "1]")) == 400_001  # type: ignore[arg-type]


def test_a_long_wrong_value_is_not_repeated_whole() -> None:
    with pytest.raises(InvalidInput) as caught:
        read_json(json.dumps({"a" * 100_000: math.nan}))
    assert len(str(caught.value)) < 500
