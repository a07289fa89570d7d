"""The pages of keys, the audit trail and records: who may see them, and what they do."""

from __future__ import annotations

import html
import re
from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient

from service.session import COOKIE
from tests.searched import Tools, searched, submitted
from tests.service.dashboard.test_pages import main_of
from tuner.storage import NewKey, Quota, Scope
from tuner.storage.sql import Storage

PAGE = {"Accept": "text/html"}


def test_a_key_is_made_shown_once_and_revoked(api: TestClient, storage: Storage) -> None:
    form = {"name": "ci <b>", "owner": "build team", "scope": "promote", "days": "30", "trials": "5000"}
    made = api.post("/keys", data=form)
    assert made.status_code == 200
    [secret] = re.findall(r"<code>(sw_[^<]*)</code>", made.text)
    key = storage.find_key(secret)
    assert key is not None
    assert (key.name, key.owner, key.scopes, key.quota) == (
        "ci <b>",
        "build team",
        (Scope.PROMOTE,),
        Quota(trials=5000),
    )
    assert key.expires_at is not None
    assert made.headers["Cache-Control"] == "no-store"
    listed = api.get("/keys").text
    assert secret not in listed
    assert "<b>" not in main_of(listed)
    assert "0 of 5,000" in listed
    revoked = api.post(f"/keys/{key.id}/revoke", follow_redirects=False)
    assert (revoked.status_code, revoked.headers["Location"]) == (303, "/keys")
    assert storage.find_key(secret) is None
    audit = api.get(f"/audit?subject={key.id}").text
    assert audit.index("key.revoke") < audit.index("key.create")
    assert "key.revoke" not in main_of(api.get(f"/audit?subject={key.id}&action=key.create").text)


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ({"scope": "read"}, "name"),
        ({"name": "x", "scope": "root"}, "scope"),
        ({"name": "x", "scope": "read", "days": "1e9"}, "days"),
        ({"name": "x", "scope": "read", "trials": "-1"}, "trials"),
        ({"name": "x", "scope": "read", "owner": "a\nb"}, "owner"),
    ],
)
def test_a_wrong_key_is_refused_on_the_form(
    api: TestClient, storage: Storage, form: dict[str, str], field: str
) -> None:
    before = [key.id for key in storage.list_keys()]
    page = api.post("/keys", data=form)
    assert page.status_code == 422
    assert f"<strong>{field}</strong>" in page.text
    assert f'value="{form.get("name", "")}"' in page.text
    assert [key.id for key in storage.list_keys()] == before


def test_other_sites_make_and_revoke_no_keys(api: TestClient, storage: Storage, key: str) -> None:
    del api.headers["Authorization"]
    [only] = storage.list_keys()
    for path in ("/keys", f"/keys/{only.id}/revoke"):
        answer = api.post(
            path,
            data={"name": "x", "scope": "admin"},
            headers={"Cookie": f"{COOKIE}={key}", "Sec-Fetch-Site": "cross-site"},
        )
        assert answer.status_code == 403
        assert answer.json()["type"] == "urn:shapewright:foreign-request"
    assert [each.revoked_at for each in storage.list_keys()] == [None]


def test_a_quota_shows_what_its_owner_uses(api: TestClient, storage: Storage) -> None:
    storage.create_key("small", made=NewKey((Scope.SUBMIT,), "team", None, Quota(2, 100, 60.0)))
    submitted(storage)
    assert {each.open_jobs for each in storage.quota_uses(["team", ""]).values()} == {0, 1}
    assert "0 of 2" in api.get("/keys").text


@pytest.mark.parametrize("scope", [Scope.READ, Scope.PROMOTE])
def test_what_a_key_may_not_see_is_refused_and_not_in_the_navigation(
    keyed: Callable[..., TestClient], scope: Scope
) -> None:
    client = keyed(scope)
    for path in ("/keys", "/audit"):
        page = client.get(path, headers=PAGE)
        assert page.status_code == 403
        assert f'href="{path}"' not in page.text
    assert client.post("/keys", data={"name": "x", "scope": "admin"}).status_code == 403
    assert client.post("/keys/none/revoke").status_code == 403
    records = client.get("/records").text
    assert 'href="/records"' in records
    assert 'id="import"' not in records


def test_records_are_browsed_and_filtered(api: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.dashboard.records.PAGE", 10)
    job = searched(storage, Tools(crashes=lambda kernel: kernel["ku"] == 1))
    searched(storage, name="other", workload={"op": "dense", "args": {"m": "8*T", "n": 48, "k": 32}})
    trials = storage.list_trials(job.id)
    failed = [record for record in trials if not record.result.ok]
    key = trials[0].workload_key

    def rows(query: str) -> int:
        page = api.get(f"/records?{query}")
        assert page.status_code == 200
        return str(page.text).count('<th scope="row">')

    def all_rows(query: str) -> int:
        count, address = 0, f"/records?{query}"
        for _ in range(50):
            page = str(api.get(address).text)
            count += page.count('<th scope="row">')
            older = re.search(r'href="([^"]*)">Older', page)
            if older is None:
                return count
            address = html.unescape(older[1])
        raise AssertionError("the list does not end")

    assert rows("") == 10
    assert all_rows(f"workload={key}") == len(trials)
    assert all_rows(f"workload={key}&failed=yes") == len(failed) > 0
    assert all_rows(f"workload={key}&failed=no") == len(trials) - len(failed)
    kernel = failed[0].result.kernel.id
    assert all_rows(f"workload={key}&kernel={kernel}") == sum(each.result.kernel.id == kernel for each in trials)
    assert rows("target=none") == rows("provenance=imported") == 0
    assert "No record matches" in api.get("/records?device=nowhere").text
    assert api.get(f"/v1/records?workload={key}").text.count("\n") == len(trials) + 1
    assert f'href="/v1/records?workload={key}"' in api.get(f"/records?workload={key}").text
