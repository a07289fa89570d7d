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

PARTS: tuple[Blocks, ...] = ((0, 1, 0, 0), *RIGHTS, (0, 0, 1, 0))
"""What is packed of a right matrix, in this order: block 12 right before 22, and 21 right behind 11, so that the
columns of either half are read whole, too, one step of k after the other."""
FIRST_PRODUCT = 1
"""The part that product 0 reads."""
FIRST_OF_HALF = (PRODUCTS, 0)
"""The part with which the columns of the left and of the right half begin."""
FACTORS = len(PARTS)
"""The part behind the last one: a row for each half with factors of columns."""
