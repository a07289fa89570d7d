"""The page of a workload: what is served, under which names, and by which decisions."""

from __future__ import annotations

import re
from collections.abc import Callable

from fastapi.testclient import TestClient

from tests.contract.served_samples import new_library, won
from tests.searched import searched, submitted
from tests.service.dashboard.test_pages import main_of
from tuner.storage import Scope
from tuner.storage.sql import Storage


def test_what_is_served_says_by_which_decision(api: TestClient, storage: Storage) -> None:
    old = new_library(storage, 1, 64, measured_s={1: 1e-3, 64: 3e-3})
    new = new_library(storage, 1, 64, measured_s={1: 0.8e-3, 64: 2e-3}, comparison=won(old, ratio=1.3))
    page = api.get(f"/workloads/{old.key}").text
    served, _, rest = page.partition("<h2>Names</h2>")
    assert f'data-copy="{new.digest[:12]}"' in served
    assert "1.30x as fast as" in served
    assert "timed in turns" in served
    history = rest[rest.index("<h2>History</h2>") : rest.index("<h2>Libraries</h2>")]
    assert history.index(new.digest[:12]) < history.index("not compared with another")
    assert f"1.30x over {old.digest[:12]}" in history
    libraries = rest[rest.index("<h2>Libraries</h2>") :]
    assert re.findall(r'class="state \w+">(\w+)', libraries)[:2] == ["served", "kept"]


def test_names_are_given_and_taken_back_by_what_the_page_offers(api: TestClient, storage: Storage) -> None:
    old = new_library(storage, 1, 64, measured_s={1: 1e-3, 64: 3e-3})
    new = new_library(storage, 1, 64, measured_s={1: 0.8e-3, 64: 2e-3}, comparison=won(old, ratio=1.3))
    address = f"/workloads/{old.key}"
    page = api.get(address).text
    [form] = re.findall(r'id="promote" data-api="([^"]*)"', page)
    offered = dict(re.findall(r'<option value="(\w{64})" data-query="([^"]*)"', page))
    for saved in (old, new):
        query = offered[saved.digest].replace("&amp;", "&")
        answer = api.post(
            f"{form.replace('{name}', 'production')}?{query}", json={"digest": saved.digest, "reason": "<b>"}
        )
        assert answer.status_code == 200, answer.text
    page = api.get(address).text
    assert "&lt;b&gt;" in page
    assert "<b>" not in main_of(page)
    [roll_back] = re.findall(r'data-api="([^"]*rollback[^"]*)"', page)
    assert api.post(roll_back.replace("&amp;", "&"), json={}).json()["library"]["digest"] == old.digest
    page = api.get(address).text
    assert [kind for kind in re.findall(r'class="state \w+">([\w ]+)', page) if kind != "served"][:3] == [
        "rolled back", "promoted", "promoted",
    ]  # fmt: skip


def test_who_may_not_promote_is_offered_no_form(keyed: Callable[[Scope], TestClient], storage: Storage) -> None:
    saved = new_library(storage, 1, 64, measured_s={1: 1e-3, 64: 3e-3})
    page = keyed(Scope.SUBMIT).get(f"/workloads/{saved.key}").text
    assert "data-api" not in page
    assert "need a key of scope promote" in page


def test_a_workload_that_nothing_was_built_for_says_what_to_do(api: TestClient, storage: Storage) -> None:
    [row] = storage.search_tasks(submitted(storage).id)
    page = api.get(f"/workloads/{row.workload_key}").text
    assert "no library has been built" in page
    assert 'href="/jobs/new"' in page


def test_a_workload_on_several_targets_tells_them_apart(api: TestClient, storage: Storage) -> None:
    targets = [{"kind": "llvm", "mcpu": name, "num-cores": 2} for name in ("x86-64-v3", "x86-64-v4")]
    job = searched(storage, targets=targets, budget={"trials": 8})
    rows = storage.search_tasks(job.id)
    page = api.get(f"/workloads/{rows[0].workload_key}").text
    for row in rows:
        assert f"<h3><code>{row.target_fingerprint}</code>" in page


def test_libraries_for_caches_in_several_states_are_told_apart(api: TestClient, storage: Storage) -> None:
    warm, streamed = new_library(storage), new_library(storage, cache="streamed")
    page = api.get(f"/workloads/{warm.key}").text
    for library, state in ((warm, "warm"), (streamed, "streamed")):
        assert library.digest[:12] in page
        assert f"shapewright pull {warm.key} --target {warm.target} --cache {state} -o library" in page
    assert "1 thread, caches streamed</h3>" in page
    assert (
        '<dt title="How its timed calls found their operands">Caches</dt><dd>streamed</dd>'
        in api.get(f"/jobs/{streamed.job_id}").text
    )
    assert "How its timed calls" not in api.get(f"/jobs/{warm.job_id}").text, "warm ones go without saying"
