"""What candidates are verified with is made once in a session, and only where candidates are timed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.measuring import RIGHT, TASK, request
from tuner.measure.rpc_names import PREPARE, TRIAL, VERIFY
from tuner.measure.runners.local_device import LocalDevice
from tuner.measure.runners.rpc import RpcRunner
from tuner.measure.runners.session import Session
from tuner.measure.verification.inputs import Made, random_inputs
from tuner.measure.verification.verify import cases


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions that devices were asked for."""
    names: list[str] = []
    ask = Session.ask

    def spy(session: Session, function: str, *given: Any, **more: Any) -> Any:
        names.append(function)
        return ask(session, function, *given, **more)

    monkeypatch.setattr(Session, "ask", spy)
    return names


@pytest.fixture
def runner() -> Iterator[RpcRunner]:
    with LocalDevice() as device:
        made = RpcRunner(device.connect, timeout_s=30.0)
        yield made
        made.close()


def test_a_session_is_prepared_before_its_first_trial_and_for_no_verification(
    runner: RpcRunner, asked: list[str]
) -> None:
    build = request(RIGHT).build
    assert runner.verify(TASK, build, [{"m": 5}]) == []
    assert asked == [VERIFY]
    assert all(result.ok for result in runner.run(TASK, [request(RIGHT), request(RIGHT, 1)]))
    assert asked == [VERIFY, PREPARE, TRIAL, TRIAL]


def test_a_device_of_an_earlier_release_prepares_itself(
    runner: RpcRunner, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.measure.runners.rpc.PREPARE", "shapewright.not_known")
    assert all(result.ok for result in runner.run(TASK, [request(RIGHT), request(RIGHT, 1)]))
    assert asked == ["shapewright.not_known", TRIAL, TRIAL]


def test_what_does_not_depend_on_the_symbols_is_drawn_once() -> None:
    made: Made = {}
    every = cases(TASK.workload, made)
    assert len(every) > 2
    assert len({id(case.inputs[1]) for case in every}) == 1
    assert len({id(case.inputs[0]) for case in every}) == len(every)
    assert [name for name, _ in made] == [TASK.workload.inputs[1].name]
    for case in every:
        for kept, fresh in zip(case.inputs, random_inputs(TASK.workload, case.dims), strict=True):
            assert np.array_equal(kept, fresh)
