"""A service in use, and every page of its dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from axe_playwright_python.sync_playwright import Axe

from tests import searched as of_service
from tests.searched import SMALL, Tools, submitted
from tuner.storage import AliasQuery, Job, LibraryQuery, NewKey, PromotionOrder, Quota, Scope
from tuner.storage.sql import Storage

if TYPE_CHECKING:
    from playwright.sync_api import Page

TWO_VARS: Mapping[str, Any] = {
    "name": "two variables",
    "workload": {"op": "matmul", "args": {"m": "8*A", "n": "16*B", "k": 64}},
    "shape_vars": {"A": {"min": 1, "max": 16}, "B": {"min": 1, "max": 8}},
    "instances": ...,
}
LONG = {"op": "dense", "args": {"m": "8*T", "n": 48, "k": 32}}


def searched(storage: Storage, tools: Tools | None = None, /, **fields: Any) -> Job:
    """A job that has ended, with enough trials for every figure to have something to draw."""
    return of_service.searched(storage, tools, **{"budget": {"trials": 60}, **fields})


def populated(storage: Storage) -> dict[str, str]:
    """Fill a database with what the pages show. Returns each page's path by the name of its picture."""
    job = searched(storage, Tools(crashes=lambda kernel: kernel["ku"] == 1))
    other = searched(storage, name="the same, in another way", seed=1)
    searched(storage, name="the same, once more", seed=2)
    two = searched(storage, **TWO_VARS)
    model = searched(
        storage,
        name="a model of three kinds of layers",
        workload=...,
        workloads=[SMALL["workload"] | {"count": 12, "layers": ["encoder.layer.0.up"] * 12}, LONG | {"count": 4}] * 2,
    )
    blocks = [
        {"op": "dense", "args": {"m": "8*T", "n": 48 * at, "k": 32}, "count": at, "layers": [f"block.{at}"]}
        for at in range(1, 8)
    ]
    part = searched(storage, name="its budget is too small", budget={"trials": 20}, workload=..., workloads=blocks)
    failed = searched(storage, Tools(crashes=lambda kernel: True), name="every kernel of it crashes")
    waiting = submitted(storage, name="waiting for a device")
    storage.annotate_job(job.id, ["nightly", "bert:base"], "Before the upgrade of the compiler.", "tests")
    [row] = storage.search_tasks(job.id)
    _name_libraries(storage, row.workload_key)
    limited = NewKey((Scope.PROMOTE,), "build team", 86400.0, Quota(10, 5000))
    storage.create_key("ci", made=limited, actor="tests")
    storage.revoke_key(storage.create_key("an old laptop", actor="tests")[0].id, "tests")
    kernel = storage.latest_artifact(row.workload_key, job_id=job.id).dispatch["kernels"][0]["id"]
    crashed = next(record for record in storage.list_trials(job.id) if not record.result.ok).result.kernel.id
    return {
        "overview": "/", "job": f"/jobs/{job.id}", "job-two-variables": f"/jobs/{two.id}",
        "job-waiting": f"/jobs/{waiting.id}", "job-failed": f"/jobs/{failed.id}",
        "model": f"/jobs/{model.id}/model", "model-in-part": f"/jobs/{part.id}/model",
        "kernel": f"/jobs/{job.id}/kernels/{kernel}",
        "kernel-crashed": f"/jobs/{job.id}/kernels/{crashed}", "workloads": "/workloads",
        "workload": f"/workloads/{row.workload_key}", "devices": "/devices", "device": "/devices/local-0",
        "trials": f"/jobs/{job.id}/trials?order=latency", "trials-failed": f"/jobs/{job.id}/trials?error=any",
        "compare": f"/compare?a={job.id}&b={other.id}&job={two.id}", "new-job": "/jobs/new", "api": "/docs",
        "keys": "/keys", "audit": "/audit", "records": "/records",
        "records-of-a-workload": f"/records?workload={row.workload_key}&failed=yes",
        "missing": "/jobs/job-none",
    }  # fmt: skip


def _name_libraries(storage: Storage, key: str) -> None:
    """``production``: promoted twice and rolled back; ``canary``: by a rule."""
    listed = storage.list_libraries(LibraryQuery(key)).items
    libraries = [library for library in listed if library.wrong_kernel is None]
    for library in libraries[:2]:
        order = PromotionOrder("tests", "measured on the build machine", None, "tests")
        place = AliasQuery(key, "production", library.target_fingerprint, library.threads)
        storage.promote(place, library.digest, order)
    storage.roll_back(AliasQuery(key, "production"), PromotionOrder("tests", "slower in the build", None, "tests"))
    order = PromotionOrder("tests", "", 5.0, "tests")
    storage.promote(
        AliasQuery(key, "canary", libraries[0].target_fingerprint, libraries[0].threads), libraries[0].digest, order
    )


def serious(page: Page) -> list[str]:
    """What axe-core finds that is serious or critical on a page, with the elements that it is about."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {[node['target'] for node in each['nodes']][:4]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
