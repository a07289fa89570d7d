"""Dispatchers: which micro-kernel serves a shape. Total: every shape of the range has one, all others the safe one.

The same tree is compiled into a library and read here, so that service and client can say what would run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from tuner.errors import ShapewrightError, shown
from tuner.program.job.range_text import Ranges
from tuner.program.job.task import SearchTask
from tuner.program.language.dims import DimExpr
from tuner.program.language.spans import span_of, span_of_extent, span_to_json
from tuner.program.language.workload import JsonObject, Workload, format_shape
from tuner.schedule.space import MicroKernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORMAT = 3
EXTENTS_FORMAT = 2
"""Tables of this format compare symbols alone."""
AXES_FORMAT = 1
"""Tables of this format name dims by the axes of the operator; later ones by the workload's symbols."""
DEEPEST = 256
"""Nodes in a row of a tree that is read: more than fitting makes of it."""
EXPRESSIONS = 4096
"""Expressions of trees that a process keeps in parsed form."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """The kernel (its index) for every shape that gets here."""

    kernel: int


@dataclass(frozen=True, slots=True)
class Node:
    """``then`` where ``dim <= at_most``, else ``otherwise``.

    ``dim`` is a symbol, or a feature of the shape: an integer expression of symbols as ``DimExpr`` writes it, such as
    ``m%14`` (rows that are left of tiles of 14) or ``((m+13)//14)*n``.
    """

    dim: str
    at_most: int
    then: Tree
    otherwise: Tree


Tree = Node | Leaf


def choose(tree: Tree, dims: Mapping[str, int]) -> int:
    """The index of the kernel for these dims."""
    while isinstance(tree, Node):
        tree = tree.then if feature(tree.dim, dims) <= tree.at_most else tree.otherwise
    return tree.kernel


def feature(text: str, dims: Mapping[str, Any]) -> Any:
    """A symbol or a feature at these dims: an int or, of dims that are arrays, an array."""
    return dims[text] if text in dims else expression(text).evaluate(dims)


@lru_cache(EXPRESSIONS)
def expression(text: str) -> DimExpr:
    """A feature in parsed form. Raises InvalidInput where it is none."""
    return DimExpr.of(text)


def bounded(tree: Tree, bounds: Mapping[str, tuple[int, int]], safe: int) -> Tree:
    """``tree`` where every dim is within its inclusive bounds, the ``safe`` kernel elsewhere."""
    for dim, (low, high) in bounds.items():
        tree = Node(dim, high, tree, Leaf(safe))
        if low > 0:
            tree = Node(dim, low - 1, Leaf(safe), tree)
    return tree


@dataclass(frozen=True, slots=True)
class TableRow:
    """What is expected (and was measured, if it was) of the kernel that serves one shape of the range."""

    shape: Mapping[str, int]
    kernel: int
    predicted_latency_s: float
    measured_latency_s: float | None = None


@dataclass(frozen=True)
class Dispatcher:
    """The dispatcher of one library: its kernels, the tree, and a table of what is expected over the range."""

    task: SearchTask
    kernels: tuple[MicroKernel, ...]
    default_kernel: int
    tree: Tree
    table: tuple[TableRow, ...] = ()

    @cached_property
    def bounds(self) -> Mapping[str, tuple[int, int]]:
        """The inclusive range of each symbol that the library was made for."""
        return symbol_bounds(self.task)

    def index_for(self, dims: Mapping[str, int]) -> int:
        """The index of the kernel that runs for these values of the symbols, inside the bounds or not."""
        return choose(self.tree, dims)

    def kernel_for(self, shape: Mapping[str, int]) -> MicroKernel:
        """The kernel that runs for these values of the shape variables, inside the range or not."""
        return self.kernels[self.index_for(self.task.workload.dims(shape))]

    def predicted_latency_s(self, dims: Mapping[str, int]) -> float | None:
        """What is expected at these values of the symbols: the table's row, or the nearest one's scaled by the work.

        The nearest in the logarithms of the symbols. None without a table.
        """
        if not self.table:
            return None
        if (row := self._rows.get(self._point(dims))) is not None:
            return row.predicted_latency_s
        import numpy as np  # noqa: PLC0415 - not where libraries are only pulled and called

        distance = np.abs(self._logs - np.log(np.maximum(self._point(dims), 0) + 1.0)).sum(axis=1)
        row = list(self._rows.values())[int(distance.argmin())]
        return row.predicted_latency_s * self._work(dims) / self._work(self.task.workload.dims(row.shape))

    def _point(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(dims[name] for name in self.task.workload.symbols)

    @cached_property
    def _rows(self) -> Mapping[tuple[int, ...], TableRow]:
        """The table by the values of the symbols. Of rows that only differ in the shape variables the first."""
        rows: dict[tuple[int, ...], TableRow] = {}
        for row in self.table:
            rows.setdefault(self._point(self.task.workload.dims(row.shape)), row)
        return rows

    @cached_property
    def _logs(self) -> NDArray[np.float64]:
        """[rows, symbols]: the logarithms that ``log_distance`` compares, of all rows at once."""
        import numpy as np  # noqa: PLC0415 - as above

        return np.log(np.maximum(np.array(list(self._rows), np.float64), 0) + 1.0)

    def _work(self, dims: Mapping[str, int]) -> int:
        """Operations, or elements where a program only moves them; never 0."""
        workload = self.task.workload
        return 1 + max(workload.flops(dims) or workload.points(dims), 0)

    def to_json(self) -> JsonObject:
        task = self.task
        return {
            "format": FORMAT,
            "workload": task.workload.to_json(),
            "workload_key": task.workload.key,
            "target_fingerprint": task.target.fingerprint if task.target else None,
            "task": task.to_json(),
            "threads": task.threads,
            "dims": list(task.workload.symbols),
            "bounds": {name: list(bounds) for name, bounds in self.bounds.items()},
            "made_for": {name: span_to_json(span) for name, span in made_for(task).items()},
            "shape_vars": {var.name: var.to_json() for var in task.shape_vars},
            "kernels": [kernel_json(kernel) for kernel in self.kernels],
            "safe_kernel": self.default_kernel,
            "tree": _tree_json(self.tree),
            "table": [
                {
                    "shape": dict(row.shape),
                    "kernel": row.kernel,
                    "predicted_latency_s": row.predicted_latency_s,
                    "measured_latency_s": row.measured_latency_s,
                }
                for row in self.table
            ],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Dispatcher:
        """Read what ``to_json`` wrote, or that of an earlier version.

        Raises ShapewrightError for a format that this version does not know.
        """
        if data.get("format") not in (AXES_FORMAT, EXTENTS_FORMAT, FORMAT):
            problem = f"dispatch table of format {shown(data.get('format'))}"
            raise ShapewrightError(f"{problem}: this version reads formats {AXES_FORMAT} to {FORMAT}")
        task = SearchTask.from_json(data["task"])
        is_old = data["format"] == AXES_FORMAT
        symbols = symbols_of_axes(task.workload) if is_old else {name: name for name in task.workload.symbols}
        return Dispatcher(
            task=task,
            kernels=tuple(MicroKernel.from_json(kernel["kernel"]) for kernel in data["kernels"]),
            default_kernel=data["safe_kernel"],
            tree=tree_from_json(data["tree"], symbols),
            table=tuple(
                TableRow(row["shape"], row["kernel"], row["predicted_latency_s"], row.get("measured_latency_s"))
                for row in data["table"]
            ),
        )

    def __str__(self) -> str:
        rows = [f"{format_shape(row.shape)} -> {self.kernels[row.kernel]}" for row in self.table]
        return "\n".join(rows)


def log_distance(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """Distance of values of the same symbols. Far outside its range a size such as 200-T is negative: as good as 0."""
    return sum(abs(math.log((max(size, 0) + 1) / (max(other[name], 0) + 1))) for name, size in one.items())


def is_within(dims: Mapping[str, int], bounds: Mapping[str, tuple[int, int]]) -> bool:
    return all(low <= dims[name] <= high for name, (low, high) in bounds.items())


def symbol_bounds(task: SearchTask) -> dict[str, tuple[int, int]]:
    """The inclusive range of each symbol over the task's shape variables."""
    return {name: expr.bounds(task.ranges) for name, expr in task.workload.symbol_exprs.items()}


def made_for(task: SearchTask) -> Ranges:
    """The sizes of each symbol that a library of the task is made for; its dispatcher serves those in between, too."""
    variables = {var.name: span_of(var.values) for var in task.shape_vars}
    return {name: span_of_extent(expr, variables) for name, expr in task.workload.symbol_exprs.items()}


def symbols_of_axes(workload: Workload) -> dict[str, str]:
    """The symbol of each axis of dynamic extent, by the axis's name in its operator."""
    symbols = {expr: name for name, expr in workload.symbol_exprs.items()}
    return {axis: symbols[expr] for axis, expr in workload.extents if expr in symbols}


def kernel_json(kernel: MicroKernel) -> JsonObject:
    """A micro-kernel as the public interface shows it."""
    return {"id": kernel.id, "name": str(kernel), "kernel": kernel.to_json()}


def _tree_json(tree: Tree) -> JsonObject:
    if isinstance(tree, Leaf):
        return {"kernel": tree.kernel}
    return {
        "dim": tree.dim,
        "at_most": tree.at_most,
        "then": _tree_json(tree.then),
        "else": _tree_json(tree.otherwise),
    }


def tree_from_json(data: Mapping[str, Any], symbols: Mapping[str, str], deepest: int = DEEPEST) -> Tree:
    """``symbols``: by the name of a dim in the table, the symbol that it is. Raises KeyError, TypeError, ValueError or
    InvalidInput for what is no tree, or one of more than ``deepest`` nodes in a row."""
    if "kernel" in data:
        return Leaf(int(data["kernel"]))
    if deepest == 0:
        raise ValueError(f"the tree is more than {DEEPEST} nodes deep")
    then, otherwise = (tree_from_json(data[branch], symbols, deepest - 1) for branch in ("then", "else"))
    return Node(_feature_name(data["dim"], symbols), data["at_most"], then, otherwise)


def _feature_name(text: str, symbols: Mapping[str, str]) -> str:
    """A symbol by its name in the table, or a feature of symbols, as it is written."""
    if text in symbols:
        return symbols[text]
    if not isinstance(text, str) or not expression(text).variables <= symbols.keys():
        raise ValueError(f"{shown(text)} is no feature of {', '.join(symbols)}")
    return text
