"""A device behind SSH: with a real sshd on this machine, and keys that are thrown away."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.measuring import RIGHT, TASK, request, wait_for
from tests.shares import chosen
from tuner.errors import InvalidInput
from tuner.measure.network.addresses import free_port
from tuner.measure.network.connecting import Tracker
from tuner.measure.network.sockets import RECONNECT_S
from tuner.measure.network.tunnel import SAID, Gate, Tunnel
from tuner.measure.rpc_names import device_key
from tuner.measure.runners.rpc import RpcRunner
from worker.tracker import start_tracker

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")


@dataclass
class Host:
    """The workers' host: its sshd, and how a device reaches it."""

    port: int
    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "config"

    @property
    def url(self) -> str:
        return f"ssh://{getpass.getuser()}@127.0.0.1:{self.port}"


def _key(path: Path) -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True, timeout=30)
    return path.with_suffix(".pub").read_text()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("no ssh or no sshd (Debian: openssh-client, openssh-server)")
    folder, port = tmp_path / "ssh", free_port()
    folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        # What Debian's service makes; sshd of root wants it.
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    _key(folder / "host")
    restricted = 'restrict,port-forwarding,permitopen="127.0.0.1:*" '
    (folder / "authorized").write_text(restricted + _key(folder / "device"))
    (folder / "known").write_text(f"[127.0.0.1]:{port} " + (folder / "host.pub").read_text())
    (folder / "sshd").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\nUsePAM no\nStrictModes no\nPidFile none\n"
    )
    (folder / "config").write_text(
        f"IdentityFile {folder}/device\nIdentitiesOnly yes\nUserKnownHostsFile {folder}/known\n"
        "GlobalKnownHostsFile none\nStrictHostKeyChecking yes\n"
    )
    with (folder / "log").open("w") as log:
        line = [SSHD, "-D", "-e", "-f", str(folder / "sshd")]
        with subprocess.Popen(line, stdin=subprocess.DEVNULL, stderr=log) as process:
            wait_for(lambda: "Server listening" in (folder / "log").read_text() or process.poll() is not None)
            assert process.poll() is None, (folder / "log").read_text()
            yield Host(port, folder)
            for child in psutil.Process(process.pid).children(recursive=True):
                child.terminate()
            process.terminate()


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracker]:
    with start_tracker(data_dir=tmp_path_factory.mktemp("tracker")) as served:
        yield Tracker("127.0.0.1", served.port)


@pytest.fixture
def tracker(standing: Tracker) -> Tracker:
    """A tracker whose last device has gone."""
    wait_for(lambda: not standing.servers())
    return standing


def line_of(host: Host, tracker: Tracker, *more: object) -> list[str]:
    line = ["device", "serve", "--tracker", f"127.0.0.1:{tracker.port}", "--id", "far", "--json"]
    line += ["--tunnel", host.url, "--ssh-config", str(host.config), *map(str, more)]
    return [sys.executable, "-m", "shapewright", *line]


@pytest.fixture
def device(host: Host, tracker: Tracker) -> Iterator[dict[str, Any]]:
    with subprocess.Popen(line_of(host, tracker), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.read())
        process.terminate()


def ssh_of(device: dict[str, Any]) -> psutil.Process:
    (found,) = (each for each in psutil.Process(device["pid"]).children() if each.name() == "ssh")
    return found


def test_a_device_measures_through_the_tunnel_and_nothing_listens_but_on_loopback(
    tracker: Tracker, device: dict[str, Any]
) -> None:
    assert (device["host"], device["address"]) == ("127.0.0.2", "127.0.0.1")
    for process in (psutil.Process(device["pid"]), ssh_of(device)):
        listening = [each.laddr for each in process.net_connections("tcp") if each.status == "LISTEN"]
        assert len(listening) == 1
        assert listening[0].ip in ("127.0.0.1", "127.0.0.2")
    # The tracker hears of it from sshd, not from the device.
    (to_tracker,) = (each for each in psutil.Process(device["pid"]).net_connections("tcp") if each.raddr)
    assert to_tracker.raddr.port != tracker.port
    runner = runner_of(tracker)
    assert runner.run(TASK, [request(RIGHT, 1)])[0].ok
    runner.close()


def test_a_tunnel_that_breaks_is_opened_again(tracker: Tracker, device: dict[str, Any]) -> None:
    broken = ssh_of(device)
    broken.kill()
    wait_for(lambda: not tracker.servers())
    wait_for(lambda: [key for key, _ in tracker.servers()] == [device_key("local", "far")], 60.0)
    assert ssh_of(device).pid != broken.pid
    runner = runner_of(tracker)
    assert runner.run(TASK, [request(RIGHT, 1)])[0].ok
    runner.close()


@pytest.mark.parametrize("how", chosen([signal.SIGKILL], [signal.SIGTERM, signal.SIGKILL]))
def test_a_tunnel_ends_with_its_device(device: dict[str, Any], how: signal.Signals) -> None:
    tunnel = ssh_of(device)
    os.kill(device["pid"], how)
    _, alive = psutil.wait_procs([tunnel], timeout=10)
    assert alive == []


def refusal(line: list[str]) -> dict[str, str]:
    ran = subprocess.run(line, check=False, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2, ran.stderr
    error: dict[str, str] = json.loads(ran.stdout)["error"]
    return error


def test_a_host_that_is_not_the_one_that_is_known_is_refused(host: Host, tracker: Tracker) -> None:
    _key(host.folder / "another")
    public = (host.folder / "another.pub").read_text()
    (host.folder / "known").write_text(f"[127.0.0.1]:{host.port} {public}")
    error = refusal(line_of(host, tracker))
    assert error["field"] == "--tunnel"
    assert "Host key verification failed" in error["message"]


def test_a_port_that_is_taken_at_the_workers_host_is_told(host: Host, tracker: Tracker) -> None:
    error = refusal(line_of(host, tracker, "--port", tracker.port))
    assert "remote port forwarding failed" in error["message"]


def test_of_what_ssh_says_the_last_lines_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "ssh"
    fake.write_text("#!/bin/sh\nfor n in 1 2 3 4 5 6 7 8 9; do echo line$n >&2; done; exit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(InvalidInput) as refused:
        Tunnel.open(Gate("host"), ("127.0.0.1", 9190))
    assert "; ".join(f"line{n}" for n in range(10 - SAID, 10)) in str(refused.value)
    assert f"line{9 - SAID}" not in str(refused.value)


def test_a_tracker_that_hangs_up_is_not_asked_again_at_once() -> None:
    """As where a tunnel stands and the tracker behind it is away."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60.0)
        line = f"device serve --tracker 127.0.0.1:{server.getsockname()[1]} --id a --json"
        with subprocess.Popen([sys.executable, "-m", "shapewright", *line.split()], stdout=subprocess.PIPE) as device:
            asked = []
            for _ in range(4):
                server.accept()[0].close()
                asked.append(time.monotonic())
            device.terminate()
    # The first may be from the command, which looks for the tracker's network.
    assert asked[-1] - asked[1] > RECONNECT_S


def test_a_tunnel_leaves_no_choice_of_addresses(host: Host, tracker: Tracker) -> None:
    assert refusal(line_of(host, tracker, "--host", "0.0.0.0"))["remedy"] == "leave out --host and --address"


@pytest.mark.parametrize(
    "text",
    [
        *("", "host", "ssh://", "http://a", "ssh://-oProxyCommand=x", "ssh://a/b", "ssh://-l@a", "ssh://a:b@c"),
        "ssh://a:99999",
    ],
)
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"--tunnel: .* is not the address of a host"):
        Gate.parse(text)


def runner_of(tracker: Tracker) -> RpcRunner:
    key = device_key("local", "far")
    return RpcRunner(lambda life_s, interrupted: tracker.request(key, life_s, 20.0, interrupted), timeout_s=8.0)
