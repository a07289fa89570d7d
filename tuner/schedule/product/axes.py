"""The axes of a product's search space: their choices, what the hardware can carry of them, and which are don't-care
beside others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tuner.program.job.task import SearchTask
from tuner.program.target import Hardware
from tuner.schedule.product.atom import Atom
from tuner.schedule.product.atoms import best_of_vectors
from tuner.schedule.space import DEFAULT_CHOICE, Axis, MicroKernel

if TYPE_CHECKING:
    from tuner.schedule.product.product import Product


IN_PLACE, BY_BLOCK, AT_ONCE, IN_COPY = range(4)
"""Choices of ``pack`` for an operand that is new at every call: it is read as it lies, each panel is packed for each
block of rows, all panels before the first one, or panels are read in a padded copy of the image they are windows of."""
PACKINGS = (IN_PLACE, BY_BLOCK, AT_ONCE)

WIDE, OF_VECTORS, IN_BLOCKS = DEFAULT_CHOICE, 2, 3
"""Choices of ``panel`` for an operand that is packed ahead: its panels are as wide as the register tile, so that all
kernels of a library have tiles of one width; or each is one vector wide, for tiles of any width; or such panels are
packed in blocks, as Strassen's products read them, too (rules/strassen)."""

FEW_ALONG_K = 2
"""The choice of ``edge`` for columns behind whole vectors that are computed along k, if they are few."""
MAX_FEW = 4
"""The most columns that count as few."""

APART, JOINED, TURNED = range(3)
"""Choices of ``join``: m and n hold those of their axes that lie together in the output, or all of them; or vectors run
along n, and the output lies along m (turned.py)."""
ROWS_IN_PLACE, ROWS_PACKED, IN_IMAGE = range(3)
"""Choices of ``rows``: they are read as they lie, packed for each block, or read in a padded copy of an image."""
HEIGHTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14)
"""Rows of a register tile."""
MAX_VECTORS = 6
"""In a row of a register tile."""
CHUNKS = (128, 192, 256, 384, 512, 768)
"""Steps of k in a chunk."""
FOLLOWED_CHUNKS = (16, 32)
"""Further choices for columns that lie [k, n], where each step of a chunk is a stream for the hardware prefetchers.
Chunks of a fixed k are whole vectors: none may be shorter than a vector of any target."""
MAX_BLOCK = 256
TOTAL_BYTES = 4
MAX_KEPT_BYTES = 16 * 2**20
"""What totals of a block of rows may take that a thread keeps between chunks of k."""
ALONG_K = {"mb": MAX_BLOCK, "kc": 0, "ku": 1, "near": 0, "ahead": 0, "fetch": 0, "rows": 0, "tail": 0, "edge": 0}
"""The canonical values of the axes that are don't-care where vectors run along k."""


def atom_of(kernel: MicroKernel | Mapping[str, int], atoms: Mapping[int, Atom]) -> Atom:
    """The instruction that a kernel multiplies by, of those that its product has."""
    return atoms[kernel.get("group", DEFAULT_CHOICE)]


def panels_of_strip(kernel: MicroKernel) -> int:
    """Panels that a tile of rows goes over before the next tile; 1 where the kernel's rule has no such axis."""
    return kernel.get("nb")


def packed_vectors(kernel: MicroKernel) -> int:
    """Vectors in a row of a panel that is packed ahead."""
    return kernel["nv"] if kernel.get("panel") == WIDE else 1


def parts_of_k(kernel: MicroKernel | Mapping[str, int]) -> int:
    """Parts of k that different threads compute; 1 where the kernel's rule or task has no such axis."""
    return kernel.get("split_k", DEFAULT_CHOICE)


def default_tile(hardware: Hardware) -> dict[str, int]:
    """The register tile of default kernels: square-ish, in three quarters of the registers."""
    return {"mr": 8, "nv": 3} if hardware.vector_registers >= 32 else {"mr": 4, "nv": 2}


def default_values(task: SearchTask, has_batch: bool, **chosen: int) -> dict[str, int]:
    """The values of a default kernel: its tile, small blocks, nothing packed, split or prefetched, and threads along
    the batch or, without one, along n; but for those that are ``chosen``."""
    plain = dict.fromkeys(("kc", "near", "ahead", "fetch", "rows", "tail", "edge", "pack"), 0)
    shares = {"tb": task.threads, "tn": 1} if has_batch else {"tb": 1, "tn": task.threads}
    plain |= {"mb": 8, "ku": 1, "panel": OF_VECTORS}
    return {**default_tile(task.known_target.hardware), **plain, **shares, **chosen}


def atom_axes(atoms: Mapping[int, Atom], *, is_optional: bool = False) -> tuple[Axis, ...]:
    """The instructions to choose from; no axis where every step is one element."""
    axis = Axis("group", "elements of k per instruction", tuple(atoms), is_optional)
    return () if axis.choices == (1,) else (axis,)


def tile_axes(
    steps: int | None, atoms: Mapping[int, Atom] | None = None, *, in_place: bool = False
) -> tuple[Axis, ...]:  # fmt: skip
    """The register tile and the loops around it. ``steps`` of k, None where it is dynamic: a chunk that holds all of a
    fixed k is no other than 0. ``atoms``: the instructions to choose from. ``in_place``: columns may be read where they
    lie, which adds short chunks."""
    units = [atom for atom in (atoms or {}).values() if atom.unit is not None]
    rows = {*HEIGHTS, *(atom.rows * tiles for atom in units for tiles in (1, 2, 3, 4))}
    every = (*(FOLLOWED_CHUNKS if in_place else ()), *CHUNKS)
    chunks = (0, *(kc for kc in every if steps is None or kc < steps))
    return (
        Axis("mr", "rows of the register tile", tuple(sorted(rows))),
        Axis("nv", "vectors in a row of the register tile", tuple(range(1, MAX_VECTORS + 1))),
        Axis("mb", "tiles that share a panel", (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, MAX_BLOCK)),
        Axis("kc", "steps of k in a chunk", chunks),
        Axis("ku", "steps of k unrolled", (1, 2, 4, 8)),
        Axis("near", "steps of k prefetched in the stream", (0, 8, 16, 32)),
        Axis("ahead", "steps of k to a row of the next panel", (0, 1, 2, 4, 8, 16, 32)),
        Axis("fetch", "the output is prefetched", (0, 1)),
    )


def panel_axes(is_packed_ahead: bool, *, in_blocks: bool = False) -> tuple[Axis, ...]:
    """How panels lie that were packed ahead, which may be ``in_blocks``; no axis where none are."""
    choices = (WIDE, OF_VECTORS, IN_BLOCKS) if in_blocks else (WIDE, OF_VECTORS)
    axis = Axis("panel", "panels packed ahead are a vector wide", choices, is_optional=True)
    return (axis,) if is_packed_ahead else ()


def ragged_axes(is_dynamic: bool, *, are_few: bool = False) -> tuple[Axis, ...]:
    """Code for ragged ends; ``is_dynamic``: whether the extent of n is; ``are_few``: whether it is known and leaves
    few columns behind whole vectors."""
    edges = (0, *((1,) if is_dynamic else ()), *((FEW_ALONG_K,) if are_few else ()))
    return (
        Axis("tail", "ragged rows have exact code", (0, 1)),
        Axis("edge", "ragged columns have exact code", edges),
    )


def tiles(
    task: SearchTask, kernel: MicroKernel, rows: tuple[str, ...], columns: tuple[str, ...]
) -> dict[tuple[str, ...], tuple[int, ...]]:
    """The tiles (see Rule.tiles) of a kernel whose rows and columns are these axes of the program."""
    lanes, shares = task.known_target.hardware.lanes(), kernel.get("tb") * kernel.get("tn") * parts_of_k(kernel)
    down = max(1, task.threads // shares)
    height, width = kernel["mr"], kernel["nv"] * lanes
    return {rows: (height, height * down), columns: (lanes, width, width * kernel.get("tn"))}


def thread_axes(threads: int, has_batch: bool) -> tuple[Axis, ...]:
    """How threads share the work."""
    shares = divisors(threads)
    return (
        Axis("tb", "threads along the batch", shares if has_batch else (1,)),
        Axis("tn", "threads along n", shares),
    )


def divisors(threads: int) -> tuple[int, ...]:
    """Into how many equal shares so many threads can be cut."""
    return tuple(each for each in range(1, threads + 1) if threads % each == 0)


def canonicalised(
    values: Mapping[str, int], product: Product, atoms: Mapping[int, Atom], *, may_be_wide: bool = False
) -> dict[str, int]:
    """The values with one choice for axes that are don't-care beside the others. ``atoms``: the product's;
    ``may_be_wide``: whether panels may be as wide as a tile that has several vectors."""
    constant, pack, atom = product.right.is_packed_ahead, values["pack"], atom_of(values, atoms)
    is_in_place = not constant and pack in (IN_PLACE, IN_COPY)
    if constant:
        # A matrix unit has no exact code for ragged columns, which panels of a vector need.
        is_ragged = atom.unit is not None and "n" in product.dynamic
        is_wide = pack == product.pack_of_dots or values["nv"] == 1 or is_ragged
        is_free = may_be_wide and atom.unit is None and not is_wide and "n" not in product.dynamic
        is_free = is_free or (values.get("panel") == IN_BLOCKS and reads_blocks(values, product))
        values = {**values, "panel": values["panel"] if is_free else canonical_panel(is_wide)}
    if atom.unit is not None and not is_in_place and pack != product.pack_of_dots:
        return {**values, **of_unit(values, atom, product)}
    canonical = {**values, **{name: value for name, value, _ in forced(values, product, atom)}}
    is_dots = pack == product.pack_of_dots
    if "group" in canonical and (is_in_place or atom.unit is not None) and not (is_dots and atom.is_along_k):
        # What is not packed has no words, and is multiplied by vectors.
        canonical["group"] = 1 if 1 in atoms else best_of_vectors(atoms)
    if parts_of_k(values) > 1 and values["kc"] * parts_of_k(values) * atom.group >= (product.depth or math.inf):
        canonical["kc"] = 0
    return canonical


def reads_blocks(values: Mapping[str, int], product: Product) -> bool:
    """Whether a kernel can read panels that are packed in blocks: columns one step after the other, whole sums."""
    return values["pack"] != product.pack_of_dots and parts_of_k(values) == 1


def canonical_panel(is_wide: bool) -> int:
    """The width of panels that new kernels have. Wide ones are those of kernels that were stored before there was a
    choice, and of those to which both are the same."""
    return WIDE if is_wide else OF_VECTORS


def forced(values: Mapping[str, int], product: Product, atom: Atom) -> Iterator[tuple[str, int, str]]:
    """What the other values leave no choice of: the axis, its value, and what is said of another one."""
    constant, pack = product.right.is_packed_ahead, values["pack"]
    # For a matrix unit the rows of a block are packed, too, and are not all rows.
    if pack == BY_BLOCK and atom.unit is None:
        yield "mb", MAX_BLOCK, f"pack=1 lets all rows share a panel: needs mb={MAX_BLOCK}, got {{mb}}"
    if not (constant or pack):
        yield "near", 0, "near={near} needs a packed operand to stream from"
    if not (constant or pack == AT_ONCE):
        yield "ahead", 0, "ahead={ahead} needs every panel packed"
    if values["mr"] == 1:
        yield "tail", 0, "tail=1 needs mr above 1: tiles of one row leave no ragged rest"
    if values["nv"] == 1 and values["edge"] == 1:
        yield "edge", 0, "edge=1 needs nv above 1: panels of one vector leave no fewer"
    elif constant and values.get("panel", WIDE) == OF_VECTORS and "n" in product.dynamic:
        yield "edge", 1, "panel=2 has no vectors past the last column: a dynamic n needs edge=1"
    if pack == product.pack_of_dots:
        # Both operands are read in place, by vectors along k (dots.py).
        for name, value in ALONG_K.items():
            yield name, value, f"pack={pack} reads both operands along k: needs {name}={value}, got {{{name}}}"


def of_unit(values: Mapping[str, int], atom: Atom, product: Product) -> dict[str, int]:
    """What a kernel has that multiplies by a matrix unit: whole tiles, operands that are packed or lie as if they were,
    and a row of the next panel at least for each multiplication, if it asks for any."""
    rows = max(values["mr"] // atom.rows, 1) * atom.rows
    tail = values["tail"] if rows > atom.rows else 0
    supply = {
        "rows": ROWS_IN_PLACE if product.left.lies_in_words else ROWS_PACKED,
        "pack": values["pack"] if product.right.is_packed_ahead else AT_ONCE,
    }
    ahead = min(values["ahead"], atom.steps)
    return {"mr": rows, "tail": tail, "ahead": ahead, **dict.fromkeys(("near", "fetch", "edge"), 0), "ku": 1, **supply}


def keeps_totals(values: Mapping[str, int], atom: Atom, columns: int | None, hardware: Hardware) -> bool:
    """Whether totals of a block of rows and so many columns, None where they are not known ahead, stay in memory of
    their own between chunks of k, where tiles of a matrix unit go and come as they are."""
    if atom.unit is None or not values["kc"] or columns is None:
        return False
    width = values["nv"] * hardware.lanes()
    return (values["mb"] + 1) * values["mr"] * -(-columns // width) * width * TOTAL_BYTES <= MAX_KEPT_BYTES
