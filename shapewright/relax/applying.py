"""The pass ``ApplyTuned``: calls of tuned libraries in the place of the operators that they compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from shapewright.checking import Checker
from shapewright.models.defects import defect
from shapewright.models.lifted import LiftedOp
from shapewright.models.lifting import lift_graph
from shapewright.models.relax_model import MAIN, read_function
from shapewright.relax.calls import Calls
from shapewright.relax.linking import Linkable, linkable
from shapewright.sources.finder import Finder, finder_of
from shapewright.sources.reports import NotReplaced, Replaced, Report
from shapewright.sources.source import Match, SourceLike
from tuner.errors import InvalidInput, ShapewrightError
from tuner.program.job.task import parse_target
from tuner.program.target import Target, native

EXTERNAL = "external_mods"
"""The attribute of a module from which ``tvm.compile`` takes what is linked into the build."""
OUTLINED = frozenset({"Primitive", "Composite", "Codegen"})
"""Attributes of functions that belong to another backend."""

tvm_ffi.register_error("ShapewrightError", ShapewrightError)

_last: list[Report] = []


def ApplyTuned(  # noqa: N802 - passes of TVM are called so
    source: SourceLike | None = None,
    target: Target | str | Mapping[str, Any] | None = "native",
    *,
    strict: bool = False,
    threads: int = 1,
    report: Report | None = None,
) -> Any:
    """A pass of TVM that replaces what ``source`` has libraries for: ``module = ApplyTuned(source)(module)``.

    ``source`` is the URL of a service, a directory, a snapshot, or a list that is asked in turn; None is the service
    of SHAPEWRIGHT_URL. The pass runs before operators are lowered, with the values of weights bound. Symbolic sizes
    stay; weights are packed and stand in the module as constants; kernels are compiled from the libraries' IR,
    verified on this machine, and linked by ``tvm.compile``. ``report`` is filled in. A source that is away or has no
    library leaves operators to TVM, and the report says so; with ``strict`` ShapewrightError is raised.

    Raises InvalidInput for what is no source or target.
    """
    known = parse_target(target) or native()
    if threads < 1:
        raise InvalidInput("threads", f"{threads}", "at least 1")
    finder = finder_of(source, strict=strict, threads=threads, target=known)

    def transform(module: Any, _context: Any) -> Any:
        filled = Report() if report is None else report
        filled.rest = "TVM"
        _last[:] = [filled]
        # Its device is started for the first library that was not verified yet.
        with Checker() as checker:
            try:
                result = _Applying(finder, known, strict, filled, checker).module(module)
            except ShapewrightError as error:
                # Of a class that TVM knows; others come out of its passes as another one.
                raise ShapewrightError(str(error)) from error
        filled.note(finder.notes)
        return result

    return tvm.transform.module_pass(transform, opt_level=0, name="shapewright.ApplyTuned")


def report() -> Report:
    """What the pass replaced in the module that it was applied to last. Raises InvalidInput where there was none."""
    if not _last:
        raise InvalidInput("report", "no module was changed yet", "apply sw.relax.ApplyTuned(source) first")
    return _last[0]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """An operation, the library for it, and the variable whose value it computes."""

    variable: Any
    op: LiftedOp
    match: Match
    linked: Linkable


@dataclass(frozen=True, slots=True)
class _Applying:
    finder: Finder
    target: Target
    strict: bool
    report: Report
    checker: Checker

    def module(self, module: Any) -> Any:
        """The module with calls, or the very same one if nothing was replaced."""
        linked: dict[str, Any] = {}
        functions: dict[Any, Any] = {}
        for variable, function in module.functions.items():
            if _is_read(function):
                changed = self._function(module, str(variable.name_hint), function, linked)
                if changed is not None:
                    functions[variable] = changed
        if not functions:
            return module
        result = module.clone()
        for variable, function in functions.items():
            result.update_func(variable, function)
        before = list(dict(module.attrs or {}).get(EXTERNAL, ()))
        return result.with_attr(EXTERNAL, [*before, *linked.values()])

    def _function(self, module: Any, name: str, function: Any, linked: dict[str, Any]) -> Any | None:
        """The function with calls; None if nothing was replaced."""
        try:
            return self._changed(module, name, function, linked)
        except ShapewrightError:
            raise
        except Exception as error:  # a defect of ours must not end the build
            self.report.kept.append(NotReplaced(name, "a function", defect(error, name)))
            return None

    def _changed(self, module: Any, name: str, function: Any, linked: dict[str, Any]) -> Any | None:
        prefix = "" if name == MAIN else f"{name}: "
        read = read_function(function)
        lifting = lift_graph(read.model.graph, self.target)
        self.report.kept += [NotReplaced(prefix + left.node, left.op, left.reason) for left in lifting.left]
        symbols = {read.sizes(variable): variable for variable in relax.analysis.defined_symbolic_vars(function)}
        calls = Calls(read.model.graph, read.values, symbols, read.scopes)
        chosen: list[_Chosen] = []
        replaced: list[Replaced] = []
        for op in lifting.ops:
            where = prefix + (op.output if len(op.nodes) == 1 else f"{op.nodes[0]}..{op.output}")
            matched = self._match(op, calls)
            if isinstance(matched, str):
                self.report.kept.append(NotReplaced(where, str(op.workload), matched, workload=op.workload))
                continue
            match, library = matched
            digest, threads = match.library.digest, match.library.manifest["threads"]
            replaced.append(
                Replaced(
                    where, str(op.workload), op.workload.key, digest, match.how, match.source, threads,
                    cache=match.cache,
                )
            )  # fmt: skip
            chosen.append(_Chosen(read.values[op.output], op, match, library))
        if not chosen:
            return None
        result = relax.analysis.remove_all_unused(_Rewriting(module, calls, chosen).visit_expr(function))
        self.report.replaced += replaced
        linked |= {each.linked.name: each.linked.module for each in chosen}
        return result

    def _match(self, op: LiftedOp, calls: Calls) -> tuple[Match, Linkable] | str:
        """The library for an operation, ready to be linked; or why there is none."""
        reason = calls.unfit(op)
        match = reason or self.finder.find(op.workload)
        if isinstance(match, str):
            return match
        reason = calls.unpacked(op, match)
        if reason:
            return reason
        try:
            return match, linkable(match.library, self.checker)
        except ShapewrightError as error:
            if self.strict:
                raise
            return str(error)


def _is_read(function: Any) -> bool:
    is_read = isinstance(function, relax.Function) and hasattr(function.body, "blocks")
    return is_read and not any(name in (function.attrs or {}) for name in OUTLINED)


@mutator
class _Rewriting(PyExprMutator):  # type: ignore[misc]
    """Binds the variables of what was chosen to calls."""

    def __init__(self, module: Any, calls: Calls, chosen: list[_Chosen]) -> None:
        super().__init__(module)
        self._calls = calls
        self._chosen = chosen

    def visit_var_binding_(self, binding: Any) -> None:
        for each in self._chosen:
            if each.variable.same_as(binding.var):
                value = self._calls.expression(each.op, each.match, each.linked, self.visit_expr)
                self.builder_.emit_normalized(relax.VarBinding(binding.var, self.builder_.normalize(value)))
                return
        super().visit_var_binding_(binding)
