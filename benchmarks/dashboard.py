"""The dashboard at its limits: a job of 100,000 trials, and a search that stores 50 trials a second.

    python -m benchmarks.dashboard [--trials N] [--rate PER_S] [--seconds S] [--json OUT]

A service in a process of its own, over SQLite; a headless Chromium. ``interactive_s``: from asking for the page of the
large job until it answers to a click. ``figure_s`` and ``figure_bytes`` of each figure, once the search has been read.
``event_to_screen``: from the commit of a trial until the page shows its number.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tuner.measure.network.addresses import free_port
from tuner.program.job.jobspec import parse_job
from tuner.program.job.task import SearchTask
from tuner.program.target import native
from tuner.records import ErrorKind, MeasureResult, Phase
from tuner.schedule import space_of
from tuner.schedule.space import MicroKernel
from tuner.storage import JobState, Lease, NewEvent, Storage
from tuner.storage.sql import open_storage, upgrade

BATCH = 2000
EVENTS_EVERY = 10
KERNELS = 4000
LEASE_S = 3600.0
START_S = 60.0
WAIT_S = 120.0
SHOWN = """() => {
  const place = document.getElementById("trials");
  const number = () => Number(place.textContent.split(" ")[0].replaceAll(",", ""));
  window.shown = [];
  new MutationObserver(() => window.shown.push([number(), Date.now()]))
    .observe(place, {childList: true, characterData: true, subtree: true});
}"""


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="shapewright-dashboard-") as folder:
        url = f"sqlite:///{folder}/tuning.db"
        upgrade(url)
        with closing(open_storage(url)) as storage:
            storage.register_device("local-0", "local", native(), {})
            large = _large_job(storage, options.trials)
            running = _leased(storage, "running", {"trials": 1_000_000})
            with _service(url) as address:
                result = {"large": _large(storage, address, large), "live": _live(storage, address, running, options)}
    protocol = {"trials": options.trials, "rate_per_s": options.rate, "seconds": options.seconds}
    document = {"protocol": protocol, **result}
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100_000, help="of the large job")
    parser.add_argument("--rate", type=float, default=50.0, help="trials a second of the running job")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the running job is watched")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


# -- what is shown ----------------------------------------------------------------------------------------------------
def _leased(storage: Storage, name: str, budget: dict[str, Any]) -> Lease:
    job = {"name": name, "workload": {"op": "dense", "args": {"m": "16*T", "n": 2304, "k": 768}}, "budget": budget}
    storage.create_job(parse_job(job | {"shape_vars": {"T": {"min": 1, "max": 128}}}).on(native()))
    lease = storage.lease_job(name, LEASE_S)
    assert lease is not None
    return lease


def _large_job(storage: Storage, trials: int) -> Lease:
    """A job with so many trials, two in a hundred of them failed, and a progress event for every ten."""
    lease = _leased(storage, "large", {"trials": trials})
    row, rng = lease.tasks[0], np.random.default_rng(0)
    kernels, best = _kernels(row.task, min(KERNELS, trials)), 1.0
    for start in range(0, trials, BATCH):
        results = [_result(row.task, kernels, number, rng) for number in range(start, min(trials, start + BATCH))]
        events = []
        for number in range(start, start + len(results), EVENTS_EVERY):
            best *= 0.99995
            events.append(NewEvent("progress", _progress(number, best, trials)))
        storage.append_results(lease, row.id, results, events, None, _progress(start + len(results), best, trials))
    storage.finish_job(lease, JobState.CANCELLED)
    return lease


def _kernels(task: SearchTask, count: int) -> list[MicroKernel]:
    space, rng = space_of(task), np.random.default_rng(0)
    kernels: dict[MicroKernel, None] = {}
    while len(kernels) < count:
        kernels[space.sample(rng)] = None
    return list(kernels)


def _result(task: SearchTask, kernels: list[MicroKernel], number: int, rng: np.random.Generator) -> MeasureResult:
    index, instance = number % len(kernels), task.instances[number // len(kernels) % len(task.instances)]
    attempt = number // len(kernels) // len(task.instances)
    flops = task.workload.flops(task.workload.dims(instance.shape))
    latency_s = flops / 1.5e11 * float(np.exp(abs(rng.normal(0, 0.4))))
    fields: dict[str, Any] = {"round": number // 500, "attempt": attempt, "predicted_s": latency_s * 1.1}
    if rng.random() < 0.02:
        return MeasureResult(kernels[index], instance, error_kind=ErrorKind.CRASH, error="signal 11", **fields)
    return MeasureResult(kernels[index], instance, latency_s, (latency_s,), anchor_s=2e-6, phase=Phase.SEARCH, **fields)


def _progress(trials: int, best: float, budget: int) -> dict[str, Any]:
    return {
        "phase": "search", "round": trials // 500, "trials": trials, "trials_budget": budget, "failed": trials // 50,
        "commonest_error": "", "elapsed_s": trials * 0.1, "seconds_budget": None, "objective_s": 0.1 * best,
        "default_objective_s": 0.1, "speedup_vs_default": 1.0 / best, "speedup_vs_numpy": 1.2 / best,
    }  # fmt: skip


# -- how it is shown --------------------------------------------------------------------------------------------------
def _large(storage: Storage, address: str, lease: Lease) -> dict[str, Any]:
    from tuner.figures import FIGURES  # noqa: PLC0415

    key, job_id = storage.create_key("benchmark")[1], lease.job.id
    path = f"/v1/jobs/{job_id}/figures"
    result: dict[str, Any] = {"figure_s": {}, "figure_bytes": {}}
    with _browser() as browser:
        page = _signed_in(browser, storage, address)
        started = time.perf_counter()
        page.goto(f"{address}jobs/{job_id}", wait_until="domcontentloaded")
        page.locator("#theme").click()
        result["interactive_s"] = time.perf_counter() - started
        page.wait_for_function("() => document.querySelector('.plot').dataset.drawn", timeout=1000 * WAIT_S)
        result["first_figure_s"] = time.perf_counter() - started
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}, timeout=WAIT_S) as client:
        for name in FIGURES:
            started = time.perf_counter()
            answer = client.get(f"{path}/{name}").raise_for_status()
            result["figure_s"][name] = time.perf_counter() - started
            result["figure_bytes"][name] = len(answer.content)
    return result


def _live(storage: Storage, address: str, lease: Lease, options: argparse.Namespace) -> dict[str, float]:
    """Batches of one trial at the given rate; how much later than its commit each number stood on the page."""
    kernels, rng = _kernels(lease.tasks[0].task, 500), np.random.default_rng(1)
    stored: dict[int, float] = {}

    def store() -> None:
        started = time.monotonic()
        for number in range(1, int(options.rate * options.seconds) + 1):
            result = _result(lease.tasks[0].task, kernels, number, rng)
            data = _progress(number, 1.0 - 1e-5 * number, 1_000_000)
            storage.append_results(lease, lease.tasks[0].id, [result], [NewEvent("progress", data)], None, data)
            stored[number] = time.time()
            time.sleep(max(0.0, started + number / options.rate - time.monotonic()))

    with _browser() as browser:
        page = _signed_in(browser, storage, address)
        page.goto(f"{address}jobs/{lease.job.id}")
        page.wait_for_function("() => document.querySelector('.plot').dataset.drawn", timeout=1000 * WAIT_S)
        page.evaluate(SHOWN)
        thread = threading.Thread(target=store)
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
def _browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("no Chromium is on PATH: apt-get install chromium")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        yield browser
        browser.close()


def _signed_in(browser: Any, storage: Storage, address: str) -> Any:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(1000 * WAIT_S)
    page.goto(f"{address}login?token={storage.create_login('benchmark', 60.0)}")
    return page


@contextmanager
def _service(url: str) -> Iterator[str]:
    """The address of a service in a process of its own."""
    port = free_port()
    line = [sys.executable, "-m", "shapewright", "serve", "--port", str(port), "--database-url", url]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(f"http://127.0.0.1:{port}/readyz")
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_S)


def _wait_for(url: str) -> None:
    until = time.monotonic() + START_S
    while True:
        try:
            httpx.get(url).raise_for_status()
        except httpx.HTTPError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


if __name__ == "__main__":
    sys.exit(main())
