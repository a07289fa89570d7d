"""Documents from outside: plain data, or a reason."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterator

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from tuner.errors import InvalidInput
from tuner.program.job.documents import MAX_DEPTH, MAX_VALUES, read_json, read_yaml

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=16,
)


def texts(data: object) -> Iterator[str]:
    """Every text in ``data``, keys included."""
    if isinstance(data, str):
        yield data
    for item in [*data, *data.values()] if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from texts(item)


def bare_exponent(text: str) -> bool:
    """1e5 is text to YAML 1.1, which asks for a point, and so PyYAML writes it without quotes."""
    return re.fullmatch(r"[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?[0-9]+\.?[0-9]*[eE][0-9]+", text) is not None


@given(PLAIN)
def test_plain_data_is_read_as_it_was_written(data: object) -> None:
    assert read_json(json.dumps(data).encode()) == data
    assert read_json(json.dumps(data, ensure_ascii=False)) == data
    assume(not any(map(bare_exponent, texts(data))))
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
        ("a: !!binary aGk=", "a", "the tag"),
        ("a: [1, {b: !!int '3'}]", "a[1].b", "the tag"),
        ("a: [2, 1" + "0" * 60 + "]", "a[1]", "a number of 61 characters"),
        ("a: 99999999999999999999", "a", "does not fit 64 bits"),
        ("a: 1e999", "a", "not a number"),
        ("{[1]: 2}", "job", "stands as a key"),
        ("a: 1\n---\nb: 2", "job", "more than one document"),
        ("%YAML 1.1\n---\na: 1", "job", "begins with %"),
        ("a: {1: 2}", "a", "not text"),
        ("a: 1\na: 2", "job", "'a' stands twice"),
        ("a: {b: 1, b: 2}", "a", "'b' stands twice"),
        ("a: &x [1]\nb: *x", "b", "refers to another part"),
        ("a: &x [*x]", "a[0]", "refers to another part"),
        ("a: !!python/name:os.system x", "a", "the tag"),
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


@pytest.mark.parametrize("read", [read_json, read_yaml])
def test_a_document_of_too_many_values_is_refused(read: Callable[[str], object]) -> None:
    assert read("[" + "1," * (MAX_VALUES - 2) + "1]") is not None
    for text in ("[" + "1," * 400_000 + "1]", "{" + ", ".join(f'"a{n}": 1' for n in range(MAX_VALUES)) + "}"):
        with pytest.raises(InvalidInput, match=f"more than {MAX_VALUES} values"):
            read(text)


@pytest.mark.parametrize(
    "text", ["2020-01-01", "1:30:00", "1" + ":0" * 490_000, "0x1f", "0o17", "017", "1_000", "yes", "off", "<<", "="]
)
def test_what_yaml_1_1_makes_numbers_dates_or_truth_of_is_text(text: str) -> None:
    assert read_yaml(f"seed: {text}") == {"seed": text}


@pytest.mark.parametrize(
    ("text", "value"),
    [("~", None), ("", None), ("True", True), ("-7", -7), ("+7", 7), ("0", 0), ("1e-5", 1e-5), (".5", 0.5)],
)
def test_what_json_can_say_is_read(text: str, value: object) -> None:
    assert read_yaml(f"a: {text}") == {"a": value}
    assert read_yaml(f"a: '{text}'") == {"a": text}


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "- " * 400_000,
        "%TAG !a! b\n" * 90_000 + "---\na: 1",
        "a: &" + "x" * 900_000 + " 1",
        "? " * 400_000,
        "a: " + "9" * 900_000,
        '"' + "\\\\u0041" * 160_000 + '": 1',
        "a:\n" + " b:\n" * 10 + "#" * 900_000,
        "- &a 1\n" * 100_000,
    ],
)
def test_large_texts_are_read_or_refused(text: str) -> None:
    """Each ended a parser of the past, or kept it busy."""
    with contextlib.suppress(InvalidInput):
        read_yaml(text)


def test_a_long_wrong_value_is_not_repeated_whole() -> None:
    with pytest.raises(InvalidInput) as caught:
        read_json(json.dumps({"a" * 100_000: math.nan}))
    assert len(str(caught.value)) < 500
