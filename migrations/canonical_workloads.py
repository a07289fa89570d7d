"""Frozen for revision 0005: workloads as the releases before it stored them, in the canonical form that it introduced.

Those releases knew four operators, one dtype and five epilogues. Nothing here may follow later changes of the code:
what a revision writes is the same whenever it runs.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import add, floordiv, mod, mul, sub
from typing import Any

AXES = ("m", "n", "k", "a3")
"""Canonical names of the axes, in the order in which a program first uses them."""

# By operator: its axes as the releases before named them, in that same order, and the program in canonical names.
OPERATORS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "dense": (("m", "n", "k"), "t0[m, n] = sum(k) t1[m, k] * t2[n, k]"),
    "matmul": (("m", "n", "k"), "t0[m, n] = sum(k) t1[m, k] * t2[k, n]"),
    "batch_matmul_nn": (("b", "m", "n", "k"), "t0[m, n, k] = sum(a3) t1[m, n, a3] * t2[m, a3, k]"),
    "batch_matmul_nt": (("b", "m", "n", "k"), "t0[m, n, k] = sum(a3) t1[m, n, a3] * t2[m, k, a3]"),
}
CONSTANT = {"dense": ["t2"]}

# By epilogue: a stage's body over the result so far, and over a further operand where there is one.
EPILOGUES: Mapping[str, str] = {
    "bias": "{x} + {channel}",
    "add": "{x} + {whole}",
    "relu": "where({x} < 0, 0, {x})",
    "gelu": "{x} * 0.5 * (1.0 + erf({x} * 0.7071067811865476))",
    "gelu_tanh": "{x} * 0.5 * (1.0 + tanh(0.7978845608028654 * ({x} + 0.044715 * {x} * {x} * {x})))",
}


ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mult: mul,
    ast.FloorDiv: floordiv,
    ast.Mod: mod,
}


@dataclass(frozen=True)
class OldWorkload:
    """A workload as it was stored: ``{"op": ..., "args": {axis: extent}, "dtype": ..., "epilogue": [...]}``.

    Extents are integers or texts over shape variables. The texts were normalised before they were stored: equal texts
    are equal expressions, and the other way round.
    """

    op: str
    args: Mapping[str, int | str]
    dtype: str
    epilogue: tuple[str, ...]

    @staticmethod
    def of(data: Mapping[str, Any]) -> OldWorkload:
        """Raises ValueError for what no release has stored."""
        op, args, epilogue = str(data.get("op")), data.get("args", {}), tuple(data.get("epilogue") or ())
        if op not in OPERATORS or set(args) != set(OPERATORS[op][0]) or not set(epilogue) <= set(EPILOGUES):
            raise ValueError(f"{dict(data)!r} is not a workload that a release before this one has stored")
        return OldWorkload(op, args, data.get("dtype", "float32"), epilogue)

    @property
    def symbols(self) -> dict[str, str]:
        """The text of each dynamic extent -> its symbol: the canonical name of the first axis that has it."""
        result: dict[str, str] = {}
        for axis, name in zip(OPERATORS[self.op][0], AXES, strict=False):
            if isinstance(extent := self.args[axis], str):
                result.setdefault(extent, name)
        return result

    def instance(self, values: Mapping[str, int]) -> str:
        """``m=592``: the text of the symbols' values where the shape variables have these values.

        Raises KeyError if a variable is missing.
        """
        symbols = {name: evaluated(extent, values) for extent, name in self.symbols.items()}
        return ",".join(f"{name}={symbols[name]}" for name in sorted(symbols))

    @property
    def label(self) -> str:
        shown = ", ".join(f"{name}={self.args[name]}" for name in OPERATORS[self.op][0])
        return " + ".join([f"{self.op}({shown})", *self.epilogue])

    @property
    def canonical(self) -> dict[str, Any]:
        """The canonical form, a program whose shape variables are the symbols."""
        axes, program = OPERATORS[self.op]
        stages, tensors = [program], ["t0", "t1", "t2"]
        indices = ", ".join(AXES[: len(axes) - 1])
        for name in self.epilogue:
            before = stages[-1].split("[")[0]
            after, operand = f"t{len(tensors)}", f"t{len(tensors) + 1}"
            body = EPILOGUES[name].format(
                x=f"{before}[{indices}]", whole=f"{operand}[{indices}]", channel=f"{operand}[{AXES[len(axes) - 2]}]"
            )
            stages.append(f"{after}[{indices}] = {body}")
            tensors += [after, operand] if operand in body else [after]
        extents = {name: self.args[axis] for axis, name in zip(axes, AXES, strict=False)}
        return {
            "program": "\n".join(stages),
            "outputs": [stages[-1].split("[")[0]],
            "extents": {n: self.symbols[size] if isinstance(size, str) else size for n, size in extents.items()},
            "shapes": {},
            "dtype": dict.fromkeys(tensors, self.dtype),
            "constant": CONSTANT.get(self.op, []),
            "padded": {},
        }

    @property
    def key(self) -> str:
        text = json.dumps(self.canonical, sort_keys=True, separators=(",", ":"))
        return f"wl-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def parsed(instance: str) -> dict[str, int]:
    """``T=37,S=4`` as a mapping. Raises ValueError for other texts."""
    pairs = [part.partition("=") for part in instance.split(",") if part]
    return {name: int(value) for name, _, value in pairs}


def evaluated(extent: str, values: Mapping[str, int]) -> int:
    """An extent such as ``16*T`` or ``(T+1)//2`` where the shape variables have these values. Nothing is executed."""
    return _value(ast.parse(extent, mode="eval").body, values)


def _value(node: ast.expr, values: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in ARITHMETIC:
            return ARITHMETIC[type(operator)](_value(left, values), _value(right, values))
    raise ValueError(f"{ast.dump(node)} is not an extent that a release before this one has stored")
