"""What a chain of calls is: its steps, where each of their tensors comes from, and how sizes are told.

A plan is a text (JSON), so that a graph that Inductor keeps carries it whole.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuner.errors import InvalidInput

REST = -1
"""A size of a view in a graph that is what the elements make up."""
Sizes = tuple[int | None, ...]
"""A size each: itself, or from -1 downwards which of the chain's ``sizes`` it is. None: what the elements make up."""


@dataclass(frozen=True, slots=True)
class Made:
    """What a call before made, seen with ``sizes``: the whole of it, or the piece of so many elements that is the
    ``piece``-th from the front, or from -1 the back."""

    step: int
    sizes: Sizes
    piece: int | None = None

    def placed(self, elements: int, given: Sequence[int]) -> tuple[list[int], int]:
        """The sizes, of a value of so many elements, and at which of them it begins."""
        sizes = sizes_of(self.sizes, given, elements)
        size = math.prod(sizes)
        if self.piece is None or not size:
            return sizes, 0
        return sizes, self.piece % (elements // size) * size


@dataclass(frozen=True, slots=True)
class Step:
    """A call: its plan, where each of its tensors comes from (a number: of the chain's own), its output's sizes."""

    plan: str
    inputs: tuple[int | Made, ...]
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class ChainPlan:
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    """The steps whose values are the chain's."""
    constants: tuple[int, ...] = ()
    """The tensors that stay from call to call, unless somebody changes them."""
    frozen: int = 0
    """The number of the program that they belong to, where they are read once; 0 where each call looks at them."""
    place: int = 0
    """Which chain of that program it is: two of the same steps have constants of their own."""
    names: tuple[str, ...] = ()
    """The constants that the program keeps, which come behind the tensors that a call is given."""

    def text(self) -> str:
        steps = [
            [
                step.plan,
                [each if isinstance(each, int) else [each.step, each.sizes, each.piece] for each in step.inputs],
                step.sizes,
            ]
            for step in self.steps
        ]
        told = {"steps": steps, "outputs": self.outputs, "constants": self.constants, "frozen": self.frozen}
        return json.dumps({**told, "place": self.place, "names": self.names}, separators=(",", ":"))

    @staticmethod
    def read(text: str) -> ChainPlan:
        """Raises InvalidInput for what is no plan."""
        try:
            data = json.loads(text)
            steps = tuple(
                Step(
                    plan,
                    tuple(each if isinstance(each, int) else Made(each[0], tuple(each[1]), each[2]) for each in inputs),
                    tuple(sizes),
                )
                for plan, inputs, sizes in data["steps"]
            )
            place, names = int(data.get("place", 0)), tuple(data.get("names", ()))
            return ChainPlan(steps, tuple(data["outputs"]), tuple(data["constants"]), int(data["frozen"]), place, names)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise InvalidInput("plan", f"is not one of this version ({error})", "compile the model again") from None


def sizes_of(sizes: Sizes, given: Sequence[Any], elements: Any = 0) -> list[Any]:
    """The sizes of a tensor of so many elements, of the chain's."""
    known = [None if size is None else size if size >= 0 else given[-1 - size] for size in sizes]
    others = math.prod(size for size in known if size is not None)
    return [(elements // others if others else 0) if size is None else size for size in known]
