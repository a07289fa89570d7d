"""Aligned tiles built by theory, the first few of each instance measured: Roller (Zhu et al., OSDI 2022).

Roller builds a tile up from the smallest one that the hardware is aligned to. Each step enlarges the axis that pays
most, until a level of memory is full; the tiles are ranked by a model of the memory hierarchy, and the first ten are
measured (sections 3.2 and 3.3). Here alignment is a matter of the space: its axes count whole vectors, cache blocks and
threads, and its ``check`` is the limit of registers and code. Caches are theory's: it knows what a block costs once its
operands no longer fit the next level. So tiles grow from the smallest kernel of each rule, a choice of one axis at a
time, several side by side (a beam), and one is *full* where nothing a step larger is both legal and faster by theory.

For a set: tiles are built for each instance and ranked there, the penalty of their packed layouts counted, as theory
has it. The instances take turns by weight: the first tile of each, the second of each. A tile that is among the first
of several instances is measured at all of them. Nothing is learned, so the search ends after these.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tuner.program.job.task import SearchTask
from tuner.schedule import layout_group
from tuner.schedule.space import KernelSpace, MicroKernel
from tuner.search.cost_model import CostModel
from tuner.search.policy._base import Pick
from tuner.search.policy.set_so_far import Turns, layout_penalties
from tuner.search.policy.theory import TheorySettings
from tuner.search.policy.theory_first import BasePolicy, kernels_of_round

Floats = NDArray[np.float64]
MAX_STEPS = 100
"""Steps from the smallest tile to a full one: more than any space has."""


@dataclass(frozen=True, slots=True)
class RollerSettings:
    """How many tiles are built side by side, and how many of them are measured."""

    beam: int = 8
    tiles_per_instance: int = 10
    kernels_per_round: int = 8
    theory: TheorySettings = field(default_factory=TheorySettings)


class RollerSearch(BasePolicy):
    """Theory's set, then the first full tiles of each instance. Ends when they are measured."""

    def __init__(
        self, task: SearchTask, space: KernelSpace, model: CostModel, seed: int = 0,
        settings: RollerSettings | None = None,
    ) -> None:  # fmt: skip
        self._settings = settings or RollerSettings()
        super().__init__(task, space, model, seed, self._settings.theory)

    def _next(self, trials: int, devices: int) -> list[Pick]:
        known = self._known
        left = [(kernel, indices) for kernel, indices in self._tiles if kernel not in known]
        return left[: kernels_of_round(self._settings.kernels_per_round, devices)]

    @cached_property
    def _tiles(self) -> list[Pick]:
        """The first tiles of every instance, in turn, each at all instances where it is one of the first."""
        ranked = self._ranked()
        places: dict[MicroKernel, list[int]] = {}
        for index, tiles in ranked.items():
            for tile in tiles:
                places.setdefault(tile, []).append(index)
        turns, order = Turns(self._weights), dict[MicroKernel, None]()
        queues = {index: list(tiles) for index, tiles in ranked.items()}
        while left := [index for index, queue in queues.items() if queue]:
            order[queues[turns.next(left)].pop(0)] = None
        return [(tile, sorted(places[tile])) for tile in order]

    def _ranked(self) -> dict[int, list[MicroKernel]]:
        """The first tiles of each instance that has a weight, by its index."""
        weighted = [int(index) for index in np.flatnonzero(self._weights)]
        full = list(dict.fromkeys(tile for index in weighted for tile in self._full_tiles(index)))
        times = np.log(self._theory_s(full, range(len(self._shapes))))
        layouts = [layout_group(self._task, tile) for tile in full]
        best: dict[Hashable, Floats] = {
            layout: np.exp(times[[at for at, other in enumerate(layouts) if other == layout]].min(axis=0))
            for layout in dict.fromkeys(layouts)
        }
        penalties = layout_penalties(best, self._weights)
        scores = times + np.array([[penalties[layout]] for layout in layouts])
        count = self._settings.tiles_per_instance
        return {index: [full[at] for at in scores[:, index].argsort(kind="stable")[:count]] for index in weighted}

    # -- construction ---------------------------------------------------------------------------------------------
    def _full_tiles(self, index: int) -> list[MicroKernel]:
        """Tiles that nothing larger improves on at one instance, built up from the smallest of each rule."""
        times: dict[MicroKernel, float] = {}
        full: list[MicroKernel] = []
        for smallest in self._space.smallest():
            beam = [smallest]
            times |= self._new_times(beam, times, index)
            for _ in range(MAX_STEPS):
                larger = {tile: self._larger(tile) for tile in beam}
                times |= self._new_times([near for each in larger.values() for near in each], times, index)
                full += [tile for tile, near in larger.items() if all(times[each] >= times[tile] for each in near)]
                grown = dict.fromkeys(
                    near for tile, each in larger.items() for near in each if times[near] < times[tile]
                )
                beam = sorted(grown, key=times.__getitem__)[: self._settings.beam]
        return list(dict.fromkeys(full))

    def _larger(self, tile: MicroKernel) -> list[MicroKernel]:
        """The legal kernels with the next choice of one axis."""
        return [near for (_, direction), near in self._space.steps(tile).items() if direction > 0]

    def _new_times(
        self, tiles: Sequence[MicroKernel], times: Mapping[MicroKernel, float], index: int
    ) -> dict[MicroKernel, float]:
        new = [tile for tile in dict.fromkeys(tiles) if tile not in times]
        return dict(zip(new, self._theory_s(new, [index])[:, 0].tolist(), strict=True)) if new else {}

    def _theory_s(self, tiles: Sequence[MicroKernel], indices: Sequence[int]) -> Floats:
        """[tiles, instances]: seconds that the analytic model expects, whatever was measured."""
        return self._model.theory.predict(tiles, [self._shapes[index] for index in indices]).latency_s
