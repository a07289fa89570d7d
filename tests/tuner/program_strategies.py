"""Hypothesis strategies for programs: job files' ``workload`` mappings that ``workload_from_json`` accepts.

Every extent is small, so that an interpreter made of plain loops can follow. Dynamic ones are over T and S, which may
be 0. A *tame* program is continuous and bounded where its inputs are: rounding moves its results by little, so a
kernel's results can be compared with the reference's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from tuner.program.catalogue import EPILOGUES, OPS
from tuner.program.job.build import make_workload, workload_from_json
from tuner.program.language.workload import Workload

AXES = ("m", "n", "k", "i", "j")
EXTENTS: Sequence[int | str] = (1, 2, 3, 4, 5, "T", "T", "2*T", "T+1", "S")
SHAPES = st.fixed_dictionaries({"T": st.integers(0, 4), "S": st.integers(0, 3)})
"""Values of the shape variables that programs are drawn over."""
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")


@dataclass
class _Draft:
    """A program as it is drawn: what the next read may name."""

    draw: st.DrawFn
    tame: bool
    extents: dict[str, int | str]
    stages: dict[str, tuple[str, ...]] = field(default_factory=dict)
    reads: dict[str, str] = field(default_factory=dict)
    """Inputs that follow from one read, and that read."""
    ranks: dict[str, int] = field(default_factory=dict)
    """Of padded inputs, which have explicit shapes."""
    shapes: dict[str, list[int | str]] = field(default_factory=dict)
    padded: dict[str, int | float | str] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    indices: set[str] = field(default_factory=set)

    def choice(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def fresh(self, prefix: str) -> str:
        return f"{prefix}{len(self.reads) + len(self.ranks) + len(self.indices) + len(self.stages)}"

    # -- reads ----------------------------------------------------------------------------------------------------
    def read(self, scope: Sequence[str], must: Sequence[str] = ()) -> str:
        """A read of a new input, of a padded one, of an earlier stage; with ``must``, of a new one by those axes."""
        if must:
            return self._new(must)
        stages = [name for name, axes in self.stages.items() if self._fits(axes, scope)]
        kind = self.choice("new", "new", "again", "stage", "stage", "padded", "indirect")
        again = [text for text in self.reads.values() if self._in_scope(text, scope)]
        if kind == "again" and again:
            return str(self.choice(*again))
        if kind == "stage" and stages:
            return self._stage_read(str(self.choice(*stages)), scope)
        if kind == "padded" and scope:
            return self._padded(scope)
        if kind == "indirect" and scope:
            return self._indirect(scope)
        return self._new([axis for axis in scope if self.choice(True, False)])

    def _in_scope(self, text: str, scope: Sequence[str]) -> bool:
        inside = text[text.index("[") :]
        return all(axis in scope or axis not in inside for axis in self.extents)

    def _fits(self, axes: Sequence[str], scope: Sequence[str]) -> bool:
        return all(any(self.extents[axis] == self.extents[other] for other in scope) for axis in axes)

    def _new(self, axes: Sequence[str]) -> str:
        name = self.fresh("x")
        text = f"{name}[{', '.join(self._affine(axes))}]"
        self.reads[name] = text
        if self.choice(True, False, False):
            self.dtypes[name] = self.choice(*FLOATS, *INTEGERS)
        return text

    def _affine(self, axes: Sequence[str]) -> list[str]:
        """Indices that use every axis of ``axes`` and whose largest value says how large the dim is."""
        indices, left = [], list(axes)
        while left:
            axis = left.pop(0)
            if isinstance(self.extents[axis], str):
                # A size that is known at run time must be read from a dim.
                indices.append(self.choice("{0}", "{0}", "2*{0} + 1", "extent({0}) - 1 - {0}").format(axis))
                continue
            forms = ["{0}", "{0}", "{0}", "2*{0} + 1", "{0}//2", "{0} % 3", "extent({0}) - 1 - {0}", "({0} + 1)//2"]
            if left and isinstance(self.extents[left[0]], int):
                forms += ["{0} + {1}", "3*{0} + {1}", "{0}*extent({1}) + {1}"]
            form = self.choice(*forms)
            indices.append(form.format(axis, left[0] if left else ""))
            if "{1}" in form:
                left.pop(0)
        if self.choice(True, False, False, False):
            indices.append(self.choice("0", "2"))
        return indices

    def _stage_read(self, name: str, scope: Sequence[str]) -> str:
        def index(axis: str) -> str:
            same = [other for other in scope if self.extents[other] == self.extents[axis]]
            other = self.choice(*same)
            return str(self.choice(other, other, f"extent({other}) - 1 - {other}"))

        return f"{name}[{', '.join(map(index, self.stages[name]))}]"

    def _padded(self, scope: Sequence[str]) -> str:
        if self.ranks and self.choice(True, False):
            name = str(self.choice(*self.ranks))
        else:
            name = self.fresh("p")
            self.ranks[name] = int(self.choice(1, 2))
            self.shapes[name] = self._sizes(self.ranks[name])
            self.padded[name] = self.choice(0, 0, 1.5, -2) if self.tame else self.choice(0, 1.5, "-inf", "inf")
        forms = ("{0} - 1", "2*{0} + {1} - 1", "{0}", "{0} + {1} - 2", "({0} - 1)//2", "3 - {0}")
        drawn = [(self.choice(*forms), self.choice(*scope), self.choice(*scope)) for _ in range(self.ranks[name])]
        indices = [form.format(one, other) for form, one, other in drawn]
        return f"{name}[{', '.join(indices)}]"

    def _indirect(self, scope: Sequence[str]) -> str:
        name, index = self.fresh("g"), self.fresh("idx")
        axis = str(self.choice(*scope))
        self.reads[name] = f"{name}[{index}[{axis}], {axis}]"
        self.indices.add(index)
        # Something to choose from: an index is clamped to its dim, which must have an element.
        self.shapes[name] = [self.choice(1, 2, 3, "T+1"), axis]
        return self.reads[name]

    def _sizes(self, rank: int) -> list[int | str]:
        return [self.choice(1, 2, 3, "T+1", *self.extents) for _ in range(rank)]

    # -- expressions ----------------------------------------------------------------------------------------------
    def number(self, scope: Sequence[str], depth: int) -> str:
        """An expression of a float or an integer."""
        if depth == 0:
            return self._leaf(scope)
        forms = ["{a} + {b}", "{a} - ({b})", "({a}) * ({b})", "-({a})", "min({a}, {b})", "max({a}, {b})", "abs({a})"]
        forms += ["tanh({a})", "sigmoid({a})", "sin({a})", "cos({a})", "erf({a})", "exp(-abs({a}))", "({a}) / 4"]
        forms += ["sqrt(abs({a}) + 1)", "rsqrt(abs({a}) + 1)", "log(abs({a}) + 1)", "({a}) / (1 + abs({b}))"]
        forms += ["where({c}, {a}, {b})", "cast({a}, float32)", "where({c}, {a}, {b})"]
        if not self.tame:
            forms += ["exp({a})", "log({a})", "sqrt({a})", "{a} / ({b})", "round({a})", "floor({a})"]
            forms += ["cast({a}, float16)", "cast({c}, int32)", "cast({i}, int8)", "({i}) + 0.5"]
        form = str(self.choice(*forms))
        kinds = {"{a}": self.number, "{b}": self.number, "{c}": self.condition, "{i}": self.integer}
        return form.format(**{name[1]: kinds[name](scope, depth - 1) for name in kinds if name in form})

    def _leaf(self, scope: Sequence[str]) -> str:
        leaves = ["read", "read", "read", "0.5", "2", "1e-05", "-1", *scope, *(f"extent({axis})" for axis in scope)]
        leaf = str(self.choice(*leaves))
        return self.read(scope) if leaf == "read" else leaf

    def integer(self, scope: Sequence[str], depth: int) -> str:
        """An expression of an integer, without tensors."""
        if depth <= 0 or not scope:
            return str(self.choice("0", "3", "7", *scope, *(f"extent({axis})" for axis in scope)))
        forms = ["{a} + {b}", "({a}) * 2", "({a}) // 3", "({a}) % 4", "({a}) >> 1", "({a}) << 2", "({a}) & 3"]
        form = str(self.choice(*forms, "({a}) | 5", "{a} - ({b})"))
        return form.format(a=self.integer(scope, depth - 1), b=self.integer(scope, depth - 1))

    def condition(self, scope: Sequence[str], depth: int) -> str:
        """A comparison, or two joined. In a tame program of integers alone: no rounding turns them."""
        operator = self.choice("<", "<=", ">", ">=", "==", "!=")
        side = self.integer if self.tame else self.number
        text = f"({side(scope, depth - 1)}) {operator} ({self.integer(scope, 1)})" if depth > 0 else "0 < 1"
        if depth > 0 and scope and self.choice(True, False, False):
            return f"({text}) {self.choice('&', '|')} ({self.condition(scope, depth - 1)})"
        return text


@st.composite
def programs(draw: st.DrawFn, tame: bool = False, max_stages: int = 4, max_depth: int = 3) -> dict[str, Any]:
    """A job file's ``workload`` with a random program; its extents are constants and expressions over T and S."""
    extents = {axis: draw(st.sampled_from(EXTENTS)) for axis in AXES}
    draft, lines = _Draft(draw, tame, extents), []
    for number in range(draw(st.integers(1, max_stages))):
        order = draw(st.permutations(AXES))
        kept = tuple(order[: draw(st.integers(0 if number else 1, 3))])
        reduced = tuple(order[len(kept) : len(kept) + draw(st.integers(0, 2))])
        # Products of large numbers leave the range of float32 soon.
        reducers = ("sum", "max", "min") if tame else ("sum", "max", "min", "prod")
        head = f"{draw(st.sampled_from(reducers))}({', '.join(reduced)}) " if reduced else ""
        scope = (*kept, *reduced)
        body = draft.number(scope, draw(st.integers(0, max_depth)))
        dynamic = [axis for axis in kept if isinstance(extents[axis], str)]
        if must := (*reduced, *(dynamic if number else kept)):
            body = f"{draft.read(scope, must)} * ({body})"
        tensor = f"t{number}"
        lines.append(f"{tensor}[{', '.join(kept)}] = {head}{body}")
        draft.stages[tensor] = kept
    return _finished(draft, lines)


def _finished(draft: _Draft, lines: Sequence[str]) -> dict[str, Any]:
    text = "\n".join(lines)
    axes = [axis for axis in AXES if any(axis in line for line in _scopes(lines))]
    # A stage that names an axis only in extent(...) or in a shape still needs its size.
    axes += [axis for axis in AXES if axis not in axes and f"extent({axis})" in text]
    used = {name: shape for name, shape in draft.shapes.items() if f"{name}[" in text}
    axes += [axis for axis in AXES if axis not in axes and any(axis in shape for shape in used.values())]
    data: dict[str, Any] = {"program": text, "extents": {axis: draft.extents[axis] for axis in axes}}
    data["shapes"] = used
    data["padded"] = {name: value for name, value in draft.padded.items() if f"{name}[" in text}
    inputs = [name for name in (*draft.reads, *draft.ranks) if f"{name}[" in text]
    data["constant"] = draft.draw(st.lists(st.sampled_from(inputs), unique=True, max_size=2)) if inputs else []
    by_name = {name: draft.dtypes[name] for name in inputs if name in draft.dtypes}
    data["dtype"] = by_name if draft.draw(st.booleans()) else "float32"
    return data


def _scopes(lines: Sequence[str]) -> list[set[str]]:
    """The axes of each stage: those of its left-hand side and of its reducer."""
    scopes = []
    for line in lines:
        left, _, right = line.partition(" = ")
        reducer = right[4 : right.index(")")] if right.startswith(("sum(", "max(", "min(")) else ""
        reducer = right[5 : right.index(")")] if right.startswith("prod(") else reducer
        named = f"{left[left.index('[') + 1 : -1]}, {reducer}"
        scopes.append({name.strip() for name in named.split(",")})
    return scopes


PROGRAMS = programs()
"""Job files' ``workload`` with any program."""
TAME_PROGRAMS = programs(tame=True)
"""The same for comparing results: no poles, no jumps, no large numbers."""
PROGRAM_WORKLOADS = PROGRAMS.map(workload_from_json)
TAME_WORKLOADS = TAME_PROGRAMS.map(workload_from_json)

EPILOGUE_LISTS = st.lists(st.sampled_from(sorted(EPILOGUES)), max_size=3, unique=True).map(tuple)
_SIZES = st.integers(1, 4096)


def op_args(op: str, **given: Any) -> dict[str, Any]:
    """Small args that an operator accepts, with those that are given in their places."""
    small = {"b": 2, "h": 9, "w": 8, "d": 7, "r": 3, "s": 3, "t": 2, "c": 4, "o": 6, "e": 3, "i": 5, "j": 6}
    if op == "attention":
        small |= {"h": 2, "d": 4}
    elif "h" not in OPS[op].args:
        small |= {"t": 5}
    return {name: small.get(name, 7) for name in OPS[op].args} | given


@st.composite
def op_workloads(draw: st.DrawFn) -> Workload:
    """An operator of the catalogue with its first arg dynamic, and an epilogue where there is one output."""
    op = draw(st.sampled_from(sorted(OPS)))
    first = draw(st.sampled_from(("T", "16*T", "T+S", "8*(T//3) + 1")) | _SIZES)
    return make_workload(op, op_args(op, **{OPS[op].args[0]: first}), epilogue=draw(EPILOGUE_LISTS))


OP_WORKLOADS = op_workloads()
WORKLOADS = OP_WORKLOADS | PROGRAM_WORKLOADS
"""Workloads of all kinds."""
