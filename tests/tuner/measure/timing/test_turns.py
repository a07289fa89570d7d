"""Taking turns: the order, the limits of time, and blocks that were disturbed, on a machine that is made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tuner.measure import Turns
from tuner.measure.timing.protocol import AGAIN
from tuner.measure.timing.turns import LEAST_TURNS, LONG_S, TURNS, Contender, TurnTaking


@dataclass
class Machine:
    """A clock that calls move; ``slower`` says of the time by what factor everything takes longer."""

    now_s: float = 0.0
    slower: Callable[[float], float] = lambda now_s: 1.0
    calls: list[tuple[str, int]] = field(default_factory=list)

    def clock(self) -> float:
        return self.now_s

    def anchor(self) -> float:
        self.now_s += 0.001
        return 1e-6 * self.slower(self.now_s)

    def contender(self, name: str, call_s: float) -> Contender:
        def sample(number: int) -> float:
            self.calls.append((name, number))
            took_s = call_s * self.slower(self.now_s)
            self.now_s += number * took_s
            return took_s

        return sample

    def turns(self, limit_s: float = 10.0, **contenders: float) -> Turns:
        blocks = [[self.contender(name, call_s) for name, call_s in contenders.items()] for _ in range(2)]
        return TurnTaking(blocks, self.anchor, limit_s, self.clock).run()


def test_a_turn_has_a_sample_of_each_at_each_instance_in_an_order_that_rotates() -> None:
    machine = Machine()
    turns = machine.turns(a=1e-3, b=5e-3, c=1e-4)
    assert len(turns.seconds) == TURNS
    assert all(block == pytest.approx((1e-3, 5e-3, 1e-4)) for turn in turns.seconds for block in turn)
    calls = machine.calls[-2 * 3 * 2 * TURNS :]
    warming, samples = calls[::2], calls[1::2]
    blocks = [samples[start : start + 3] for start in range(0, len(samples), 3)]
    assert {tuple(name for name, _ in block) for block in blocks} == {("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b")}
    # A sample takes two milliseconds, or one call.
    assert dict(samples) == {"a": 2, "b": 1, "c": 20}
    assert warming == [(name, 1) for name, _ in samples]


def test_a_contender_finds_its_own_operands_in_the_caches() -> None:
    """A machine on which the first call after another contender's takes half as long again, however long it is."""
    last = ""

    def contender(name: str, call_s: float) -> Contender:
        def sample(number: int) -> float:
            nonlocal last
            first, last = 1.5 if last != name else 1.0, name
            machine.now_s += call_s * (first + number - 1)
            return call_s * (first + number - 1) / number

        return sample

    for call_s in (1e-4, 1e-3, 2.4e-3, 0.012):
        machine = Machine()
        blocks: list[list[Contender | None]] = [[contender("numpy", call_s), contender("ours", call_s / 2)]]
        turns = TurnTaking(blocks, machine.anchor, 10.0, machine.clock).run()
        assert all(block == pytest.approx((call_s, call_s / 2)) for turn in turns.seconds for block in turn)


def test_calls_that_take_long_are_not_made_twice() -> None:
    machine = Machine()
    machine.turns(a=LONG_S + 0.001, b=LONG_S - 0.001)
    named = [name for name, _ in machine.calls[4:]]
    assert named.count("b") >= 2 * named.count("a") - 2


def test_it_ends_before_the_turn_that_would_take_too_long() -> None:
    machine = Machine()
    turns = machine.turns(1.0, a=0.03, b=0.03)
    assert LEAST_TURNS <= len(turns.seconds) < TURNS and machine.now_s <= 1.0
    slow = Machine()
    assert len(slow.turns(1.0, a=0.08, b=0.08).seconds) == LEAST_TURNS, "up to twice as long for the fewest"
    hopeless = Machine()
    assert len(hopeless.turns(1.0, a=0.5, b=0.5).seconds) < LEAST_TURNS
    assert hopeless.now_s == pytest.approx(4 * 0.5), "the first call of each tells"


def test_a_block_that_was_disturbed_is_taken_again() -> None:
    machine = Machine(slower=lambda now_s: 1.5 if 0.1 <= now_s < 0.106 else 1.0)
    turns = machine.turns(a=1e-3, b=1e-3)
    assert turns.retaken > 0 and turns.disturbed == 0
    assert {anchor_s for turn in turns.anchors_s for anchor_s in turn} == {1e-6}
    assert all(block == pytest.approx((1e-3, 1e-3)) for turn in turns.seconds for block in turn)


def test_a_block_whose_threads_waited_for_a_core_is_taken_again() -> None:
    """Its anchors, on one thread, saw nothing of it."""
    machine = Machine()
    samples = [0]

    def contender(number: int) -> float:
        samples[0] += 1
        return machine.contender("a", 2e-3 if samples[0] == 9 else 1e-3)(number)

    waits: list[list[Contender | None]] = [[contender]]
    turns = TurnTaking(waits, machine.anchor, 10.0, machine.clock, lambda: 0.1 * (samples[0] >= 9)).run()
    assert (turns.retaken, turns.disturbed) == (1, 0)
    assert {anchor_s for turn in turns.anchors_s for anchor_s in turn} == {1e-6}
    assert all(block == pytest.approx((1e-3,)) for turn in turns.seconds for block in turn)


def test_what_stays_disturbed_is_counted() -> None:
    machine = Machine(slower=lambda now_s: 1.5 if now_s > 0.15 else 1.0)
    turns = machine.turns(a=1e-3, b=1e-3)
    assert turns.disturbed > 0 and turns.retaken <= AGAIN * turns.disturbed
    # A core that stays slower is believed after a while.
    assert turns.disturbed < TURNS


def test_who_does_not_run_at_an_instance_has_no_time_there() -> None:
    machine = Machine()
    a, b = machine.contender("a", 1e-3), machine.contender("b", 1e-3)
    blocks: list[list[Contender | None]] = [[a, None], [a, b]]
    turns = TurnTaking(blocks, machine.anchor, 10.0, machine.clock).run()
    assert [[time is None for time in block] for block in turns.seconds[0]] == [[False, True], [False, False]]
    assert Turns.from_json(turns.to_json()) == turns
