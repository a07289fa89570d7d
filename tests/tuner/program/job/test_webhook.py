"""The fields of a job that say how it is queued and whom it tells."""

from __future__ import annotations

import pytest

from tuner.errors import InvalidInput
from tuner.program.job.webhook import MAX_URL, parse_priority, parse_webhook


@pytest.mark.parametrize("value", [-10, 0, 10])
def test_priorities_are_from_minus_10_to_10(value: int) -> None:
    assert parse_priority(value) == value


@pytest.mark.parametrize("value", [-11, 11, 10**30, True, 1.0, "1", None, [], {}])
def test_other_priorities_are_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="-10 to 10") as caught:
        parse_priority(value)
    assert caught.value.field == "priority"


@pytest.mark.parametrize(
    "url", ["https://ci.example/hook", "http://ci.example:8080/a?b=c", "https://[2001:db8::1]/", "HTTPS://CI.EXAMPLE"]
)
def test_a_webhook_is_a_url(url: str) -> None:
    assert parse_webhook({"url": url}) == url


def test_a_job_may_have_none() -> None:
    assert parse_webhook(None) is None


@pytest.mark.parametrize("data", [[], "https://ci.example", {}, {"url": "https://a.example", "secret": "x"}, 1, True])
def test_what_is_no_mapping_with_a_url_is_refused(data: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_webhook(data)
    assert caught.value.field == "webhook"


@pytest.mark.parametrize(
    "url",
    [
        *("", "ci.example", "ftp://ci.example", "file:///etc/passwd", "https://", "https:///x", "https://a b/"),
        *("https://user:word@ci.example/", "https://user@ci.example/", "https://ci.example/#part"),
        *("https://ci.example:99999/", "https://ci.example:0/", "https://ci.example:x/", "https://[::1/"),
        *("https://ci.example/\n", "https://\u00e4.example/", "https://ci.example/" + "a" * MAX_URL, 7, None, ["x"]),
    ],
)
def test_what_is_no_url_of_a_receiver_is_refused(url: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_webhook({"url": url})
    assert caught.value.field == "webhook.url"
