"""What every part of a product's code looks at while one kernel is written, and the pieces that loops cut it into."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Workload
from tuner.schedule.function import KernelFunction, dim_expr
from tuner.schedule.product.atom import Words
from tuner.schedule.product.axes import atom_of, packed_vectors
from tuner.schedule.product.match.factors import outer_role
from tuner.schedule.product.product import Left, Place, Product, Result, Right, ceil_div
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.memory import Vectors

if TYPE_CHECKING:
    from tuner.schedule.product.match.form import Form
    from tuner.schedule.product.readers import PanelReader
    from tuner.schedule.product.waiting import Waiting


Values = Mapping[str, TirExpr]
"""Values of parts, or of whole groups, by name."""


@dataclass(frozen=True)
class View:
    """A tensor with dims merged: one for each of ``roles``."""

    buffer: TirExpr
    roles: tuple[str, ...]


def by_role(outer: Values, **groups: TirExpr) -> Values:
    """Values of dims by their roles, of those of outer parts."""
    return {**{outer_role(name): value for name, value in outer.items()}, **groups}


@dataclass(frozen=True)
class Indexing:
    """The parts of the axes of ``form`` in one function. ``views``: by tensor, and by its place in the product, tensors
    with dims merged to groups. ``workload``: of the form, which may be a phase of ``whole``."""

    form: Form
    function: KernelFunction
    workload: Workload
    whole: Workload
    views: dict[str, View] = field(default_factory=dict)

    def size(self, name: str) -> TirExpr:
        """The extent of a part."""
        part = self.form.parts[name]
        if part.extent.constant is None and self.form.phase is not None:
            return dim_expr(part.extent, self.function.symbols)
        return self.function.extents[part.axis] if part.extent.constant is None else i64(part.extent.constant)

    def divisor(self, name: str) -> TirExpr:
        """The extent of a part to divide by: never 0."""
        return tirx.max(self.size(name), i64(1))

    def sizes_of(self, tensor: str) -> list[TirExpr]:
        """The sizes of a tensor's dims."""
        return [dim_expr(dim, self.function.symbols) for dim in self.workload.tensors[tensor].dims]

    def decomposed(self, names: Sequence[str], flat: TirExpr) -> dict[str, TirExpr]:
        """The values of the parts of a group at one value of its flattened index, 0 or more."""
        values: dict[str, TirExpr] = {}
        for name in reversed(names[1:]):
            values[name] = I.Bind(tirx.truncmod(flat, self.divisor(name)))
            flat = I.Bind(tirx.truncdiv(flat, self.divisor(name)))
        return {**values, names[0]: flat} if names else {}

    def index(self, values: Values) -> dict[str, TirExpr]:
        """The values of the program's axes; 0 for parts that are not given."""
        result: dict[str, TirExpr] = {}
        for name, part in self.form.parts.items():
            own = values.get(name, i64(0)) * i64(part.step)
            result[part.axis] = result[part.axis] + own if part.axis in result else own
        return result

    def index_of_result(self, values: Values) -> dict[str, TirExpr]:
        """The values of the program's axes of a result: of a phase, where it is in the whole output."""
        index = self.index(values)
        for places in self.form.phase.places if self.form.phase is not None else ():
            index[places.axis] = index[places.axis] * i64(places.step) + i64(places.first)
        return index

    @contextmanager
    def runs(
        self, names: Sequence[str], first: TirExpr, length: TirExpr
    ) -> Iterator[tuple[Values, TirExpr, TirExpr, TirExpr]]:
        """The flattened indices from ``first`` on as runs of the last part: the values of the other parts, the run's
        first value and the one past its last, and what is to be added for the place in the ``length`` elements."""
        *outer, inner = names
        if not outer:
            yield {}, first, I.Bind(first + length), i64(0) - first
            return
        size, last = self.divisor(inner), first + length
        with I.serial(tirx.truncdiv(first, size), tirx.truncdiv(last + size - i64(1), size)) as run:
            values = self.decomposed(outer, run)
            start = I.Bind(run * size)
            ends = I.Bind(tirx.max(first - start, i64(0))), I.Bind(tirx.min(last - start, size))
            yield values, *ends, I.Bind(start - first)


@dataclass(frozen=True)
class EmitContext:
    """One kernel while it is written.

    ``extent``: by role, k in steps. ``depth``: elements of k. ``batch``: the index in the batch. ``outer``: the values
    of the axes that loops outside of the product walk. ``indexing``: where axes are grouped to m, n and k. ``totals``:
    memory for those of a register tile, where they are in a matrix unit; with ``kept`` those of a whole block of rows,
    from that column of the results on, between chunks of k; ``waiting``: which totals wait for the next tile, where
    they may (waiting.py). ``part``: of k, where it is one of several.
    """

    task: SearchTask
    product: Product
    kernel: MicroKernel
    extent: Mapping[str, TirExpr]
    function: KernelFunction
    buffers: Mapping[str, TirExpr]
    left: Left
    right: Right
    result: Result
    depth: TirExpr
    batch: TirExpr = None
    outer: Mapping[str, TirExpr] = field(default_factory=dict)
    indexing: Indexing | None = None
    totals: TirExpr = None
    kept: TirExpr = None
    waiting: Waiting | None = None
    part: Part | None = None

    def at(self, batch: TirExpr) -> EmitContext:
        """The product at one index of the batch."""
        if self.indexing is None:
            return replace(self, batch=batch)
        return replace(self, batch=batch, outer=self.indexing.decomposed(self.indexing.form.outer, batch))

    @property
    def parts(self) -> Indexing:
        """``indexing``, which there is."""
        assert self.indexing is not None
        return self.indexing

    @property
    def form(self) -> Form:
        """How axes are grouped, where ``indexing`` says so."""
        return self.parts.form

    def in_view(self, name: str, **groups: TirExpr) -> Place:
        """A line of a tensor with dims merged, at these values of groups."""
        view, values = self.parts.views[name], by_role(self.outer, **groups)
        return view.buffer, tuple(values[role] for role in view.roles[:-1])

    @property
    def steps(self) -> Chunk:
        """All of k, or the part of it."""
        return Chunk(i64(0), self.extent["k"]) if self.part is None else Chunk(self.part.first, self.part.length)

    @property
    def panels(self) -> TirExpr:
        """How many panels there are, the ragged one included."""
        return ceil_div(self.extent["n"], self.nr)

    @property
    def packed_panels(self) -> TirExpr:
        """How many panels there are of a matrix that was packed ahead."""
        return ceil_div(self.extent["n"], packed_vectors(self.kernel) * self.vectors.lanes)

    @cached_property
    def vectors(self) -> Vectors:
        return Vectors(self.task.known_target.hardware.lanes())

    @cached_property
    def words(self) -> Words:
        """What a step takes of the operands."""
        atom = atom_of(self.kernel, self.product.atoms(self.task.known_target.hardware))
        return Words(atom, self.left.dtype, self.right.dtype, self.vectors)

    @property
    def ragged_k(self) -> TirExpr | None:
        """Where rows of the left operand end, if their last word is not whole."""
        depth, group = self.product.depth, self.words.atom.group
        is_whole = group == 1 if depth is None else depth % group == 0
        return None if is_whole else self.depth

    @property
    def nr(self) -> int:
        """Columns of a panel."""
        return self.kernel["nv"] * (1 if self.by_dots else self.vectors.lanes)

    @property
    def by_dots(self) -> bool:
        """Whether vectors run along k, both operands being read in place (dots.py)."""
        return self.kernel["pack"] == self.product.pack_of_dots

    def whole_vectors(self, steps: TirExpr) -> TirExpr:
        """So many steps rounded up to whole vectors."""
        return ceil_div(steps, self.vectors.lanes) * i64(self.vectors.lanes)

    def surplus(self, chunk: Chunk) -> list[tuple[TirExpr, TirExpr]]:
        """The steps that the last multiplication of a chunk has beyond its length, if it may have any."""
        steps, length = self.words.atom.steps, chunk.length
        if steps == 1 or (isinstance(length, tirx.IntImm) and int(length) % steps == 0):
            return []
        return [(length, ceil_div(length, steps) * i64(steps))]

    def columns_in(self, panel: Panel) -> TirExpr:
        """How many columns a panel has."""
        width = i64(panel.vectors * self.vectors.lanes)
        return width if panel.limit is None else tirx.min(width, panel.limit - panel.column)


def context_of(
    task: SearchTask, product: Product, kernel: MicroKernel, function: KernelFunction,
    extent: Mapping[str, TirExpr] | None = None,
) -> EmitContext:  # fmt: skip
    """The context of a kernel of ``product``, whose extents are ``extent``, by default those of the function's axes."""
    extent = extent or {role: function.extents[axis] for role, axis in product.axes.items()}
    group = atom_of(kernel, product.atoms(task.known_target.hardware)).group
    return EmitContext(
        task, product, kernel, {**extent, "k": ceil_div(extent["k"], group)}, function, function.buffers,
        product.left, product.right, product.result, depth=extent["k"],
    )  # fmt: skip


@dataclass(frozen=True)
class Panel:
    """Columns of the output from ``column`` on, ``vectors`` vectors of them, the valid ones before ``limit``. It is
    panel ``index`` of all, and ``reader`` reads the right operand there. ``few``: how many columns it has, if it is the
    few last ones by themselves (few.py)."""

    column: TirExpr
    limit: TirExpr | None
    vectors: int
    index: TirExpr
    reader: PanelReader | None = None
    few: int = 0


@dataclass(frozen=True)
class Chunk:
    """Steps ``first`` to ``first + length`` of k; ``is_first`` and ``is_last`` say whether they are the first and the
    last ones, None where there are no others."""

    first: TirExpr
    length: TirExpr
    is_first: TirExpr | None = None
    is_last: TirExpr | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is all of k, as far as is known ahead."""
        return self.is_first is None and isinstance(self.first, tirx.IntImm)


@dataclass(frozen=True)
class Part:
    """Steps ``first`` to ``first + length`` of k, which may be none: part ``index`` of all."""

    index: TirExpr
    first: TirExpr
    length: TirExpr


@dataclass(frozen=True)
class Run:
    """Steps of a chunk, counted from its first one, between which operands lie as far apart as their numbers say;
    ``place``: where an operand that lies in runs has the step 0 of the chunk."""

    begin: TirExpr
    length: TirExpr
    place: TirExpr = None


def where(
    condition: TirExpr | None, write: Callable[[], None], otherwise: Callable[[], None] | None = None
) -> None:  # fmt: skip
    """``write`` where ``condition`` holds, or always if it is None."""
    if condition is None:
        write()
        return
    with I.If(condition):
        with I.Then():
            write()
        if otherwise is not None:
            with I.Else():
                otherwise()
