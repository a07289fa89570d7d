"""The dashboard at its limits: a job of 100,000 trials, and a search that stores 50 trials a second.

    python -m benchmarks.dashboard [--trials N] [--rate PER_S] [--seconds S] --json OUT

A service in a process of its own, over SQLite; a headless Chromium. ``interactive_s``: from asking for the page of the
large job until it answers to a click. ``figure_s`` and ``figure_bytes`` of each figure, once the search has been read.
``event_to_screen``: from the commit of a trial until the page shows its number, over ``--seconds``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx
import numpy as np

from benchmarks.harness.results import finish, options_of
from benchmarks.service import serving
from benchmarks.serving.filled import KERNELS, MEASURED, Scale, dense_job, kernels, leased, load, result_of
from benchmarks.serving.writers import store
from tuner.program.job.jobspec import parse_job
from tuner.storage import Lease
from tuner.storage.sql import Storage, open_storage

WAIT_S = 120.0
DRAWN = "() => document.querySelector('.plot').dataset.drawn"
SHOWN = """() => {
  const place = document.getElementById("trials");
  const number = () => Number(place.textContent.split(" ")[0].replaceAll(",", ""));
  window.shown = [];
  new MutationObserver(() => window.shown.push([number(), Date.now()]))
    .observe(place, {childList: true, characterData: true, subtree: true});
}"""


def main() -> int:
    options = options_of(__doc__, trials=100_000, rate=50.0, seconds=20.0).parse_args()
    with tempfile.TemporaryDirectory(prefix="shapewright-dashboard-") as folder:
        url = f"sqlite:///{folder}/tuning.db"
        large = load(url, Scale(1000, 2, options.trials)).large_job
        with closing(open_storage(url)) as storage, serving(url) as (service, _):
            address = "http://{}:{}/".format(*service.address)
            shown = _large(storage, address, service.key, large)
            running = leased(storage, parse_job(dense_job(2304, 768, device="live")), "live")
            live = _live(storage, address, running, options)
    protocol = {"trials": options.trials, "rate_per_s": options.rate, "seconds": options.seconds}
    return finish(options.json, {"summary": {"large": shown, "live": live}, "protocol": protocol})


def _large(storage: Storage, address: str, key: str, job_id: str) -> dict[str, Any]:
    from tuner.figures import FIGURES  # noqa: PLC0415

    result: dict[str, Any] = {"figure_s": {}, "figure_bytes": {}}
    with _page(storage, address) as page:
        started = time.perf_counter()
        page.goto(f"{address}jobs/{job_id}", wait_until="domcontentloaded")
        page.locator("#theme").click()
        result["interactive_s"] = time.perf_counter() - started
        page.wait_for_function(DRAWN, timeout=1000 * WAIT_S)
        result["first_figure_s"] = time.perf_counter() - started
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}, timeout=WAIT_S) as client:
        for name in FIGURES:
            started = time.perf_counter()
            answer = client.get(f"/v1/jobs/{job_id}/figures/{name}").raise_for_status()
            result["figure_s"][name] = time.perf_counter() - started
            result["figure_bytes"][name] = len(answer.content)
    return result


def _live(storage: Storage, address: str, lease: Lease, options: argparse.Namespace) -> dict[str, float]:
    """Batches of one trial at the given rate; how much later than its commit each number stood on the page."""
    stored: dict[int, float] = {}

    def write() -> None:
        started = time.monotonic()
        for number in range(1, int(options.rate * options.seconds) + 1):
            again, which = divmod(number, KERNELS)
            result = result_of(kernels()[which], MEASURED[again % len(MEASURED)], 2.0 - 1e-5 * number, number)
            store(storage, lease, [result], number, number, time.monotonic() - started)
            stored[number] = time.time()
            time.sleep(max(0.0, started + number / options.rate - time.monotonic()))

    with _page(storage, address) as page:
        page.goto(f"{address}jobs/{lease.job.id}")
        page.wait_for_function(DRAWN, timeout=1000 * WAIT_S)
        page.evaluate(SHOWN)
        thread = threading.Thread(target=write)
        thread.start()
        while thread.is_alive():
            page.wait_for_timeout(200)
        page.wait_for_timeout(3000)
        shown = page.evaluate("window.shown")
        drawn = page.evaluate("[...document.querySelectorAll('.plot')].map(place => Number(place.dataset.drawn || 0))")
    delays = [_delay_s(stored, shown, number) for number in stored]
    p50, p99 = np.quantile(delays, [0.5, 0.99])
    return {
        "stored": len(stored), "event_to_screen_p50_s": float(p50), "event_to_screen_p99_s": float(p99),
        "event_to_screen_worst_s": max(delays), "redraws_of_the_most_drawn_figure": max(drawn),
    }  # fmt: skip


def _delay_s(stored: dict[int, float], shown: list[list[float]], number: int) -> float:
    """A number that was passed over is on the screen when a later one is; one that never came is infinitely late."""
    at = min((when / 1000 for trials, when in shown if trials >= number), default=float("inf"))
    return max(0.0, at - stored[number])


@contextmanager
def _page(storage: Storage, address: str) -> Iterator[Any]:
    """A page of a Chromium of its own, signed in."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("no Chromium is on PATH: apt-get install chromium")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(1000 * WAIT_S)
        page.goto(f"{address}login?token={storage.create_login('benchmark', 60.0)}")
        yield page
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
