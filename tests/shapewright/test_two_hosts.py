"""A device, and its tracker and a worker, on two hosts: two network namespaces with a wire between them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.measuring import wait_for

ROOT = Path(__file__).resolve().parents[2]
SERVICE, BOARD = "198.18.7.1", "198.18.7.2"
"""Addresses of a network that is for tests alone (RFC 2544)."""

MEASURE = f"""
import json, sys
from tests.measuring import TASK, request
from tuner.measure.network.connecting import Tracker
from tuner.measure.rpc_names import device_key
from tuner.measure.runners.rpc import RpcRunner
tracker = Tracker({SERVICE!r}, 9190)
key = device_key("rack", "board")
runner = RpcRunner(lambda life_s, interrupted: tracker.request(key, life_s, 20.0, interrupted), timeout_s=5.0)
(result,) = runner.run(TASK, [request()])
runner.close()
print(json.dumps({{"device": result.device, "ok": result.ok, "servers": tracker.servers()}}))
"""


class Host:
    """A network namespace, kept by a process that sleeps in it."""

    def __init__(self, stack: ExitStack) -> None:
        self.keeper = stack.enter_context(subprocess.Popen(["unshare", "--net", "sleep", "600"]))
        stack.callback(self.keeper.terminate)
        own = Path("/proc/self/ns/net").readlink()
        wait_for(lambda: Path(f"/proc/{self.keeper.pid}/ns/net").readlink() != own)
        self.run("ip", "link", "set", "lo", "up")

    def line(self, *command: str) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.keeper.pid}/ns/net", *command]

    def run(self, *command: str) -> str:
        ran = subprocess.run(self.line(*command), check=True, timeout=60, capture_output=True, text=True, cwd=ROOT)
        return ran.stdout

    def plug_in(self, name: str, address: str) -> None:
        self.run("ip", "address", "add", f"{address}/24", "dev", name)
        self.run("ip", "link", "set", name, "up")

    def start(self, stack: ExitStack, *arguments: str) -> dict[str, object]:
        """A part of Shapewright that prints a document when it is ready."""
        line = self.line(sys.executable, "-m", *arguments)
        process = stack.enter_context(subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=ROOT))
        stack.callback(process.terminate)
        assert process.stdout is not None
        return _document(process.stdout)


def _document(lines: Iterable[str]) -> dict[str, object]:
    """The JSON document that the lines begin with."""
    text = ""
    for line in lines:
        text += line
        with suppress(json.JSONDecodeError):
            return dict(json.loads(text))
    raise AssertionError(f"it ended after saying {text!r}")


def _cannot() -> str | None:
    """Why there are no two hosts here."""
    if missing := [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]:
        return f"no {', '.join(missing)} (Debian: util-linux, iproute2)"
    if subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode:
        return f"user {os.getuid()} may make no network namespace"
    return None


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host, ExitStack]]:
    if why := _cannot():
        pytest.skip(why)
    with ExitStack() as stack:
        service, board = Host(stack), Host(stack)
        service.run("ip", "link", "add", "wire0", "type", "veth", "peer", "wire1", "netns", str(board.keeper.pid))
        service.plug_in("wire0", SERVICE)
        board.plug_in("wire1", BOARD)
        yield service, board, stack


def _serve(*more: str) -> Sequence[str]:
    line = ("shapewright", "device", "serve", "--tracker", f"{SERVICE}:9190", "--key", "rack", "--id", "board")
    return (*line, "--json", *more)


@pytest.mark.soak
@pytest.mark.parametrize("more", [(), ("--host", "0.0.0.0")])
def test_a_device_of_another_host_is_reached_as_the_guide_has_it(
    hosts: tuple[Host, Host, ExitStack], more: tuple[str, ...]
) -> None:
    service, board, stack = hosts
    service.start(stack, "worker.tracker", "--host", "0.0.0.0", "--port", "9190")
    told = board.start(stack, *_serve(*more))
    assert told["host"] == (more[1] if more else BOARD)
    assert told["address"] == BOARD
    measured = json.loads(service.run(sys.executable, "-c", MEASURE))
    assert measured == {"device": "board", "ok": True, "servers": [["rack@board", [BOARD, told["port"]]]]}


def test_a_device_without_a_way_to_its_tracker_says_so(hosts: tuple[Host, Host, ExitStack]) -> None:
    _, board, _ = hosts
    line = board.line(sys.executable, "-m", *_serve("--tracker", "203.0.113.9:9190"))
    ran = subprocess.run(line, check=False, timeout=60, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 2
    error = json.loads(ran.stdout)["error"]
    assert (error["field"], error["remedy"]) == ("--tracker", "name it as in 10.0.0.7:9190")
    assert "no network leads to 203.0.113.9:9190: Network is unreachable" in error["message"]
