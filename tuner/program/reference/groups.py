"""Rows that look up the same part of a tensor, brought together: those of one expert are a matrix product. Each by
itself would read all of its expert's weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.program.language.expr import Axis, Expr, Read, reads, walk
from tuner.program.language.program import Program
from tuner.program.reference.blocks import Box

Array = NDArray[Any]
MAX_GROUPS = 1024
"""More are left as they are: each costs some calls of NumPy."""


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Values of ``axis`` in an order in which those that look up the same stand together.

    ``lookup``: what is looked up by. ``starts``: where each group begins in that order, and the end of the last one.
    ``dims``: by tensor the dims that are ``axis``.
    """

    axis: str
    lookup: Read
    order: Array
    starts: tuple[int, ...]
    dims: Mapping[str, tuple[int, ...]]

    @staticmethod
    def of(program: Program, sizes: Mapping[str, int], inputs: Mapping[str, Array]) -> Groups | None:
        """None where nothing is looked up by an input over one axis whose values may change places."""
        for lookup in (index for read in program.reads for index in read.indices):
            match lookup:
                case Read(tensor=name, indices=(Axis(name=axis),)) if name in inputs:
                    dims = _dims(program, axis)
                    if dims is not None and {inputs[t].shape[d] for t in inputs for d in dims[t]} == {sizes[axis]}:
                        order = np.argsort(inputs[name], kind="stable")
                        starts = (0, *(np.flatnonzero(np.diff(inputs[name][order])) + 1).tolist(), len(order))
                        return Groups(axis, lookup, order, starts, dims) if len(starts) <= MAX_GROUPS else None
                case _:
                    pass
        return None

    def together(self, tensor: str, array: Array) -> Array:
        """An array in this order along the dims that are the axis."""
        return self._taken(tensor, array, self.order)

    def apart(self, tensor: str, array: Array) -> Array:
        """An array that is in this order, in that of the program."""
        return self._taken(tensor, array, np.argsort(self.order))

    def parts(self, box: Box) -> Iterator[Box]:
        """The box, cut where a group ends."""
        if self.axis not in box:
            yield box
            return
        first, end = box[self.axis]
        for start, stop in zip(self.starts, self.starts[1:], strict=False):
            if max(start, first) < min(stop, end):
                yield {**box, self.axis: (max(start, first), min(stop, end))}

    def same(self, factor: Expr) -> set[str]:
        """The axis, if a factor has it in what is looked up by alone: it is the same all along a group."""
        nodes = list(walk(factor))
        return {self.axis} if nodes.count(Axis(self.axis)) == nodes.count(self.lookup) > 0 else set()

    def _taken(self, tensor: str, array: Array, order: Array) -> Array:
        for dim in self.dims[tensor]:
            array = array.take(order, axis=dim)
        return array


def _dims(program: Program, axis: str) -> Mapping[str, tuple[int, ...]] | None:
    """By tensor the dims that are the axis in every read and write; None where they differ, where its values count, as
    in ``i + 1`` or ``j <= i``, or where it is reduced."""
    own = Axis(axis)
    found = {stage.tensor: _places([name == axis for name in stage.axes]) for stage in program.stages}
    for stage in program.stages:
        indices = [index for read in reads(stage.body) for index in read.indices]
        if axis in stage.reduce_axes or list(walk(stage.body)).count(own) != indices.count(own):
            return None
        for read in reads(stage.body):
            places = _places([index == own for index in read.indices])
            if found.setdefault(read.tensor, places) != places:
                return None
    return found


def _places(is_own: list[bool]) -> tuple[int, ...]:
    return tuple(dim for dim, own in enumerate(is_own) if own)
