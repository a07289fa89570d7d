"""JSON text, cursors and the database's clock."""

from __future__ import annotations

import json
import math
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from tuner.errors import InvalidInput
from tuner.storage.sql import cursors
from tuner.storage.sql.columns import canonical, later, now, to_json
from tuner.storage.sql.engine import connect

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_json_text_holds_every_value_and_null_for_what_json_lacks(value: object) -> None:
    def strict(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    def expected(item: object) -> object:
        if isinstance(item, float) and not math.isfinite(item):
            return None
        if isinstance(item, dict):
            return {key: expected(inner) for key, inner in item.items()}
        return [expected(inner) for inner in item] if isinstance(item, list) else item

    assert json.loads(to_json(value), parse_constant=strict) == expected(value)


def test_equal_bodies_have_one_canonical_text_and_others_another() -> None:
    assert canonical({"a": 1, "b": (2, math.nan)}) == canonical({"b": [2, None], "a": 1})
    assert canonical({"a": 1}) != canonical({"a": True})
    assert canonical({"a": 1}) != canonical({"a": "1"})


@given(st.integers(0, 10**18 - 1))
def test_a_cursor_gives_its_number_back_to_its_own_list(number: int) -> None:
    cursor = cursors.encode("jobs", number)

    assert cursors.decode("jobs", cursor) == number
    with pytest.raises(InvalidInput):
        cursors.decode("workloads", cursor)


@given(st.text(max_size=40))
def test_any_other_text_is_refused_as_a_cursor(text: str) -> None:
    try:
        number = cursors.decode("jobs", text)
    except InvalidInput as error:
        assert error.field == "cursor"
    else:
        assert number is not None


@pytest.mark.parametrize("seconds", [0.25, 1.0, 90.0, 86_400.0])
def test_a_lease_ends_that_many_seconds_from_now(database_url: str, seconds: float) -> None:
    database = connect(database_url)
    with database.read() as connection:
        begin, end = connection.execute(select(now(), later(seconds))).one()
    database.engine.dispose()

    passed = datetime.fromisoformat(end) - datetime.fromisoformat(begin)

    assert passed.total_seconds() == pytest.approx(seconds, abs=0.1)
