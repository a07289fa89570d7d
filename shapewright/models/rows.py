"""Norms, softmax and reductions as programs."""

from __future__ import annotations

from shapewright.models.draft import Draft, draft_of
from shapewright.models.elementwise import shortest
from shapewright.models.graph import ONE, CannotLift, Operation, Shape
from shapewright.models.lifted import Operand, View
from shapewright.models.operands import operand
from shapewright.models.orders import is_last
from shapewright.models.views import product
from tuner.program.catalogue import OPS
from tuner.program.job.build import ProgramOp

PLAIN_NORM = (
    "total[{m}] = sum({n}) x[{m}, {n}]\n"
    "centred[{m}, {n}] = x[{m}, {n}] - total[{m}] / {size}\n"
    "square[{m}] = sum({n}) centred[{m}, {n}] * centred[{m}, {n}]\n"
    "out[{m}, {n}] = centred[{m}, {n}] * rsqrt(square[{m}] / {size} + {eps!r})"
)
PLAIN_RMS = (
    "square[{m}] = sum({n}) x[{m}, {n}] * x[{m}, {n}]\n"
    "out[{m}, {n}] = x[{m}, {n}] * rsqrt(square[{m}] / {size} + {eps!r})"
)
SAFE_SOFTMAX = (
    "top[m] = max(n) x[m, n]\n"
    "e[m, n] = exp(x[m, n] - top[m])\n"
    "z[m] = sum(n) e[m, n]\n"
    "out[m, n] = where(top[m] == -inf, 0.0, e[m, n] / z[m])"
)
LOG_SOFTMAX = (
    "top[m] = max(n) x[m, n]\n"
    "e[m, n] = exp(x[m, n] - top[m])\n"
    "z[m] = sum(n) e[m, n]\n"
    "out[m, n] = x[m, n] - top[m] - log(z[m])"
)
REDUCERS = {"sum": "sum", "mean": "sum", "max": "max", "min": "min"}


def layer_norm(operation: Operation) -> Draft:
    """A layer norm over the last axes; without gamma and beta, or with one of them, the program says so."""
    return _norm(operation, "layer_norm", PLAIN_NORM, ("gamma", "beta"))


def rms_norm(operation: Operation) -> Draft:
    """An RMS norm over the last axes."""
    return _norm(operation, "rms_norm", PLAIN_RMS, ("gamma",))


def _norm(operation: Operation, op: str, plain: str, names: tuple[str, ...]) -> Draft:
    rank, eps = int(operation.attr("rank")), _eps(operation)
    given = {name: node for place, name in enumerate(names, 1) if (node := operation.input(place)) is not None}
    if rank > 1 and not given:
        return _norm_of_groups(operation, rank, plain, eps)
    x, view, (m, n) = _rows(operation, rank)
    vectors = [operand(operation.graph, name, node, (n,)) for name, node in given.items()]
    args = {"m": m, "n": n}
    if len(given) == len(names):
        return draft_of(op, {**args, "eps": eps}, (x, *vectors), operation, view)
    text = plain.format(eps=eps, m="m", n="n", size="extent(n)")
    text += " * gamma[n]" if "gamma" in given else ""
    text += " + beta[n]" if "beta" in given else ""
    return draft_of(ProgramOp(text), args, (x, *vectors), operation, view)


def _eps(operation: Operation) -> float:
    """What is added to a variance: who spells a norm out, and ONNX, may have rounded it to float32."""
    eps = float(operation.attr("eps"))
    return eps if operation.node.dtype == "float64" else shortest(eps)


def _norm_of_groups(operation: Operation, rank: int, plain: str, eps: float) -> Draft:
    """Rows of several axes, whose last outer and first inner ones are their own: what comes behind a norm of groups
    runs over these."""
    x, shape = operation.tensor(0), operation.shape
    first, last = len(shape) - rank, len(shape)
    if first < 0:
        raise CannotLift(f"it is over {rank} axes of {last}")
    groups = {
        "a": range(max(first - 1, 0)), "b": range(max(first - 1, 0), first), "c": range(first, first + 1),
        "d": range(first + 1, last),
    }  # fmt: skip
    view = tuple(tuple(axes) for axes in groups.values() if axes)
    sizes = {name: product([shape[axis] for axis in axes]) for name, axes in groups.items() if axes}
    m, n = (", ".join(name for name in names if name in sizes) for names in ("ab", "cd"))
    text = plain.format(eps=eps, m=m, n=n, size="(extent(c) * extent(d))")
    text = text if m else text.replace("[, ", "[")
    return draft_of(ProgramOp(text), sizes, (Operand("x", x.name, view),), operation, view)


def instance_norm(operation: Operation) -> Draft:
    """A norm of each channel of each image, [b, c, ...], times a number of the channel, and more of another one."""
    graph, x, shape = operation.graph, operation.tensor(0), operation.shape
    sizes = {"b": shape[0], "c": shape[1], "n": product(shape[2:])}
    view = ((0,), (1,), tuple(range(2, len(shape))))
    vectors = [operand(graph, name, operation.tensor(at), (shape[1],)) for at, name in enumerate(("gamma", "beta"), 1)]
    text = PLAIN_NORM.format(eps=_eps(operation), m="b, c", n="n", size="extent(n)")
    text += " * gamma[c] + beta[c]"
    return draft_of(ProgramOp(text), sizes, (Operand("x", x.name, view), *vectors), operation, view)


def softmax(operation: Operation) -> Draft:
    """A softmax over the last axis, or its logarithm. ``safe``: a row of nothing but -inf gives 0, in place of NaN."""
    rank = len(operation.shape)
    if not rank:
        raise CannotLift("a softmax of a single number")
    if int(operation.attr("axis")) % rank != rank - 1:
        raise CannotLift("it is over another axis than the last one")
    x, view, (m, n) = _rows(operation, 1)
    text = LOG_SOFTMAX if operation.node.op == "log_softmax" else SAFE_SOFTMAX
    op = "softmax" if text == SAFE_SOFTMAX and not operation.node.attrs.get("safe") else ProgramOp(text)
    return draft_of(op, {"m": m, "n": n}, (x,), operation, view)


def _rows(operation: Operation, rank: int) -> tuple[Operand, View, Shape]:
    """The input as [m, n], n being its last ``rank`` axes."""
    source = operation.tensor(0)
    shape = operation.graph.shape(source.name)
    if not 0 < rank <= len(shape):
        raise CannotLift(f"it is over {rank} axes of {len(shape)}")
    first = len(shape) - rank
    view = (tuple(range(first)), tuple(range(first, len(shape))))
    return Operand("x", source.name, view), view, (product(shape[:first]), product(shape[first:]))


def reduce(operation: Operation) -> Draft:
    """Sums, means and extremes over neighbouring axes; those in front and behind are flattened."""
    kind = str(operation.attr("kind"))
    if kind not in REDUCERS:
        raise CannotLift(f"reductions of kind {kind} are not lifted")
    source = operation.tensor(0)
    shape = operation.graph.shape(source.name)
    if not shape:
        raise CannotLift("it reduces a single value")
    axes = sorted(axis % len(shape) for axis in operation.attr("axes"))
    if not axes or axes != list(range(axes[0], axes[-1] + 1)):
        raise CannotLift("the axes that it is over are not neighbours")
    first, last = axes[0], axes[-1] + 1
    groups = {"m": tuple(range(first)), "n": tuple(axes), "p": tuple(range(last, len(shape)))}
    if groups["p"] and product([shape[axis] for axis in groups["p"]]) == ONE:
        # Channels of [b, c, 1, 1] are the rows' own elements, as those of [b, c] are.
        groups = {**groups, "n": (*groups["n"], *groups["p"]), "p": ()}
    if is_last(operation.graph, source) and axes == list(range(2, len(shape))):
        groups = {"m": (0,), "n": tuple(axes), "p": (1,)}
    kept = [name for name in "mp" if groups[name]]
    args = {name: product([shape[axis] for axis in group]) for name, group in groups.items() if group}
    offset = 0 if operation.attr("keep") else len(axes)
    view = tuple(tuple(axis - (offset if axis >= last else 0) for axis in groups[name]) for name in kept)
    read = [name for name in "mnp" if groups[name]]
    x = Operand("x", source.name, tuple(groups[name] for name in read))
    if read == ["m", "n"] and f"reduce_{kind}" in OPS:
        return draft_of(f"reduce_{kind}", args, (x,), operation, view)
    target, body = "total" if kind == "mean" else "out", f"x[{', '.join(read)}]"
    text = f"{target}[{', '.join(kept)}] = {REDUCERS[kind]}(n) {body}"
    text += f"\nout[{', '.join(kept)}] = total[{', '.join(kept)}] / extent(n)" if kind == "mean" else ""
    return draft_of(ProgramOp(text), args, (x,), operation, view)
