"""A device behind SSH: its port at the worker's host, and the tracker's port here, both on loopback alone.

SSH says who is who, and encrypts. It is OpenSSH's own program, which is started again when it ends.
"""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tuner.errors import MAX_SHOWN, InvalidInput
from tuner.measure._base import DeviceLost
from tuner.measure.network.addresses import Address, address_text, free_port
from tuner.measure.network.connecting import Tracker

log = logging.getLogger(__name__)

HERE = "127.0.0.1"
DEVICE_AT = "127.0.0.2"
"""Where the device listens: its port is the same at both ends, which may be one machine."""
START_S = 20.0
TRIES = 5
"""Ports of the worker's host that are tried, where none was given."""
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0
"""Waits before SSH is started again: doubled each time, from the first again once it ran for the longest."""
STOP_S = 5.0
SAID = 3
"""Lines of what SSH says that are kept."""
LOOK_S = 0.1
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")
"""The name of a host or a user: nothing that SSH could take for an option."""
OPTIONS = {
    "BatchMode": "yes",
    "ExitOnForwardFailure": "yes",
    "ServerAliveInterval": "15",
    "ServerAliveCountMax": "3",
    "ConnectTimeout": "10",
    "ControlMaster": "no",
    "ControlPath": "none",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
}


@dataclass(frozen=True, slots=True)
class Gate:
    """The worker's host, as SSH reaches it."""

    host: str
    port: int | None = None
    user: str | None = None
    config: Path | None = None
    """A file of SSH's settings, in place of the user's."""

    @staticmethod
    def parse(text: str, config: Path | None = None) -> Gate:
        """``ssh://[USER@]HOST[:PORT]``. Raises InvalidInput on ``--tunnel``."""
        try:
            parts = urlsplit(text)
            gate = Gate(parts.hostname or "", parts.port, parts.username, config)
            is_whole = parts.scheme == "ssh" and parts.password is None and not (parts.path or parts.query)
        except ValueError:
            is_whole = False
        if not is_whole or not all(NAME.fullmatch(name) for name in (gate.host, gate.user or "a")):
            problem = f"{text[:MAX_SHOWN]!r} is not the address of a host"
            raise InvalidInput("--tunnel", problem, "as in ssh://device@10.0.0.7 or ssh://10.0.0.7:2222")
        return gate

    def command(self, here: int, tracker: Address, port: int) -> list[str]:
        """Forwards ``here`` to the tracker, as the host knows it, and the host's ``port`` to the same one here."""
        where = address_text(tracker)
        line = ["ssh", "-N", "-T", *(["-F", str(self.config)] if self.config else [])]
        line += [f"-o{name}={value}" for name, value in OPTIONS.items()]
        line += [f"-p{self.port}"] if self.port else []
        line += [f"-l{self.user}"] if self.user else []
        line += ["-L", f"{HERE}:{here}:{where}", "-R", f"{HERE}:{port}:{DEVICE_AT}:{port}", "--", self.host]
        # A tunnel outlives no device, however that ends.
        return ["setpriv", "--pdeathsig", "TERM", *line]


@dataclass
class Tunnel:
    """An open tunnel: ``tracker`` and ``port`` are where they are here. Its thread opens it again until ``close``."""

    gate: Gate
    at_gate: Address
    """The tracker's address, as the worker's host knows it."""
    port: int
    here: int = field(default_factory=free_port)
    _stop: threading.Event = field(default_factory=threading.Event)
    _opened: threading.Event = field(default_factory=threading.Event)
    _failed: str | None = None
    _process: subprocess.Popen[str] | None = None
    _thread: threading.Thread | None = None

    @property
    def tracker(self) -> Address:
        return HERE, self.here

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @classmethod
    def open(cls, gate: Gate, tracker: Address, port: int = 0) -> Tunnel:
        """``port`` 0 takes one that is free here and there. Raises InvalidInput where it cannot be opened."""
        if missing := [name for name in ("ssh", "setpriv") if shutil.which(name) is None]:
            remedy = "install openssh-client and util-linux"
            raise InvalidInput("--tunnel", f"there is no {' and no '.join(missing)} here", remedy)
        problem = ""
        for _ in range(1 if port else TRIES):
            tunnel = cls(gate, tracker, port or free_port())
            problem = tunnel._start()
            if not problem:
                return tunnel
            tunnel.close()
            if "forwarding failed" not in problem:
                break
        raise InvalidInput(
            "--tunnel", f"SSH to {gate.host}: {problem}", "see that `ssh` by hand reaches it without a question"
        )

    def close(self) -> None:
        """End it, and SSH with it."""
        self._stop.set()
        if self._process is not None:
            self._process.terminate()
        if self._thread is not None:
            self._thread.join(STOP_S)

    def _start(self) -> str:
        """What is wrong; nothing once the tracker answers through it, or SSH has held for START_S."""
        # The thread lives as long as SSH is wanted: SSH ends when whichever thread started it does.
        self._thread = threading.Thread(target=self._supervise, name="tunnel", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._opened.wait(LOOK_S):
                # SSH requests the port there before it passes anything on, and ends if that is refused.
                return ""
            if self._failed is not None:
                return self._failed
            self._look()
        where = address_text(self.at_gate)
        log.warning("the tracker %s of %s does not answer through the tunnel", where, self.gate.host)
        self._opened.set()
        return ""

    def _look(self) -> None:
        try:
            Tracker(*self.tracker).servers()
        except DeviceLost:
            return
        if self._failed is None:
            self._opened.set()

    def _supervise(self) -> None:
        wait_s = FIRST_WAIT_S
        while not self._stop.is_set():
            began = time.monotonic()
            problem = self._run()
            if self._stop.is_set():
                return
            if not self._opened.is_set():
                self._failed = problem
                return
            wait_s = FIRST_WAIT_S if time.monotonic() - began > LONGEST_WAIT_S else min(2 * wait_s, LONGEST_WAIT_S)
            log.warning("the tunnel to %s has ended: %s; again in %g s", self.gate.host, problem, wait_s)
            self._stop.wait(wait_s)

    def _run(self) -> str:
        """SSH from its start to its end: its last word."""
        line = self.gate.command(self.here, self.at_gate, self.port)
        self._process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if self._stop.is_set():
            self._process.terminate()
        # It may say something for as long as it runs.
        said = deque((text.strip() for text in self._process.stderr or () if text.strip()), maxlen=SAID)
        code = self._process.wait()
        return "; ".join(said)[-MAX_SHOWN * 4 :] or f"exit code {code}"
