"""Deliveries of webhooks: stored with the end of a job, claimed by whoever sends them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, func, or_, select, update

from tuner.storage.errors import Unreadable
from tuner.storage.sql._rows import Part
from tuner.storage.sql.columns import later, now
from tuner.storage.sql.schema import api_keys, webhook_deliveries
from tuner.storage.webhooks import Delivery, signing_key

_deliveries = webhook_deliveries.c
_DUE = _deliveries.next_at <= now()
_FIRST_DUE = select(_deliveries.id).where(_DUE).order_by(_deliveries.next_at).limit(1)


def _goes_to(host: str) -> ColumnElement[bool]:
    url = func.lower(_deliveries.url)
    return or_(url == host, *(url.startswith(f"{host}{end}", autoescape=True) for end in "/?#"))


class Webhooks(Part):
    def claim_delivery(
        self, hold_s: float, not_of_keys: Sequence[str] = (), not_to_hosts: Sequence[str] = ()
    ) -> Delivery | None:
        """The message that is due longest, which no other caller gets for ``hold_s`` seconds. None if none is due.

        Those of jobs of these API keys, and to these hosts (as of a Delivery), are left.
        """
        due = _FIRST_DUE.where(_deliveries.api_key_id.not_in(not_of_keys), *(~_goes_to(host) for host in not_to_hosts))
        # Senders poll, mostly in vain: read first, and write only if something is due.
        with self._database.read() as connection:
            if connection.scalar(due) is None:
                return None
        with self._database.write() as connection:
            number = connection.scalar(due.with_for_update(skip_locked=True))
            if number is None:
                return None
            claimed = update(webhook_deliveries).where(_deliveries.id == number)
            values = {"next_at": later(hold_s), "attempts": _deliveries.attempts + 1}
            row = connection.execute(claimed.values(**values).returning(webhook_deliveries)).one()
            if isinstance(row.payload, Unreadable):
                lost = f"the message is lost, it cannot be read: {row.payload.reason}"
                connection.execute(claimed.values(next_at=None, error=lost))
                return None
            secret = connection.scalar(select(api_keys.c.secret_sha256).where(api_keys.c.id == row.api_key_id))
        return Delivery(
            row.id, row.job_id, row.url, row.payload, row.attempts, signing_key(secret or ""), row.api_key_id
        )

    def finish_delivery(self, delivery: Delivery) -> None:
        """Note that it was delivered."""
        self._settle(delivery, {"next_at": None, "delivered_at": now(), "error": ""})

    def retry_delivery(self, delivery: Delivery, error: str, after_s: float | None) -> None:
        """Note that it was not delivered: try again after ``after_s`` seconds, or never (None)."""
        self._settle(delivery, {"next_at": None if after_s is None else later(after_s), "error": error})

    def _settle(self, delivery: Delivery, values: dict[str, object]) -> None:
        # A sender that was late says nothing of the attempt of the next one; what was delivered stays so.
        ours = (_deliveries.id == delivery.id, _deliveries.attempts == delivery.attempts)
        with self._database.write() as connection:
            connection.execute(update(webhook_deliveries).where(*ours).values(**values))
