"""Strassen's products of matrices in blocks of two by two: seven products of sums of blocks in place of eight.

Strassen, "Gaussian elimination is not optimal" (Numerische Mathematik 13, 1969). With the blocks of each matrix in the
order 11, 12, 21, 22, product q is that of ``LEFTS[q]`` of the left matrix's blocks and ``RIGHTS[q]`` of the right
one's; block r of the result is the sum of ``RESULTS[r][q]`` times product q.
"""

from __future__ import annotations

Blocks = tuple[int, int, int, int]
"""What the blocks 11, 12, 21 and 22 are multiplied by before they are added."""

LEFTS: tuple[Blocks, ...] = (
    (1, 1, 0, 0), (1, 0, 0, 1), (1, 0, 0, 0), (0, 0, 0, 1), (-1, 0, 1, 0), (0, 1, 0, -1), (0, 0, 1, 1),
)  # fmt: skip
RIGHTS: tuple[Blocks, ...] = (
    (0, 0, 0, 1), (1, 0, 0, 1), (0, 1, 0, -1), (-1, 0, 1, 0), (1, 1, 0, 0), (0, 0, 1, 1), (1, 0, 0, 0),
)  # fmt: skip
RESULTS = ((-1, 1, 0, 1, 0, 1, 0), (1, 0, 1, 0, 0, 0, 0), (0, 0, 0, 1, 0, 0, 1), (0, 1, 1, 0, 1, 0, -1))
PRODUCTS = len(LEFTS)

SUMS = RIGHTS[1:-1]
"""Of the right matrix's blocks: the first product is of its block 22 alone, and the last one of block 11."""
FIRST_BLOCK, LAST_BLOCK = 3, 0
"""These two, in the order of a pair's blocks in memory: 11, 21, 12, 22, so that columns are whole."""
BLOCKS_OF_PAIR = 4
"""Blocks of the columns of two neighbouring panels, beside which there are their sums."""
