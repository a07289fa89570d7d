"""What minimal filtering makes of three taps: of weights that are packed ahead, and in the transforms of its kernels.

Toom and Cook: polynomials are multiplied by their values at points (Lavin and Gray, CVPR 2016, section 4).
"""

from __future__ import annotations

INNER, OUTER = 0.625, 1.5
"""F(4, 3) has the points 0, +-INNER, +-OUTER and infinity (decision 120)."""
INNER_STRIDED, OUTER_STRIDED = 0.5, 1.5
"""F(4, 3) with a stride of 2 has the points +-INNER_STRIDED, +-OUTER_STRIDED and infinity (decision 126)."""
Taps = tuple[float, float, float]


def _taps_at(point: float, scale: float) -> Taps:
    return 1 / scale, point / scale, point**2 / scale


def _taps_strided(*points: tuple[float, float]) -> tuple[Taps, ...]:
    """With a stride of 2: the first and the last tap at some points and at infinity, then the middle one at the same
    points. ``points``: each with its scale."""
    even = tuple((1 / scale, 0.0, point / scale) for point, scale in points)
    return *even, (0.0, 0.0, 1.0), *((0.0, 1 / scale, 0.0) for _, scale in points)


_BETWEEN = 2 * (INNER**2 - OUTER**2)
_BETWEEN_STRIDED = 2 * (INNER_STRIDED**2 - OUTER_STRIDED**2)
FILTERS = {
    (2, 1): ((1.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0.0, 0.0, 1.0)),
    (4, 1): (
        _taps_at(0.0, (INNER * OUTER) ** 2),
        *(_taps_at(sign * INNER, INNER**2 * _BETWEEN) for sign in (1, -1)),
        *(_taps_at(sign * OUTER, -(OUTER**2) * _BETWEEN) for sign in (1, -1)),
        (0.0, 0.0, 1.0),
    ),
    (2, 2): _taps_strided((1.0, 2.0), (-1.0, -2.0)),
    (4, 2): _taps_strided(
        *((sign * INNER_STRIDED, sign * INNER_STRIDED * _BETWEEN_STRIDED) for sign in (1, -1)),
        *((sign * OUTER_STRIDED, sign * OUTER_STRIDED * -_BETWEEN_STRIDED) for sign in (1, -1)),
    ),
}
"""G of F(2, 3) and F(4, 3): what is multiplied for so many outputs of three taps, by outputs and stride."""
FILTER_KINDS = {
    (2, 1): "winograd",
    (4, 1): "winograd_4x4",
    (2, 2): "winograd_stride_2",
    (4, 2): "winograd_4x4_stride_2",
}
