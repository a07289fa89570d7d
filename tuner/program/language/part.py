"""A part of a workload: some of its stages, over the symbols that it has there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tuner.program.language.dims import DimExpr
from tuner.program.language.expr import reads
from tuner.program.language.program import Program
from tuner.program.language.shapes import Shapes
from tuner.program.language.workload import Workload


@dataclass(frozen=True, repr=False, kw_only=True)
class Part(Workload):
    """Stages of ``whole``. It is no workload to be stored: axes, tensors and symbols have the names of the whole."""

    whole: Workload = field()

    __hash__ = Workload.__hash__

    @cached_property
    def symbol_exprs(self) -> Mapping[str, DimExpr]:
        return self.whole.symbol_exprs

    @cached_property
    def inference(self) -> Shapes:
        # A tensor may be larger than what these stages read of it.
        shapes = {name: self.whole.tensors[name].dims for name in self.program.inputs}
        return Shapes(self.program, self.sizes, shapes, dict(self.padding))


def part_of(whole: Workload, stages: Sequence[int]) -> Part:
    """The stages at these positions. Its outputs are what other stages read of them, or the whole hands out; a constant
    that other stages read, too, is none here: it is packed for nobody."""
    program = whole.program
    own = [program.stages[at] for at in stages]
    others = (stage for at, stage in enumerate(program.stages) if at not in stages)
    elsewhere = {read.tensor for stage in others for read in reads(stage.body)}
    outputs = tuple(stage.tensor for stage in own if stage.tensor in elsewhere or stage.tensor in program.outputs)
    part = Program(tuple(own), outputs, "\n".join(map(str, own)))
    names, sizes = set(part.tensors), {*part.axes, *part.sizes}
    # What others read outside of a tensor that is computed here does not concern these stages.
    read = {each.tensor for each in part.reads}
    return Part(
        program=part,
        extents=tuple((name, dim) for name, dim in whole.extents if name in sizes),
        dtypes=tuple((name, dtype) for name, dtype in whole.dtypes if name in names),
        constants=tuple(name for name in whole.constants if name in names and name not in elsewhere),
        padding=tuple((name, value) for name, value in whole.padding if name in read),
        label=f"{', '.join(outputs)} of {whole}",
        whole=whole,
    )
