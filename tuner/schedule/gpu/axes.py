"""The space of micro-kernels of a program on a GPU: the axes of the tiles that its segments have, and what the hardware
can carry of it. docs/decisions/0069 says what the axes of products are for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial

from tuner.errors import IllegalKernel
from tuner.program.target.cuda import Gpu
from tuner.schedule.gpu.attention import ROWS_OF_WARP, AttentionTile
from tuner.schedule.gpu.costs import Rows, Stages
from tuner.schedule.gpu.plan import Choices
from tuner.schedule.gpu.program import GpuProgram
from tuner.schedule.gpu.rows import RowTile
from tuner.schedule.gpu.stages import Blocks
from tuner.schedule.gpu.tiling import MAX_ROWS, MIN_STEPS, Tiling
from tuner.schedule.space import Axis, MicroKernel, SearchSpace

PRECISIONS = ("ieee", "tf32", "tf32x3")
"""By number. TF32 alone is less exact than float32 is promised to be: only where the workload says so."""
PACKS = ("", "nk", "kn")
IEEE, TF32, TF32X3 = range(len(PRECISIONS))
TILES = (16, 32, 64, 128, 256)
FEW_ROWS = (1, 2, 4)
"""Rows of tiles whose products are added one by one."""
ROW_BLOCKS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
LEAST_TILE, MOST_TILE = {8: 128 * 64}, {2: 64 * 32, 4: 256 * 128}
"""By warps the elements of a tile of a product."""
SHARING_WARPS = 4
"""Warps of attention that may share rows: more of them bring more at once, where there are few rows."""
DEFAULTS: Mapping[str, int] = {
    "block_m": 64, "block_n": 64, "block_k": 32, "split_k": 1, "warps": 4, "stages": 3, "precision": TF32X3,
    "descriptors": 0, "parts": 1, "pack": 0,
    "attention_rows": 64, "attention_columns": 32, "attention_depth": 32, "attention_values": 128,
    "attention_warps": 4, "attention_stages": 2, "attention_precision": TF32X3,
    "rows": 4, "row_block": 1024, "row_warps": 4, "outputs": 256, "reduced": 16, "stage_warps": 4,
}  # fmt: skip
"""The values of the default kernel: an axis has the largest choice up to them. All axes that there are, in order."""


def axes_of(program: GpuProgram, gpu: Gpu) -> tuple[Axis, ...]:
    """The axes of a program's kernels: those of the kinds of segments that it has."""
    found = [axis for kind in AXES if kind in program.kinds for axis in AXES[kind](program, gpu)]
    return tuple(axis for axis in found if axis.choices)


def space_of(name: str, version: int, program: GpuProgram, gpu: Gpu) -> SearchSpace:
    axes = axes_of(program, gpu)
    # A search asks for the same points again and again.
    problem = lru_cache(maxsize=65536)(partial(_problem, program=program, gpu=gpu))
    check, canonical = partial(_check, problem=problem), partial(_canonical, axes=axes, has_cores=_has_cores(program))
    return SearchSpace(name, version, axes, check, canonical)


def default_kernel(space: SearchSpace) -> MicroKernel:
    """A kernel of middling tiles; smaller ones where these do not fit."""
    for divisor in (1, 2, 4, 8, 16):
        wanted = {name: value // divisor if "block" in name else value for name, value in DEFAULTS.items()}
        if (kernel := space.legal({axis.name: _nearest(axis, wanted[axis.name]) for axis in space.axes})) is not None:
            return kernel
    return space.smallest()[0]


def choices_of(kernel: MicroKernel, gpu: Gpu, is_wide: bool = False) -> Choices:
    """What a micro-kernel is to the emitters."""
    of = {**DEFAULTS, **dict(kernel.values)}
    precision = PRECISIONS[of["precision"]]
    # Few rows are the columns of an instruction on tiles.
    is_swapped = of["block_m"] < gpu.architecture.matrix_rows <= of["block_n"] and precision != PRECISIONS[IEEE]
    has_dot = of["block_m"] >= MIN_STEPS
    product = Tiling(
        of["block_m"], of["block_n"], of["block_k"], split_k=of["split_k"], num_warps=of["warps"],
        num_stages=of["stages"], precision=precision, swap=is_swapped and has_dot,
        descriptors=bool(of["descriptors"]), dot=has_dot, parts=of["parts"], pack=PACKS[of["pack"]],
    )  # fmt: skip
    attention = AttentionTile(
        of["attention_rows"], of["attention_columns"], of["attention_depth"], of["attention_values"],
        of["attention_warps"], of["attention_stages"], PRECISIONS[of["attention_precision"]],
    )  # fmt: skip
    rows = RowTile(of["rows"], of["row_block"], of["row_warps"])
    return Choices(product, attention, rows, Blocks(of["outputs"], of["reduced"], of["stage_warps"]), is_wide)


def _nearest(axis: Axis, wanted: int) -> int:
    return max((choice for choice in axis.choices if choice <= wanted), default=axis.choices[0])


# -- axes by kind of segment ------------------------------------------------------------------------------------------
def _of_products(program: GpuProgram, gpu: Gpu) -> Iterator[Axis]:
    products = program.products
    has_cores, is_float32 = _has_cores(program), any(each.is_float32 for each in products)
    has_sums = any(each.product.total == "float32" and each.product.index is None for each in products)
    anew = {pack: [each for each in products if each.is_packed_anew(pack)] for pack in PACKS[1:]}
    # Tensor cores take float16 either way; float32 is multiplied by FMA along columns.
    packs = [PACKS.index("nk")] * bool(anew["nk"]) + [PACKS.index("kn")] * any(each.is_float32 for each in anew["kn"])
    yield Axis("block_m", "rows of a tile; of less than 16 products are added one by one",
               (*FEW_ROWS, *TILES) if has_cores else (*FEW_ROWS, 8, MAX_ROWS))  # fmt: skip
    yield Axis("block_n", "columns of a tile, or of each of its parts", TILES if has_cores else (4, 8, MAX_ROWS))
    yield Axis("block_k", "steps of k that are loaded at once", TILES)
    yield Axis("split_k", "shares of k, which a second kernel adds", (1, 2, 4, 8))
    yield Axis("warps", "warps of a program", (2, 4, 8))
    yield Axis("stages", "steps whose loads are under way, and the one that is multiplied", (2, 3, 4, 5))
    if is_float32:
        yield _precision("precision", program)
    if gpu.architecture.has_tma and any(each.has_descriptors for each in products):
        yield Axis("descriptors", "tiles are brought by tensor descriptors", (0, 1))
    if has_cores and has_sums:
        yield Axis("parts", "equal parts of a tile side by side", (1, 3))
    if packs:
        yield Axis("pack", "constants lie 0: as they are, 1: along k, 2: along columns", (0, *packs))


def _of_attention(program: GpuProgram, gpu: Gpu) -> Iterator[Axis]:
    attentions = program.attentions
    yield Axis("attention_rows", "rows of a tile of attention", (16, 32, 64, 128))
    yield Axis("attention_columns", "columns of a block of scores", (16, 32, 64, 128))
    if not all(each.keeps_q for each in attentions):
        yield Axis("attention_depth", "elements of q and k that are multiplied at once", (16, 32, 64))
    widest = max(each.e or TILES[-1] for each in attentions)
    if widest > TILES[2]:
        values = (64, 128, 256)
        yield Axis("attention_values", "columns of the output of a program", values[: 1 + _first(values, widest)])
    yield Axis("attention_warps", "warps of a program of attention", (1, 2, 4, 8))
    yield Axis("attention_stages", "blocks whose loads are under way, and the one that is computed", (1, 2, 3, 4))
    if any(each.is_float32 for each in attentions):
        yield _precision("attention_precision", program)


def _precision(name: str, program: GpuProgram) -> Axis:
    choices = (IEEE, TF32, TF32X3) if program.workload.tf32 else (IEEE, TF32X3)
    return Axis(name, "float32 by 0: multiply-adds, 1: TF32, 2: three products of TF32", choices)


def _of_rows(program: GpuProgram, gpu: Gpu) -> Iterator[Axis]:
    counts = [each.count for each in program.segments if isinstance(each, Rows)]
    most = ROW_BLOCKS[_first(ROW_BLOCKS, max(counts))] if all(counts) else ROW_BLOCKS[-1]
    if any(each.frame.rows for each in program.segments if isinstance(each, Rows)):
        yield Axis("rows", "rows of a program", (1, 2, 4, 8, 16))
    yield Axis("row_block", "columns of a tile of rows", tuple(block for block in ROW_BLOCKS if block <= most))
    yield Axis("row_warps", "warps of a program of rows", (1, 2, 4, 8))


def _of_stages(program: GpuProgram, gpu: Gpu) -> Iterator[Axis]:
    stages = [each for each in program.segments if isinstance(each, Stages)]
    yield Axis("outputs", "elements of an output that a program computes", (32, 64, 128, 256, 512, 1024))
    if any(each.is_reduction and not each.is_unrolled for each in stages):
        yield Axis("reduced", "elements of a reduction that are loaded at once", (4, 8, 16, 32, 64, 128))
    yield Axis("stage_warps", "warps of a program of other stages", (1, 2, 4, 8))


AXES = {"product": _of_products, "attention": _of_attention, "rows": _of_rows, "stages": _of_stages}


def _first(choices: tuple[int, ...], least: int) -> int:
    """The place of the first choice that is not less; of the last one where all are."""
    return next((at for at, choice in enumerate(choices) if choice >= least), len(choices) - 1)


def _has_cores(program: GpuProgram) -> bool:
    """Whether there are instructions on tiles for one of its products."""
    return any(each.has_tensor_cores for each in program.products)


# -- what is legal ----------------------------------------------------------------------------------------------------
def _canonical(values: Mapping[str, int], axes: tuple[Axis, ...], has_cores: bool) -> dict[str, int]:
    """Tiles without instructions on them have no use for what feeds these."""
    kept = dict(values)
    if "block_m" in kept and not (has_cores and kept["block_m"] >= MIN_STEPS):
        first = {axis.name: axis.choices[0] for axis in axes}
        kept |= {name: first[name] for name in ("stages", "precision", "descriptors", "parts") if name in kept}
    return kept


def _check(kernel: MicroKernel, problem: Callable[[MicroKernel], str]) -> None:
    if found := problem(kernel):
        raise IllegalKernel(found)


def _problem(kernel: MicroKernel, program: GpuProgram, gpu: Gpu) -> str:
    """Why the hardware does not carry a kernel; nothing where it does."""
    of, choices = dict(kernel.values), choices_of(kernel, gpu)
    if "block_m" in of and choices.product.dot:
        tile = of["block_m"] * of["block_n"] * of.get("parts", 1)
        least, most = LEAST_TILE.get(of["warps"], 0), MOST_TILE.get(of["warps"], tile)
        if not least <= tile <= most and _has_cores(program):
            return f"{of['warps']} warps for a tile of {of['block_m']} x {of['block_n']}"
    warps = of.get("attention_warps", 0)
    if 0 < warps < SHARING_WARPS and of["attention_rows"] >= SHARING_WARPS * ROWS_OF_WARP:
        return (
            f"{warps} warps for {of['attention_rows']} rows of attention, which a group of {SHARING_WARPS} multiplies"
        )
    if warps > SHARING_WARPS and warps * ROWS_OF_WARP > of["attention_rows"]:
        return f"{warps} warps for {of['attention_rows']} rows of attention"
    need = program.needs(choices, gpu)
    return "" if need is None else f"{kernel} needs {need}"
