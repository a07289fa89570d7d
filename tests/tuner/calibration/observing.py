"""Latencies of probes as a device of given rates would have them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tuner.calibration import cpu
from tuner.calibration.cpu import FITTED, in_tiles, probes
from tuner.calibration.fit import Observed
from tuner.calibration.kind import Probe
from tuner.program.job.task import SearchTask
from tuner.program.target import Target
from tuner.program.target.rates import TYPICAL, Rates
from tuner.schedule import estimate_s, extents_of
from tuner.schedule.space import MicroKernel

TARGET = Target.from_json({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 4})


def all_probes(threads: int = 1) -> tuple[Probe, ...]:
    """But for those in tiles."""
    return _probes(threads, cpu.LAYERS)


@cache
def _probes(threads: int, layers: tuple[tuple[int, int], ...]) -> tuple[Probe, ...]:
    """``layers`` are those that ``probes`` reads."""
    apart = in_tiles(TARGET, threads)
    return tuple(probe for probe in probes(TARGET, threads) if probe.task not in apart)


_KERNELS: dict[Hashable, list[MicroKernel]] = {}


def remember_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrations draw the kernels of a product once for all that ask for the same ones."""
    draw = cpu._kernels

    def remembered(task: SearchTask, rng: np.random.Generator) -> list[MicroKernel]:
        key = task, str(rng.bit_generator.state), cpu.KERNELS
        if key not in _KERNELS:
            _KERNELS[key] = draw(task, rng)
        return _KERNELS[key]

    monkeypatch.setattr(cpu, "_kernels", remembered)


def few_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrations measure two layers beside the products of new operands."""
    monkeypatch.setattr(cpu, "LAYERS", cpu.LAYERS[:2])


def perturbed(seed: int, most: float = 3.0) -> Rates:
    """Every rate that is fitted times a factor of its own, up to ``most`` and down to its reciprocal."""
    factors = np.exp(np.random.default_rng(seed).uniform(-np.log(most), np.log(most), len(FITTED)))
    changed = {name: getattr(TYPICAL, name) * float(factor) for name, factor in zip(FITTED, factors, strict=True)}
    return replace(TYPICAL, **changed)


def observed_at(rates: Rates, noise: float = 0.03, seed: int = 0, threads: int = 1) -> list[Observed]:
    """All probes, by layer; logarithms of latencies have normal noise."""
    rng = np.random.default_rng(seed)
    kernels: dict[str, tuple[MicroKernel, ...]] = {}
    tasks: dict[str, SearchTask] = {}
    for probe in all_probes(threads):
        key = probe.task.workload.key
        kernels[key], tasks[key] = kernels.get(key, ()) + probe.kernels, probe.task
    return [_observed(tasks[key], kernels[key], rates, noise, rng) for key in tasks]


def _observed(
    task: SearchTask, kernels: tuple[MicroKernel, ...], rates: Rates, noise: float, rng: np.random.Generator
) -> Observed:
    shapes = shapes_of(task)
    exact = estimate_s(task.at_rates(rates), kernels, extents_of(task.workload, shapes))
    return Observed(task, kernels, tuple(shapes), exact * np.exp(noise * rng.normal(size=exact.shape)))


def shapes_of(task: SearchTask) -> list[Mapping[str, int]]:
    return [instance.shape for instance in task.instances]
