"""A workload as kernels for a GPU: its stages in segments, each what one of the emitters takes.

The longest run of stages that is an attention, a contraction, a row-wise or an elementwise program becomes one segment;
a stage that is none of these is one by itself. What one segment gives another is kept in scratch memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tuner.program.language.dims import DimExpr
from tuner.program.language.expr import reads
from tuner.program.language.notation import Stage
from tuner.program.language.program import Program
from tuner.program.language.rounding import rounded_weights
from tuner.program.language.workload import Workload
from tuner.schedule.gpu.attention import SHORT, AttentionEmitter, AttentionTile
from tuner.schedule.gpu.contraction import Contraction, contractions
from tuner.schedule.gpu.module import Launch, Module, Pack, Scratch, host_size
from tuner.schedule.gpu.product import ProductEmitter
from tuner.schedule.gpu.rows import RowEmitter, RowTile, row_frame
from tuner.schedule.gpu.stages import Blocks, emit_stages, is_one_kernel
from tuner.schedule.gpu.tiling import Tiling
from tuner.schedule.rule import NoMatch
from tuner.schedule.rules.attention import pattern
from tuner.schedule.rules.attention.chain import Chain
from tuner.schedule.rules.rows.frame import Frame


@dataclass(frozen=True)
class Choices:
    """A micro-kernel of a whole program: the tile of each kind of segment. ``is_wide``: offsets need 64 bits."""

    product: Tiling = field(default_factory=Tiling)
    attention: AttentionTile = field(default_factory=AttentionTile)
    rows: RowTile = field(default_factory=RowTile)
    blocks: Blocks = field(default_factory=Blocks)
    is_wide: bool = False


class Segment(Workload):
    """Some stages of a workload, whose extents are over its symbols, under the names that they have there."""

    @cached_property
    def symbol_exprs(self) -> Mapping[str, DimExpr]:
        return {name: DimExpr.var(name) for name in sorted(self.variables)}


@dataclass(frozen=True)
class Found:
    """What a segment is: one of these. ``rounded``: sums of the whole workload whose weights may be rounded; what a
    segment of it gives is not all that decides this."""

    workload: Workload
    chain: Chain | None = None
    contractions: tuple[Contraction, ...] = ()
    frame: Frame | None = None
    rounded: frozenset[str] = frozenset()

    @property
    def kind(self) -> str:
        """The emitter that takes it."""
        return "attention" if self.chain else "product" if self.contractions else "rows" if self.frame else "stages"

    @property
    def splits_weights(self) -> bool:
        """Whether weights of attention are multiplied as two numbers of the values' dtype: one would round them."""
        if self.chain is None or self.workload.tensors[self.chain.v.tensor].dtype not in SHORT:
            return False
        return not any(stage.tensor in self.rounded for stage in self.workload.program.stages)


def segments(workload: Workload) -> tuple[Found, ...]:
    """What a workload is made of, in order."""
    dtypes = {name: tensor.dtype for name, tensor in workload.tensors.items()}
    rounded = frozenset(rounded_weights(workload.program, dtypes))
    return tuple(replace(found, rounded=rounded) for found in _segments(workload))


def _segments(workload: Workload) -> tuple[Found, ...]:
    whole = _found(workload)
    if whole is not None:
        return (whole,)
    result, stages, at = list[Found](), workload.program.stages, 0
    while at < len(stages):
        for end in range(len(stages), at, -1):
            found = _found(_part(workload, at, end)) if end - at < len(stages) else None
            if found is not None:
                break
        else:
            end = at + 1
            found = Found(_part(workload, at, end))
        assert found is not None
        result.append(found)
        at = end
    return tuple(result)


def emit(workload: Workload, choices: Choices | None = None) -> Module:
    """The module of a workload. Raises ValueError for tiles that a program does not take."""
    choices = choices or Choices()
    launches, scratch, packs, found = list[Launch](), list[Scratch](), list[Pack](), segments(workload)
    for number, segment in enumerate(found):
        own, more, packed = _emitted(segment, choices, f"kernel_{number}")
        launches += own
        scratch += more
        packs += packed
    kept = {stage.tensor for segment in found for stage in segment.workload.program.stages}
    for name in workload.program.intermediates:
        if name in kept and any(name in segment.workload.program.outputs for segment in found):
            tensor = workload.tensors[name]
            scratch.append(Scratch(name, tensor.dtype, host_size(workload, workload.program.stage[name].axes)))
    about = {"kinds": "+".join(segment.kind for segment in found)}
    return Module(workload, tuple(launches), tuple(dict.fromkeys(scratch)), about, tuple(packs), choices.is_wide)


def _emitted(found: Found, choices: Choices, name: str) -> tuple[list[Launch], list[Scratch], list[Pack]]:
    workload, is_wide = found.workload, choices.is_wide
    if found.chain is not None:
        return (
            [AttentionEmitter(workload, found.chain, choices.attention, name, is_wide, found.splits_weights).launch()],
            [],
            [],
        )
    if found.contractions:
        launches, scratch, packs = list[Launch](), list[Scratch](), list[Pack]()
        for number, product in enumerate(found.contractions):
            own = name if len(found.contractions) == 1 else f"{name}_{number}"
            emitter = ProductEmitter(product, choices.product, own, is_wide)
            more = emitter.launches()
            launches, scratch = launches + more[0], scratch + more[1]
            packs += emitter.packs.values()
        return launches, scratch, packs
    if found.frame is not None:
        rows = RowEmitter(workload, found.frame, choices.rows, name, is_wide)
        is_looped = not rows.count.isdecimal() or int(rows.count) > choices.rows.block
        return [rows.launch(is_looped)], [], []
    return [emit_stages(workload, workload.program.stages, choices.blocks, name, is_wide)], [], []


def _found(workload: Workload) -> Found | None:
    """What all stages of a workload are together; None where no emitter takes them in one kernel."""
    chain = pattern.match(workload)
    # Stages of positions are kernels of their own.
    if not isinstance(chain, NoMatch) and not chain.positions:
        return Found(workload, chain=chain)
    products = contractions(workload)
    if products:
        return Found(workload, contractions=products)
    frame = row_frame(workload)
    if frame is not None and not _has_products(workload):
        return Found(workload, frame=frame)
    stages = workload.program.stages
    return Found(workload) if is_one_kernel(stages) and not _is_padded(workload, stages) else None


def _has_products(workload: Workload) -> bool:
    """Whether one of several stages is a product by itself, which fills tiles better than rows do."""
    stages = workload.program.stages
    each = (_part(workload, at, at + 1) for at, stage in enumerate(stages) if stage.reducer)
    return len(stages) > 1 and any(map(contractions, each))


def _is_padded(workload: Workload, stages: Sequence[Stage]) -> bool:
    return len(stages) > 1 and any(stage.tensor in dict(workload.padding) for stage in stages)


def _part(workload: Workload, first: int, end: int) -> Workload:
    """The stages from ``first`` to before ``end``."""
    stages = workload.program.stages[first:end]
    later = {read.tensor for stage in workload.program.stages[end:] for read in reads(stage.body)}
    outputs = [s.tensor for s in stages if s.tensor in workload.program.outputs or s.tensor in later]
    program = Program(stages, tuple(outputs))
    names = set(program.tensors)
    return Segment(
        program,
        tuple(workload.sizes.items()),
        tuple((name, dtype) for name, dtype in workload.dtypes if name in names),
        tuple(name for name in workload.constants if name in names),
        tuple((name, value) for name, value in workload.padding if name in names),
        tuple((name, workload.tensors[name].dims) for name in program.inputs),
        label=str(workload),
    )
