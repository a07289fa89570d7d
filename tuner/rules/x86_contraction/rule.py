"""The rule for two-operand contractions ``out[m, n] = sum_k left[m, k] * right`` on x86 vector units.

The right operand is ``[k, n]`` or ``[n, k]``; all three may have a batch axis ``b`` in front. Axes of a micro-kernel
(``X86Contraction.space`` lists their choices):

========  =====================================================================================================
``mr``    rows of the register tile
``nv``    vectors in a row of the register tile; ``nr = nv * lanes`` columns, also the width of a packed panel
``mb``    tiles that share a panel of the right operand before the next panel is taken: a block of ``mb * mr`` rows
``kc``    steps of k that a block goes through before the next ones, so that its operands stay in cache; 0: all
``ku``    steps of k unrolled
``near``  steps of k by which the packed operand is prefetched within its stream; 0: not
``ahead`` the next panel is prefetched while this one is used, a row of it every so many steps of k; 0: not
``fetch`` 1: the output's lines are prefetched before a tile is computed; 0: not
``rows``  1: the rows of a block are packed before they are used; 0: they are read in place
``tail``  1: a ragged rest of rows has exact code for each height; 0: it is padded inside the tile
``edge``  1: a ragged last panel of a dynamic n has code for each number of vectors; 0: it has all ``nv`` of them
``pack``  of an operand that is new at every call, 1: each panel is packed before it is used; 2: all panels are, at
          the start; 0: it is read in place (if it lies [n, k], by vectors along k: ``nv`` are columns then).
          A constant operand is packed ahead of time, or, having few columns, read so in place: 3
``tb``    threads along the batch
``tn``    threads along n; ``threads / (tb * tn)`` along m
``group`` elements of k in one step, where there are instructions for several (tuner/rules/intrinsics.py)
========  =====================================================================================================

No choice depends on a shape: registers, caches and the size of the code bound them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.errors import IllegalKernel
from tuner.program.target import Hardware, Target
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.rules._base import Extents, Refused
from tuner.rules.layout import Layout, PanelLayout
from tuner.rules.space import Axis, MicroKernel, SearchSpace
from tuner.rules.x86_contraction import prior
from tuner.rules.x86_contraction.pattern import (
    DTYPE,
    Contraction,
    Product,
    contraction_of,
    group_of,
    holds_partial,
    match,
)  # fmt: skip

MAX_BODY = 768
"""Fused multiply-adds in the unrolled code of one kernel, all its ragged variants together: bounds compile time and
keeps the loops in the instruction cache."""
WIDEST_BLOCK = 256
MOST_PACKED_ROWS = 512
LOOP_ADDRESSES = 5
"""Registers of the stack, the panel, the output and the loop's counters."""
ALONG_K = {"mb": WIDEST_BLOCK, "kc": 0, "ku": 1, "near": 0, "ahead": 0, "fetch": 0, "rows": 0, "tail": 0, "edge": 0}
"""The canonical values of the axes that are don't-care where vectors run along k."""


class X86Contraction:
    """See the module's text for the axes; ``prior`` for the theory, ``emit`` for the code."""

    name = "x86_contraction"
    version = 2
    is_fallback = False

    def match(self, workload: Workload, target: Target) -> Mapping[str, str] | Refused:
        if target.kind != "llvm":
            return Refused(f"{target.kind} is not a CPU that LLVM generates code for")
        contraction = match(workload)
        if isinstance(contraction, Refused):
            return contraction
        if not contraction.dots(target.hardware):
            pair = f"{contraction.left_dtype} by {contraction.right_dtype}"
            return Refused(f"{target.mcpu} has no instruction that multiplies {pair} as the operands lie")
        return contraction.roles

    def workspace_bytes(self, task: SearchTask) -> int:
        return 0

    def space(self, task: SearchTask) -> SearchSpace:
        hardware, workload = task.known_target.hardware, task.workload
        contraction = contraction_of(workload)
        axes = (
            *tile_axes(workload.sizes[contraction.k].constant),
            Axis("rows", "rows are packed at each call", (0, 1)),
            *ragged_axes("n" in contraction.dynamic),
            Axis("pack", "panels are packed at each call", _packings(task, contraction)),
            *thread_axes(task.threads, contraction.batch is not None),
            *_group_axes(contraction, hardware),
        )

        def checked(kernel: MicroKernel) -> None:
            check(kernel, contraction, task.threads, hardware)
            _check_words(kernel, contraction)

        return SearchSpace(
            self.name,
            self.version,
            axes,
            check=checked,
            canonicalise=lambda values: _canonical_words(canonicalised(values, contraction), contraction),
        )

    def safe_kernel(self, task: SearchTask) -> MicroKernel:
        """A square-ish tile, three quarters of the registers, small blocks: good at every size, best at few."""
        wide = task.known_target.hardware.vector_registers >= 32
        contraction, hardware = contraction_of(task.workload), task.known_target.hardware
        pack = 0 if contraction.right_is_constant else 1
        values = {"mr": 8 if wide else 4, "nv": 3 if wide else 2, "mb": WIDEST_BLOCK if pack else 8, "kc": 0, "ku": 1}
        values |= {"near": 0, "ahead": 0, "fetch": 0, "rows": 0, "tail": 0, "edge": 0, "pack": pack}
        values |= {"tb": task.threads, "tn": 1} if contraction.batch else {"tb": 1, "tn": task.threads}
        values |= {axis.name: max(axis.choices) for axis in _group_axes(contraction, hardware)}
        if contraction.right_is_constant and contraction.pack_of_dots in _packings(task, contraction):
            values |= ALONG_K | {"mr": 4 if wide else 3, "nv": 4 if wide else 3, "pack": contraction.pack_of_dots}
        return self.space(task).kernel(_canonical_words(values, contraction))

    def prior_latency_s(
        self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents
    ) -> NDArray[np.float64]:
        return prior.latency_s(task.known_target.hardware, task, kernels, extents)

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        return prior.features(task.known_target.hardware, task, kernels, extents)

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        contraction = contraction_of(task.workload)
        if not contraction.right_is_constant or kernel["pack"] == contraction.pack_of_dots:
            return {}
        hardware = task.known_target.hardware
        dot = contraction.dots(hardware)[group_of(kernel)]
        return {contraction.right: PanelLayout(kernel["nv"] * hardware.lanes(), dot.group, dot.offset)}

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        from tuner.rules.x86_contraction.emit import emit  # noqa: PLC0415 - the one import that needs TVM

        return emit(task, kernel, self.layouts(task, kernel), name)


def tile_axes(steps: int | None) -> tuple[Axis, ...]:
    """The register tile and the loops around it. ``steps`` of k, None where it is dynamic: a chunk that holds all of a
    fixed k is no other than 0."""
    chunks = (0, *(kc for kc in (128, 192, 256, 384, 512, 768) if steps is None or kc < steps))
    return (
        Axis("mr", "rows of the register tile", (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14)),
        Axis("nv", "vectors in a row of the register tile", (1, 2, 3, 4, 5, 6)),
        Axis("mb", "tiles that share a panel", (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, WIDEST_BLOCK)),
        Axis("kc", "steps of k in a chunk", chunks),
        Axis("ku", "steps of k unrolled", (1, 2, 4, 8)),
        Axis("near", "steps of k prefetched in the stream", (0, 8, 16, 32)),
        Axis("ahead", "steps of k to a row of the next panel", (0, 1, 2, 4, 8, 16, 32)),
        Axis("fetch", "the output is prefetched", (0, 1)),
    )


def ragged_axes(is_dynamic: bool) -> tuple[Axis, ...]:
    """Code for ragged ends; ``is_dynamic``: whether the extent of n is."""
    return (
        Axis("tail", "ragged rows have exact code", (0, 1)),
        Axis("edge", "ragged columns have exact code", (0, 1) if is_dynamic else (0,)),
    )


def thread_axes(threads: int, has_batch: bool) -> tuple[Axis, ...]:
    """How threads share the work."""
    shares = tuple(t for t in range(1, threads + 1) if threads % t == 0)
    return (
        Axis("tb", "threads along the batch", shares if has_batch else (1,)),
        Axis("tn", "threads along n", shares),
    )


def _packings(task: SearchTask, contraction: Contraction) -> tuple[int, ...]:
    """Choices of ``pack``. Vectors along k waste no lanes on columns that a panel of a vector's width does not have."""
    hardware, dots = task.known_target.hardware, contraction.pack_of_dots
    choices = (0,) if contraction.right_is_constant else (0, 1, 2)
    # Sums across vectors go through the output (dots.py).
    if contraction.out_dtype != DTYPE or 1 not in contraction.dots(hardware):
        return tuple(choice for choice in choices if choice != dots)
    columns = task.workload.sizes[contraction.n].constant
    is_thin = contraction.right_is_constant and columns is not None and columns <= hardware.lanes()
    return (*choices, dots) if dots is not None and is_thin else choices


def _group_axes(contraction: Contraction, hardware: Hardware) -> tuple[Axis, ...]:
    """The instructions to choose from; no axis where every step is one element."""
    groups = tuple(contraction.dots(hardware))
    return () if groups == (1,) else (Axis("group", "elements of k per instruction", groups),)


def _canonical_words(values: Mapping[str, int], contraction: Contraction) -> dict[str, int]:
    """The values with rows packed where the last word of k may be ragged, and k unsplit where the output cannot hold
    partial sums."""
    canonical = dict(values)
    if "group" in canonical and values["pack"] == contraction.pack_of_dots:
        canonical["group"] = 1
    group = canonical.get("group", 1)
    if group > 1 and (contraction.depth is None or contraction.depth % group):
        canonical["rows"] = 1
    is_whole = contraction.depth is not None and canonical["kc"] * group >= contraction.depth
    if is_whole or not holds_partial(contraction.out_dtype):
        canonical["kc"] = 0
    return canonical


def _check_words(kernel: MicroKernel, contraction: Contraction) -> None:
    if dict(kernel.values) != _canonical_words(dict(kernel.values), contraction):
        text = f"kc={kernel['kc']} rows={kernel['rows']} group={group_of(kernel)}"
        raise IllegalKernel(f"{text}: an output of {contraction.out_dtype} needs kc=0, a ragged last word rows=1")


def canonicalised(values: Mapping[str, int], contraction: Product) -> dict[str, int]:
    """The values with one choice for axes that are don't-care beside the others."""
    canonical, pack = dict(values), values["pack"]
    constant = contraction.right_is_constant
    if pack == contraction.pack_of_dots:
        canonical |= ALONG_K
    if pack == 1:
        canonical["mb"] = WIDEST_BLOCK
    if not (constant or pack):
        canonical["near"] = 0
    if not (constant or pack == 2):
        canonical["ahead"] = 0
    if values["mr"] == 1:
        canonical["tail"] = 0
    if values["nv"] == 1:
        canonical["edge"] = 0
    return canonical


def check(kernel: MicroKernel, contraction: Product, threads: int, hardware: Hardware, copies: int = 1) -> None:
    """Raises IllegalKernel for what the hardware cannot carry. ``copies``: how often all of the code is written."""
    _check_size(kernel, hardware, copies)
    if "k" in contraction.dynamic:
        _check_addresses(kernel, hardware)
    _check_supply(kernel, contraction.right_is_constant)
    # Both operands are read in place, by vectors along k (dots.py).
    if kernel["pack"] == contraction.pack_of_dots:
        _check_dots(kernel)
    if threads % (kernel["tb"] * kernel["tn"]):
        raise IllegalKernel(f"tb={kernel['tb']} tn={kernel['tn']} do not divide {threads} threads")


def _check_size(kernel: MicroKernel, hardware: Hardware, copies: int) -> None:
    """Registers and code."""
    mr, nv, ku, edge = kernel["mr"], kernel["nv"], kernel["ku"], kernel["edge"]
    # Every accumulator and one row of the right operand are live at once, and a broadcast beside them.
    need = mr * nv + nv + 1
    if need > hardware.vector_registers:
        raise IllegalKernel(f"mr={mr} nv={nv} needs {need} vector registers, there are {hardware.vector_registers}")
    # The compiler loads rows of an unrolled loop ahead of their use: too many and it spills accumulators.
    if ku * nv > hardware.vector_registers:
        raise IllegalKernel(f"ku={ku} nv={nv} load {ku * nv} vectors in a turn, limit {hardware.vector_registers}")
    if kernel["tail"] and mr == 1:
        raise IllegalKernel("tail=1 needs mr above 1: tiles of one row leave no ragged rest")
    if edge and nv == 1:
        raise IllegalKernel("edge=1 needs nv above 1: panels of one vector leave no fewer")
    body = ku * mr * nv
    body = body * (mr + 1) // 2 if kernel["tail"] else 2 * body
    body = body * (nv + 3) // 2 if edge else body
    limit = MAX_BODY * (2 if edge or copies > 1 else 1)
    is_plain = copies > 1 and (ku, kernel["tail"], edge) == (1, 0, 0)
    if body * copies > limit and not is_plain:
        body, text = body * copies, f"ku={ku} tail={kernel['tail']} edge={edge}"
        raise IllegalKernel(f"{text} unroll {body} operations, limit {limit}")


def _check_addresses(kernel: MicroKernel, hardware: Hardware) -> None:
    """Rows that are read in place, a distance apart that is not known when code is generated.

    Each has an address of its own. With more than there are registers for, the compiler loads an address once in a
    turn, the row's elements of all its steps with it, and spills accumulators for these: half the speed.
    """
    mr, nv, steps = kernel["mr"], kernel["nv"], max(kernel["ku"], kernel["ahead"])
    if kernel["rows"] or steps == 1 or mr <= hardware.address_registers - LOOP_ADDRESSES:
        return
    need = mr * nv + nv + mr
    if need > hardware.vector_registers:
        text = f"mr={mr} nv={nv} rows=0 holds {need} vectors in a turn of {steps} steps"
        remedy = "rows a dynamic distance apart need turns of one step (ku=1 ahead=0 or 1), or rows=1"
        raise IllegalKernel(f"{text}, limit {hardware.vector_registers}: {remedy}")


def _check_supply(kernel: MicroKernel, constant: bool) -> None:
    """Packing and prefetching."""
    mr, mb, pack = kernel["mr"], kernel["mb"], kernel["pack"]
    if kernel["rows"] and mb * mr > MOST_PACKED_ROWS:
        raise IllegalKernel(f"mb={mb} mr={mr} packs {mb * mr} rows, limit {MOST_PACKED_ROWS}")
    if pack == 1 and mb != WIDEST_BLOCK:
        raise IllegalKernel(f"pack=1 lets all rows share a panel: needs mb={WIDEST_BLOCK}, got {mb}")
    if kernel["near"] and not (constant or pack):
        raise IllegalKernel(f"near={kernel['near']} needs a packed operand to stream from")
    if kernel["ahead"] and not (constant or pack == 2):
        raise IllegalKernel(f"ahead={kernel['ahead']} needs every panel packed")
    if 0 < kernel["ahead"] < kernel["ku"]:
        raise IllegalKernel(f"ahead={kernel['ahead']} needs whole turns of ku={kernel['ku']} steps")


def _check_dots(kernel: MicroKernel) -> None:
    for name, value in ALONG_K.items():
        if kernel[name] != value:
            given = f"pack={kernel['pack']} reads both operands along k"
            raise IllegalKernel(f"{given}: needs {name}={value}, got {kernel[name]}")
