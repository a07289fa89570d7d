"""Child processes that build, where two threads end one at the same time."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from typing import Any

from tuner.measure.builders import local


class ClosedByTwo(io.BytesIO):
    """While it is closed for the first time, another thread has its turn at ``end``."""

    def __init__(self, end: Any) -> None:
        super().__init__()
        self.second = threading.Thread(target=end)

    def close(self) -> None:
        if self.second.ident is None:
            self.second.start()
            # Either it ends the process meanwhile, or it waits for this thread.
            self.second.join(0.2)
        super().close()


def test_a_process_may_be_ended_by_two_threads_at_once() -> None:
    worker = local._Worker(maximum_uses=1)
    worker._proc = process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    writer: Any = ClosedByTwo(worker.kill)
    reader: Any = io.BytesIO()
    worker._reader, worker._writer = reader, writer

    worker.kill()

    writer.second.join(10.0)
    assert not writer.second.is_alive()
    assert process.wait(10.0) != 0 and worker._proc is None
