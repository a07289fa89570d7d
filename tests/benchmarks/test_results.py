"""The document of a benchmark, and the options that benchmarks share."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.harness.results import count, integers, names, options_of, read, text_of, write


def test_integers_are_separated_by_commas() -> None:
    assert integers("0,1,2") == (0, 1, 2)
    assert integers("7") == (7,)
    assert integers("-1, 3") == (-1, 3)


@pytest.mark.parametrize("text", ["", "1,", "1;2", "a", "1.5"])
def test_anything_else_is_no_list_of_integers(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        integers(text)


def test_a_count_is_one_or_more() -> None:
    assert [count(text) for text in ("1", "12")] == [1, 12]


@pytest.mark.parametrize("text", ["0", "-1", "", "1.5", "many"])
def test_less_than_one_and_other_text_are_no_count(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no number of 1 or more"):
        count(text)


def test_the_type_of_an_option_is_that_of_its_default() -> None:
    parser = options_of("x", seeds=(0, 1), seconds=(0.0, 2.5), against=["a"], trials=4, shape_count=int, resume=False)
    given = ["--seeds", "3,4", "--seconds", "1,2.5", "--against", "b,c,b", "--shape-count", "7", "--resume"]
    options = parser.parse_args([*given, "--json", "out.json"])
    assert (options.seeds, options.seconds, options.against) == ((3, 4), (1.0, 2.5), ["b", "c"])
    assert (options.trials, options.shape_count, options.resume, options.json) == (4, 7, True, Path("out.json"))
    assert parser.parse_args(["--json", "x"]).shape_count is None
    assert names("") == []


@pytest.mark.parametrize("name", ["out.json", "out.json.gz"])
def test_a_document_is_written_whole_with_a_line_for_each_row(name: str, tmp_path: Path) -> None:
    path, document = tmp_path / name, {"rows": [{"a": 1}, {"a": 2}], "summary": {"x": None}, "protocol": {"cpu": "C"}}
    write(path, document)
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert read(path)["rows"] == document["rows"]
    assert read(path)["protocol"]["cpu"] == "C", "what the protocol has is kept"
    assert '{"a": 1},\n{"a": 2}\n' in text_of(document)
    assert json.loads(text_of(document)) == document
