"""A model that was read: its graph, and where its symbols are known from; and which shape variable each one is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shapewright.models.graph import Graph
from tuner.errors import InvalidInput, shown
from tuner.program.language.shape_vars import ShapeVar

Place = tuple[str, int]
"""An input of a model, and one of its axes."""


@dataclass(frozen=True, slots=True)
class Model:
    """``places``: by symbol the dims of inputs that have its size. ``ranges``: those that the model itself gives.

    ``names``: what the model calls a symbol, where that is something else than the symbol's own name.
    """

    graph: Graph
    places: Mapping[str, Sequence[Place]]
    ranges: Mapping[str, range]
    names: Mapping[str, str]

    def called(self, symbol: str) -> str:
        return self.names.get(symbol, symbol)


@dataclass(frozen=True, slots=True)
class Named:
    """A shape variable, and the dim of an input that it is meant for, if it says one."""

    variable: ShapeVar
    place: Place | None = None


def bound(model: Model, named: Sequence[Named]) -> tuple[Graph, tuple[ShapeVar, ...]]:
    """The graph over shape variables, and these, for every symbol of the model.

    A variable names a place, a symbol or what the model calls it; if the model has only one symbol, any name does.
    A symbol that none is given for has the range that the model says. Raises InvalidInput on field ``shape_vars``.
    """
    symbols = sorted(model.graph.symbols)
    chosen: dict[str, ShapeVar] = {}
    for each in named:
        symbol = _symbol(model, symbols, each)
        if symbol in chosen:
            raise InvalidInput("shape_vars", f"{chosen[symbol].name} and {each.variable.name} are one dim", "keep one")
        chosen[symbol] = each.variable
    names = {symbol: chosen[symbol].name if symbol in chosen else model.called(symbol) for symbol in symbols}
    for symbol in symbols:
        if symbol not in chosen and symbol in model.ranges:
            chosen[symbol] = ShapeVar(names[symbol], model.ranges[symbol])
    if len(set(names.values())) < len(names):
        raise InvalidInput("shape_vars", f"{', '.join(names.values())} repeats a name", "give each dim its own")
    return model.graph.renamed(names), tuple(chosen[symbol] for symbol in symbols if symbol in chosen)


def _symbol(model: Model, symbols: Sequence[str], named: Named) -> str:
    """The symbol that a shape variable is meant for."""
    name, field = named.variable.name, f"shape_vars.{named.variable.name}"
    if not symbols:
        raise InvalidInput(field, "the model has no dynamic dim", "export it with dynamic shapes, or leave this out")
    if named.place is not None:
        return _at(model, named.place, field)
    for symbol in symbols:
        if name in (symbol, model.called(symbol)):
            return symbol
    if len(symbols) == 1:
        return symbols[0]
    raise InvalidInput(field, f"{shown(name)} is no dim of the model", f"one of {described(model)}")


def _at(model: Model, place: Place, field: str) -> str:
    for symbol, places in model.places.items():
        if place in places:
            return symbol
    problem = f"axis {place[1]} of {shown(place[0])} is no dynamic dim of an input"
    raise InvalidInput(field, problem, f"one of {described(model)}")


def described(model: Model) -> str:
    """``seq (ids:1, mask:1), batch (ids:0)``: the dynamic dims, and where they are."""
    parts = []
    for symbol in sorted(model.graph.symbols):
        places = [f"{name}:{axis}" for name, axis in model.places.get(symbol, ())][:4]
        parts.append(f"{model.called(symbol)} ({', '.join(places)})" if places else model.called(symbol))
    return ", ".join(parts)
