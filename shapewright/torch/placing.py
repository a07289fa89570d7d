"""Where values that only calls of a chain read lie in its memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shapewright.torch.arguments import HELPERS, Number, Shapes, up

Need = tuple[Number, int, int]
"""The bytes of a value, and the steps between which it is live."""


@dataclass(frozen=True)
class Places:
    """``offsets`` of values, and the bytes of all, as expressions over what ``statements`` compute."""

    offsets: list[Number]
    total: Number
    statements: list[str]


@dataclass(frozen=True)
class Within:
    """A value that a join of values takes as it lies, where all of what is joined is in one row (``rows`` is 1): it may
    be made there, ``behind`` bytes from where the value number ``join`` begins."""

    join: int
    rows: Number
    behind: Number


def places_of(
    needs: Sequence[Need], sizes: Sequence[int], shapes: Shapes, within: Mapping[int, Within] | None = None
) -> Places:  # fmt: skip
    """Offsets for values of ``needs``, as expressions that hold for any sizes. ``within``: those of them, by number,
    that may lie in others, which are live as long as they are.

    Values of constant size come first. The others are planned at the sizes at hand, behind them; each is then placed at
    the end of whatever lies before it in that plan and is live at the same time.
    """
    within = within or {}
    needs = _as_long(needs, within)
    known = [(number, size) for number, (size, _, _) in enumerate(needs) if isinstance(size, int)]
    fixed, total = planned([(size, *needs[number][1:]) for number, size in known])
    offsets: dict[int, Number] = {number: at for (number, _), at in zip(known, fixed, strict=True)}
    others = [number for number in range(len(needs)) if number not in offsets]
    values = {**HELPERS, "g": sizes, "v": shapes}
    now, _ = planned([(int(eval(str(needs[number][0]), values)), *needs[number][1:]) for number in others])
    names, statements = dict[str, str](), [f"p0 = {total}"]

    def named(text: str) -> str:
        """The name of what an expression gives, computed once."""
        if text not in names:
            names[text] = f"p{len(statements)}"
            statements.append(f"{names[text]} = {text}")
        return names[text]

    def end(number: int) -> str:
        return f"{offsets[number]} + {named(f'up({needs[number][0]})')}"

    placed = list[int]()
    for _, number in sorted(zip(now, others, strict=True)):
        past = [end(other) for other in placed if _overlap(needs, number, other)]
        offsets[number] = named(_most(past)) if past else "p0"
        placed.append(number)
    most = named(_most(["p0", *map(end, placed)])) if placed else "p0"
    # From the back: where a join lies is known before what lies in it.
    for number, own in sorted(within.items(), key=lambda each: -each[1].join):
        statements.append(f"q{number} = {offsets[own.join]} + {own.behind} if {own.rows} == 1 else {offsets[number]}")
        offsets[number] = f"q{number}"
    return Places([offsets[number] for number in range(len(needs))], most, statements)


def _as_long(needs: Sequence[Need], within: Mapping[int, Within]) -> list[Need]:
    """The needs where a join is live as long as what may lie in it."""
    needs = list(needs)
    for number, own in sorted(within.items(), key=lambda each: each[1].join):
        (_, first, last), (size, since, until) = needs[number], needs[own.join]
        needs[own.join] = size, min(first, since), max(last, until)
    return needs


def planned(needs: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Offsets for values of ``(bytes, first, last)``, steps between which each is live, and the bytes of all: greedy by
    size, the largest first, each at the lowest offset that no value live at the same time has."""
    ends: dict[int, int] = {}
    places = [0] * len(needs)
    for number in sorted(range(len(needs)), key=lambda each: -needs[each][0]):
        size, at = up(needs[number][0]), 0
        for begin, end in sorted((places[other], ends[other]) for other in ends if _overlap(needs, number, other)):
            if at + size <= begin:
                break
            at = max(at, end)
        places[number], ends[number] = at, at + size
    return places, max(ends.values(), default=0)


def _overlap(needs: Sequence[Need], one: int, other: int) -> bool:
    (_, first, last), (_, since, until) = needs[one], needs[other]
    return first <= until and since <= last


def _most(expressions: Iterable[str]) -> str:
    several = list(dict.fromkeys(expressions))
    return several[0] if len(several) == 1 else f"max({', '.join(several)})"
