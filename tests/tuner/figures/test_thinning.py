"""What thinning keeps, whatever the values."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tuner.figures.thinning import MAX_POINTS, Floats, changes, extremes

FINITE = st.floats(-1e300, 1e300, allow_nan=False)
VALUES = arrays.arrays(np.float64, st.integers(0, 300), elements=FINITE | st.sampled_from([0.0, 1.0]))
LEVELS = arrays.arrays(np.float64, st.integers(0, 300), elements=st.sampled_from([1.0, 2.0, 3.0]))
LIMITS = st.integers(4, 50)


@given(VALUES, LIMITS)
def test_no_more_than_the_limit_in_order_with_ends_and_extremes(values: Floats, limit: int) -> None:
    kept = extremes(values, limit)
    assert len(kept) <= max(limit, 0)
    assert (np.diff(kept) > 0).all()
    if len(values):
        assert (kept[0], kept[-1]) == (0, len(values) - 1)
        assert (values[kept].min(), values[kept].max()) == (values.min(), values.max())


@given(VALUES, st.integers(300, 400))
def test_what_fits_is_kept_whole(values: Floats, limit: int) -> None:
    assert extremes(values, limit).tolist() == list(range(len(values)))


@given(LEVELS, st.data())
def test_steps_are_drawn_the_same(values: Floats, data: st.DataObject) -> None:
    marks = data.draw(arrays.arrays(np.int64, len(values), elements=st.integers(0, 1)))
    kept = changes(values, marks, limit=1000)
    assert (np.diff(kept) > 0).all()
    # The step that is drawn at any place is the one of the last point kept before it.
    for place in range(len(values)):
        before = kept[kept <= place][-1]
        assert (values[before], marks[before]) == (values[place], marks[place])


@given(LEVELS, LIMITS)
def test_too_many_steps_keep_their_extremes(values: Floats, limit: int) -> None:
    kept = changes(values, np.arange(len(values)), limit)
    assert len(kept) <= limit
    if len(values):
        assert (kept[0], kept[-1]) == (0, len(values) - 1)
        assert set(values[kept]) >= {values.min(), values.max()}


def test_a_long_level_is_two_points() -> None:
    values = np.repeat([3.0, 1.0], 50_000)
    assert changes(values, np.zeros(100_000, np.int64)).tolist() == [0, 49_999, 50_000, 99_999]
    assert len(extremes(np.sin(np.arange(100_000.0)))) <= MAX_POINTS
