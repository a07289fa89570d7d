"""Sessions that are refused: the device is free for the next one at once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.measuring import TASK
from tuner.measure import NotMeasured, WrongDevice, never
from tuner.measure.runners.session import Session
from tuner.program.target import Target, native

GPU = Target.from_json({"kind": "cuda", "product": "h100"})


@dataclass
class Line:
    """A connection to a device that says ``about`` of itself."""

    about: dict[str, Any]
    is_open: bool = True
    address = ("127.0.0.1", 1)

    def call(self, function: str, *args: object) -> str:
        if function == "CloseRPCConnection":
            self.is_open = False
        return json.dumps({"id": "one", "server": "s", "caches": ["warm"], "description": {"cores": 2}} | self.about)


@pytest.mark.parametrize(
    ("about", "error", "message"),
    [
        ({"target": GPU.to_json()}, NotMeasured, "runs code for cuda"),
        ({"description": {"cores": 0}}, WrongDevice, "measures on 0 of its cores"),
        ({"caches": ["cold"]}, WrongDevice, "times warm calls alone"),
    ],
    ids=["another-kind", "too-few-cores", "earlier-release"],
)
def test_a_session_with_a_device_that_does_not_do_is_closed(
    about: dict[str, Any], error: type[Exception], message: str
) -> None:
    line = Line({"target": native().to_json()} | about)
    with pytest.raises(error, match=message):
        Session.open(lambda _life, _interrupted: line, TASK, 60.0, never)  # type: ignore[arg-type, return-value]
    assert not line.is_open


def test_a_session_that_is_opened_stays() -> None:
    line = Line({"target": native().to_json()})
    assert Session.open(lambda _life, _interrupted: line, TASK, 60.0, never).device == "one"  # type: ignore[arg-type, return-value]
    assert line.is_open
